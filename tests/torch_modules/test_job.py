"""A job of real processes, which a launcher's variables connect: the model of one process, one
charge and one folder; one sentence where a process fails or is lost."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.ledger import GaussianFilter, Ledger
from tiers import size, unless

PROCESSES = size(2, 4, "PROCESSES")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart-torch.md").read_text(encoding="utf-8")
FILE = PAGE.split("Save this as `train.py`:\n\n```python\n")[1].split("```")[0]
SCRIPT = r"""
import hashlib, json, os, sys

rank, folder = int(os.environ["RANK"]), os.getcwd()
torch.set_num_threads(1)
small, labels = x[:61, :4], y[:61]
quick = li.Run(n=61, steps=6, step_size=0.3, clip=0.5, noise=li.NoiseMultiplier(2.0), batching=li.Cyclic(15))

def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

def train(model, **more):
    return li.train(quick, (small, labels), model=model, loss=F.cross_entropy, delta=1e-4, **more)

def tell(**said):
    with open(f"{folder}/{rank}-{'-'.join(said)}.json", "w") as file:
        json.dump(said, file)

tell(page=hashlib.sha256(str(model.state).encode()).hexdigest())
model = train(network(), seed=3, out="model", ledger="ledger")
tell(state={name: tensor.tolist() for name, tensor in model.state.items()})

def fail(done, steps, seconds):
    if done == 3 and rank == 1:
        raise ZeroDivisionError("a secret")

try:  # replicas are trained that began with the parameters of process 0
    train(torch.nn.parallel.DistributedDataParallel(network(rank)), progress=fail)
except (li.InputError, ZeroDivisionError) as error:
    tell(failed=str(error))

def drop_out(done, steps, seconds):
    if done == 3 and rank == 1:
        os._exit(0)

try:
    train(network(), progress=drop_out, out="lost", ledger="ledger")
except li.InputError as error:
    tell(lost=str(error))
"""


@pytest.fixture(scope="module", params=unless(lambda how: how == "torchrun", ["torchrun", "plain"]))
def job(request, tmp_path_factory):
    """What every process of a job says, by its number and the word before it."""
    folder = tmp_path_factory.mktemp("job")
    ledger = Ledger(folder / "ledger")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    (folder / "train.py").write_text(FILE + SCRIPT)
    started = {"cwd": folder, "stderr": subprocess.PIPE, "text": True}
    if request.param == "torchrun":
        words = [f"--nproc-per-node={PROCESSES}", "--standalone", "train.py"]
        every = [
            subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words], **started)
        ]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        told = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        every = [
            subprocess.Popen(
                [sys.executable, "train.py"],
                env={**os.environ, **told, "RANK": str(rank)},
                **started,
            )
            for rank in range(PROCESSES)
        ]
    errors = [process.communicate(timeout=500)[1] for process in every]
    assert not any(process.returncode for process in every), errors
    said = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return folder, ledger, {name: next(iter(each.values())) for name, each in said.items()}


def test_the_file_of_the_page_releases_one_model(job):
    folder, _, said = job
    assert len({said[f"{rank}-page"] for rank in range(PROCESSES)}) == 1
    stored = li.load(folder / "shared-model")
    assert stored.certificate.epsilon(1e-5) <= 3.0 and li.verify(folder / "shared-model")


def test_all_release_the_model_of_one_process_and_one_charges(job):
    folder, ledger, said = job
    made = {}
    head, tail = FILE.split("torch.manual_seed")[0], SCRIPT.split("def network")[0]
    exec(head + tail.replace('int(os.environ["RANK"])', "0"), made)
    exec("def network" + SCRIPT.split("def network")[1].split("def tell")[0], made)
    alone = made["train"](made["network"](), seed=3)
    for rank in range(PROCESSES):
        assert said[f"{rank}-state"] == said["0-state"]
    for name, tensor in alone.state.items():
        np.testing.assert_allclose(said["0-state"][name], tensor, rtol=0, atol=2e-6)
    stored = li.load(folder / "model", like=made["network"]())
    assert {name: tensor.tolist() for name, tensor in stored.state.items()} == said["0-state"]
    assert stored.certificate.epsilon(1e-4) == alone.certificate.epsilon(1e-4)
    assert [line.state for line in ledger.total("d").releases] == ["released", "touched"]


def test_an_error_or_a_loss_of_one_process_ends_all_without_a_release(job):
    folder, _, said = job
    assert said["1-failed"] == "a secret" and "1-lost" not in said
    for rank in {*range(PROCESSES)} - {1}:
        assert said[f"{rank}-failed"] == (
            "processes must all take part to the end, and ZeroDivisionError ended process 1; nothing "
            "was released."
        )
        assert said[f"{rank}-lost"].startswith(
            "processes must all take part to the end, and one of them stopped or cannot be reached"
        )
    assert "the ledger keeps the charge" in said["0-lost"] and not (folder / "lost").exists()

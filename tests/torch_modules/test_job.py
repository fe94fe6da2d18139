"""A job of real processes, which a launcher's variables connect: the model of one process, one
charge and one folder; one sentence where a process fails or is lost."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.ledger import GaussianFilter, Ledger
from tiers import size

PROCESSES = size(2, 4, "PROCESSES")
SCRIPT = r"""
import hashlib, json, os, sys
import numpy as np
import torch
import lastiterate as li

rank, folder = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(61, 4)).astype(np.float32), rng.integers(0, 3, 61)
run = li.Run(n=61, steps=6, step_size=0.3, clip=0.5, noise=li.NoiseMultiplier(2.0), batching=li.Cyclic(15))

def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

def train(model, **more):
    return li.train(run, (x, y), model=model, loss=torch.nn.functional.cross_entropy, delta=1e-4, **more)

def tell(**said):
    with open(f"{folder}/{rank}-{'-'.join(said)}.json", "w") as file:
        json.dump(said, file)

torch.manual_seed(0)
model = train(network(), seed=3, out=f"{folder}/model", ledger=f"{folder}/ledger")
tell(state={name: tensor.tolist() for name, tensor in model.state.items()})

torch.manual_seed(rank)  # the replicas of process 0's parameters are trained
model = train(torch.nn.parallel.DistributedDataParallel(network()))
tell(secret=hashlib.sha256(str(model.state).encode()).hexdigest())

def fail(done, steps, seconds):
    if done == 3 and rank == 1:
        raise ZeroDivisionError("a secret")

torch.manual_seed(0)
try:
    train(network(), progress=fail)
except (li.InputError, ZeroDivisionError) as error:
    tell(failed=str(error))

def drop_out(done, steps, seconds):
    if done == 3 and rank == 1:
        os._exit(0)

try:
    train(network(), progress=drop_out, out=f"{folder}/lost", ledger=f"{folder}/ledger")
except li.InputError as error:
    tell(lost=str(error))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What every process of a job says, by its number and the word before it."""
    folder = tmp_path_factory.mktemp("job")
    ledger = Ledger(folder / "ledger")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launched = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    every = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **launched, "RANK": str(rank)},
        )
        for rank in range(PROCESSES)
    ]
    errors = [process.communicate(timeout=300)[1] for process in every]
    assert [process.returncode for process in every] == [0] * PROCESSES, errors
    said = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return folder, ledger, {name: next(iter(each.values())) for name, each in said.items()}


def test_all_release_the_model_of_one_process_and_one_charges(job):
    folder, ledger, said = job
    names = {"n": 61, "steps": 6, "step_size": 0.3, "clip": 0.5, "batching": li.Cyclic(15)}
    run = li.Run(noise=li.NoiseMultiplier(2.0), **names)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(61, 4)).astype(np.float32), rng.integers(0, 3, 61)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    loss = torch.nn.functional.cross_entropy
    alone = li.train(run, data, model=net, loss=loss, delta=1e-4, seed=3)
    for rank in range(PROCESSES):
        assert said[f"{rank}-state"] == said["0-state"]
    for name, tensor in alone.state.items():
        np.testing.assert_allclose(said["0-state"][name], tensor, rtol=0, atol=2e-6)
    stored = li.load(folder / "model", like=net)
    assert {name: tensor.tolist() for name, tensor in stored.state.items()} == said["0-state"]
    assert stored.certificate.epsilon(1e-4) == alone.certificate.epsilon(1e-4)
    assert [line.state for line in ledger.total("d").releases] == ["released", "touched"]


def test_replicas_are_trained_under_one_key(job):
    assert len({job[2][f"{rank}-secret"] for rank in range(PROCESSES)}) == 1


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

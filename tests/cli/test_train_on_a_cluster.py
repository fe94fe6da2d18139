"""The files of "Train on a cluster", started over loopback: one model, one charge, one folder."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import yaml
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import jax_processes
from tiers import unless

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "train-on-a-cluster.md").read_text(encoding="utf-8")
BASH, TORCHRUN, _ = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
YAML = re.search(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
told = dict(SLURM_JOB_ID=os.environ["JOB"], SLURM_STEP_NODELIST="127.0.0.1", SLURM_NTASKS="2",
            SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="1")
tasks = [subprocess.Popen(sys.argv[1:], env=os.environ | told | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
         for i in range(2)]
sys.exit(max(task.wait() for task in tasks))
"""
COMMAND = f"""#!/bin/sh
exec {sys.executable} -m lastiterate "$@"
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with ``srun`` and ``lastiterate`` on the path, and the page's ledger in it."""
    for name, text in (("srun", SRUN), ("lastiterate", COMMAND)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(li.__file__).parents[1]))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Ledger(tmp_path / "wine.ledger").add(
        "wine", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0)
    )
    return tmp_path


def find_port():
    """Return a port that is free, and the one behind it too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return str(port)


def start(words, rank, **more):
    """Start one process of two, with the variables of torchrun."""
    return subprocess.Popen(
        words,
        env={**os.environ, "WORLD_SIZE": "2", "RANK": str(rank), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_job(*words, **more):
    """Return the exit codes, outputs and errors of two processes, of one command or of two."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_port(), **more}
    job = [start(words[rank % len(words)], rank, **told) for rank in range(2)]
    said = [process.communicate(timeout=500) for process in job]
    return [process.returncode for process in job], *zip(*said, strict=True)


def test_tasks_of_slurm_release_one_model(desk, monkeypatch):
    """JAX's own detection finds the tasks; they end without a word but the first one's screen."""
    port = int(find_port())
    monkeypatch.setenv("JOB", str(port))  # any number; JAX takes its port from it
    ran = subprocess.run(["bash", "-c", BASH], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("epsilon 3 at") == 1 and "Gloo" not in ran.stdout
    assert {path.name for path in desk.iterdir() if path.is_dir()} == {"slurm-model"}
    assert li.verify(desk / "slurm-model")
    (line,) = Ledger(desk / "wine.ledger").total("wine").releases
    assert line.state == "released"


@pytest.mark.parametrize("started", unless(lambda started: not started, [False, True]))
def test_pods_of_kubernetes_release_one_model(desk, monkeypatch, started):
    """The Job gives every pod the variables of a launcher, by a name that the service has."""
    service, job = yaml.safe_load_all(YAML)
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed" and spec["backoffLimit"] == 0
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(given["WORLD_SIZE"]) == 2
    assert given["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    assert given["RANK"] is None and "job-completion-index" in str(container["env"])
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert volume["name"] == mount["name"] and mount["mountPath"] == "/shared"
    if not started:
        for variable, value in {**given, "RANK": "1"}.items():
            monkeypatch.setenv(variable, value)
        told = jax_processes.read_variables()
        assert (told["coordinator_address"], told["process_id"]) == ("private-0.private:29501", 1)
        return
    words = [word.replace("/shared", str(desk)) for word in container["command"]]
    codes, out, errors = run_job(words, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert codes == [0, 0], errors
    assert "epsilon 3 at" in out[0] and out[1] == ""
    assert li.verify(desk / "model")


MODES = {
    "torchrun": ("WORLD_SIZE", "RANK"),
    "Slurm": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
}


@pytest.mark.parametrize("launcher", list(MODES))
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "wine"], "tune trains in one process"),
        (["forget", "model", "wine", "--remove", "ids"], "forget trains in one process"),
        (["train", "wine", "--algorithm", "dp-svrg"], "--algorithm needs the whole data"),
        (
            ["train", "wine", "--algorithm", "permuted-sgd", "--batch", "poisson:0.1"],
            "--batch needs the whole data",
        ),
        (["train", "x.csv", "--model", "bayes-linear"], "--model needs the whole data"),
        (
            ["train", "wine", "--adjacency", "add-remove", "--n", "100"],
            "--adjacency needs the whole data",
        ),
    ],
    ids=lambda part: part[0] if isinstance(part, list) else part.split()[0],
)
def test_one_sentence_refuses_several_processes_of_what_takes_one(
    desk, monkeypatch, launcher, words, said
):
    """The first process says it, and no process connects, reads or charges."""
    count, rank = MODES[launcher]
    monkeypatch.setenv(count, "2")
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: pytest.fail("it connects"))
    words = [*words, "--epsilon", "1", "--ledger", "wine.ledger", "--out", "model"]
    before = (desk / "wine.ledger").read_bytes()
    for own in "01":
        monkeypatch.setenv(rank, own)
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 2, ended.output
        assert ended.output.count("\n") == ended.output.count(said) == int(own == "0")
    assert (desk / "wine.ledger").read_bytes() == before and not (desk / "model").exists()


def test_processes_that_would_be_started_are_refused_before(desk):
    words = ["train", "wine", "--epsilon", "1", "--algorithm", "dp-svrg", "--processes", "2"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2 and "--algorithm needs" in ended.output, ended.output


FAILURES = """
import os
from dataclasses import replace
rank, book = int(os.environ["RANK"]), dict(ledger="wine.ledger", devices=devices)
assert devices == 2 and li.load("joint-model").certificate.epsilon(1e-5) <= 1
for field, more in (("run", {}), ("epsilon", {"epsilon": 2.0 + rank}), ("data", {})):
    other = replace(run, step_size=0.5 + rank / 8) if field == "run" else run
    records = (x + rank * (field == "data"), y)
    try:
        li.train(other, records, **{"epsilon": 1.0, **book, **more})
    except li.InputError as error:
        assert error.argument == field and "same in every process" in str(error), error
    else:
        raise SystemExit(f"processes that differ in {field} were accepted")
assert rank or not li.ledger.Ledger("wine.ledger").total("wine").releases

def fail(done, steps, seconds):
    if rank:
        raise ZeroDivisionError("of process 1")
li.train(replace(run, steps=600), (x, y), epsilon=1.0, progress=fail, out="lost", **book)
"""


def test_processes_of_python_release_one_model_and_end_together(desk):
    """Runs and records that differ are refused before the charge; an exception in one process ends
    the other without a release, and neither waits for the other."""
    codes, out, errors = run_job([sys.executable, "-c", PYTHON + FAILURES])
    assert codes == [1, 1], errors
    assert "[Gloo]" not in "".join([*out, *errors])
    assert "ZeroDivisionError: of process 1" in errors[1]
    assert "process 1 ended: ZeroDivisionError" in errors[0] and "keeps the charge" in errors[0]
    assert {path.name for path in desk.iterdir() if path.is_dir()} == {"joint-model"}
    (line,) = Ledger(desk / "wine.ledger").total("wine").releases
    assert line.state == "touched"


EXACT = """
import sys
import numpy as np
import lastiterate as li
devices = li.distributed.join()
rng = np.random.default_rng(0)
x, y = rng.normal(size=(150, 4)), rng.integers(0, 3, 150)
run = li.Run(n=150, steps=6, step_size=0.5, loss=li.Softmax(classes=3), batching=li.Permuted(30))
how = dict(epsilon=4.0, seed=3, secure_noise=True)
found = li.train(run, (x, y), devices=devices, **how)
np.save(sys.argv[1], found.released.weights)
"""


def test_processes_with_exact_noise_release_the_bits_of_one(desk):
    words = [[sys.executable, "-c", EXACT, f"{rank}.npy"] for rank in range(2)]
    codes, _, errors = run_job(*words)
    assert codes == [0, 0], errors
    alone = [sys.executable, "-c", EXACT.replace("li.distributed.join()", "1"), "alone.npy"]
    subprocess.run(alone, check=True, capture_output=True)
    found = [(desk / f"{name}.npy").read_bytes() for name in ("0", "1", "alone")]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("refuses", [0, 1])
def test_what_one_process_refuses_is_one_sentence_of_the_first(desk, refuses):
    """JAX's own lines are in no process."""
    words = [sys.executable, "-m", "lastiterate", "train", "wine", "--algorithm", "permuted-sgd"]
    words += ["--epsilon", "3", "--devices", "2", "--out"]
    (desk / "taken").write_text("")
    jobs = [[*words, "taken" if rank == refuses else "model"] for rank in range(2)]
    jobs[1] += ["--schema", "none.toml"] if refuses else []
    codes, _, errors = run_job(*jobs)
    assert codes == [2, 2], errors
    own = errors[refuses].strip()
    assert own.startswith("error: --schema" if refuses else "error: --out") and "\n" not in own
    if refuses:
        assert f"process 1 ended: {own.removeprefix('error: ').rstrip('.')}; nothing" in errors[0]
    assert "coordination" not in "".join(errors) and errors[0].count("error:") == 1
    assert refuses or errors[1] == ""
    assert not (desk / "model").exists()


@pytest.mark.parametrize("machines", unless(lambda _: False, [1, 2]))
def test_torchrun_releases_one_model(desk, machines):
    pytest.importorskip("torch")
    text = TORCHRUN.replace("torchrun ", f"{sys.executable} -m torch.distributed.run ")
    one, two = re.findall(r"^# on .*\n((?:.*\\\n)*.*\n)", text, re.MULTILINE)
    assert "first-machine:29400" in two
    line = one if machines == 1 else two.replace("first-machine:29400", f"127.0.0.1:{find_port()}")
    line = line.replace("--nproc", "--standalone --nproc", machines == 1)
    ran = [
        subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(machines)
    ]
    errors = [each.communicate(timeout=500)[1].decode() for each in ran]
    assert [each.returncode for each in ran] == [0] * machines, errors
    assert li.verify(desk / "model")


def test_missing_variables_and_others_that_do_not_answer_are_one_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(li.InputError, match=r"some are missing, got 'MASTER_ADDR and MASTER_PORT'"):
        li.distributed.join()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "many")
    with pytest.raises(li.InputError, match="integers as RANK, WORLD_SIZE and MASTER_PORT"):
        li.distributed.join()
    monkeypatch.setenv("MASTER_PORT", find_port())
    monkeypatch.setattr(jax_processes, "PATIENCE", 0.1)
    with pytest.raises(li.InputError, match="must all connect, and this is 1 of 2, got 'nothing"):
        li.distributed.join()
    monkeypatch.setenv("RANK", "0")

    def refuse(**_):
        raise RuntimeError("must be called before")

    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    with pytest.raises(li.InputError, match="connect, and this is 0 of 2, got 'must be called bef"):
        li.distributed.join()

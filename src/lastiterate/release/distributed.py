"""Start processes that train one model together, on this machine or on a cluster of Ray."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lastiterate.errors import InputError
from lastiterate.release.jax_processes import STOPPED, join, leave_job

if TYPE_CHECKING:
    from lastiterate.release.released_model import ReleasedModel
    from lastiterate.run.run import Run

__all__ = ["join", "train"]

# Each process gets the variables of a launcher.

Ended = tuple[int, bytes, bytes]
"""The exit code of a process, its output and what it wrote to standard error."""
WORKER = "from lastiterate.release.distributed import work; work()"
RAY = "ray:"


def train(run: Run, data: object, *, processes: int | str, **options: Any) -> ReleasedModel:
    """Train one model with processes that this call starts.

    Parameters
    ----------
    run : Run
        As ``lastiterate.train`` takes it.
    data : object
        As ``lastiterate.train`` takes it; every process gets a copy, or opens the same file.
    processes : int or str
        Number of processes on this machine; ``"ray:4"`` starts them on the cluster of Ray that this
        machine belongs to, or else on one that Ray starts here.
    **options : object
        The other arguments of ``lastiterate.train``, without ``devices`` and ``progress``.

    Returns
    -------
    ReleasedModel
        Model of ``lastiterate.train``, as one process would release it.

    Raises
    ------
    InputError
        If Ray is missing or too small, or a process fails. Nothing is released then.

    See Also
    --------
    join : Take part in a job that a launcher started.

    Notes
    -----
    Key, data and model cross the network between the processes, and Ray's object store.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> run = li.Run(n=20, steps=2, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    >>> try:
    ...     li.distributed.train(run, (np.ones((20, 2)), np.zeros(20)), processes="several")
    ... except li.InputError as error:
    ...     print(error.argument)
    processes
    """
    for name in ("devices", "progress"):
        if name in options:
            raise InputError(
                name, "is not for processes that are started here", None, "leave it out"
            )
    sent = _find_pickler().dumps((run, data, options))
    ended = start(str(processes), [sys.executable, "-c", WORKER], sent)
    found = pickle.loads(ended[0][1]) if ended[0][1] else None
    if isinstance(found, InputError):
        raise found
    if found is None:
        raise InputError(
            "processes",
            "must all take part to the end, and process 0 ended without a model",
            ended[0][2].decode(errors="replace").strip().split("\n")[-1][:200],
        )
    return found


def _find_pickler() -> Any:
    """What sends functions of a script or notebook too: joblib needs it, or has it inside."""
    try:
        return import_module("cloudpickle")
    except ModuleNotFoundError:
        return import_module("joblib.externals.cloudpickle")


def work() -> None:
    """Take part in a job of ``train``: its arguments come in, the first process's model goes out."""
    from lastiterate.release import training
    from lastiterate.release.model_kinds import kind_for

    out = os.dup(1)
    os.dup2(2, 1)
    run, data, options = pickle.loads(sys.stdin.buffer.read())
    code, why = 0, ""
    try:
        devices = 1 if kind_for(options.get("model")).processes else join()
        found: object = training.train(run, data, devices=devices, **options)
    except InputError as error:
        found, code, why = error, 2, str(error)
    if os.environ["RANK"] == "0":
        with os.fdopen(out, "wb") as file:
            file.write(pickle.dumps(found))
    if code:
        leave_job(code, why)
    sys.exit(code)


def run_command(processes: str, words: list[str]) -> int:
    """Start a command in all processes; show what the first one wrote, and return its exit code."""
    (code, out, errors), *others = start(processes, [sys.executable, "-m", "lastiterate", *words])
    sys.stderr.write(errors.decode(errors="replace"))
    for number, (other, _, why) in enumerate(others, 1):
        last = why.decode(errors="replace").strip().split("\n")[-1]
        said = last.removeprefix("error: ").rstrip(".") in errors.decode(errors="replace")
        if code and other and not said and STOPPED not in last:
            sys.stderr.write(f"process {number}: {last}\n")
    sys.stdout.write(out.decode(errors="replace"))
    return code or max(other[0] for other in others)


def start(processes: str, words: list[str], sent: bytes = b"") -> list[Ended]:
    """Start ``words`` in every process, with ``sent`` as standard input, and wait for all of them."""
    on_ray = processes.startswith(RAY)
    return (_start_on_ray if on_ray else _start_here)(count_processes(processes), words, sent)


def count_processes(processes: str) -> int:
    """Return how many processes ``4`` or ``ray:4`` asks for."""
    text = processes.removeprefix(RAY)
    if not text.isdecimal() or int(text) < 2:
        raise InputError(
            "processes",
            "must be a number of at least 2, or ray: and such a number",
            processes,
            "such as 4 or ray:4",
        )
    return int(text)


def _variables(rank: int, count: int, host: str, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def _find_port() -> int:
    """A port that was free, and the one behind it too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def _start_here(count: int, words: list[str], sent: bytes) -> list[Ended]:
    port = _find_port()
    local = {"LOCAL_WORLD_SIZE": str(count)}
    job: list[subprocess.Popen[bytes]] = [
        subprocess.Popen(
            words,
            env=os.environ
            | local
            | {"LOCAL_RANK": str(rank)}
            | _variables(rank, count, "127.0.0.1", port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        said = [pool.submit(process.communicate, sent) for process in job]
    return [(process.wait(), *each.result()) for process, each in zip(job, said, strict=True)]


def _start_on_ray(count: int, words: list[str], sent: bytes) -> list[Ended]:
    """The same in actors, one for each process, that Ray places where it has room."""
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise InputError(
            "processes",
            "on Ray need that library, which is not installed",
            f"{RAY}{count}",
            "pip install lastiterate[ray], or start a number of processes here",
        ) from None
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, logging_level="ERROR")
    try:
        room = int(ray.cluster_resources().get("CPU", 0))
        if room < count:
            raise InputError(
                "processes", f"must not be more than the {room} CPUs of Ray's cluster", count
            )
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= count else 0
        actor = ray.remote(num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD")(_Actor)
        actors = [actor.remote() for _ in range(count)]
        host, port = ray.get(actors[0].find_address.remote())
        return ray.get(
            [
                each.execute.remote(
                    words[1:], _variables(rank, count, host, port), sent, os.getcwd()
                )
                for rank, each in enumerate(actors)
            ]
        )
    except ray.exceptions.RayError as error:
        raise InputError(
            "processes",
            "must all take part to the end, and Ray lost one of them",
            str(error).strip().split("\n")[0][:160],
        ) from None
    finally:
        if ours:
            ray.shutdown()


class _Actor:
    """A process of Ray, which starts one process of a job on its machine."""

    def find_address(self) -> tuple[str, int]:
        ray: Any = import_module("ray")
        return ray.util.get_node_ip_address(), _find_port()

    def execute(
        self, words: list[str], variables: dict[str, str], sent: bytes, folder: str
    ) -> Ended:
        """Run Python, in the caller's folder where this machine has it."""
        ran = subprocess.run(
            [sys.executable, *words],
            env=os.environ | variables,
            input=sent,
            capture_output=True,
            check=False,
            cwd=folder if os.path.isdir(folder) else None,
        )
        return ran.returncode, ran.stdout, ran.stderr

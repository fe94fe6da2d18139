"""Train one model in several processes that jax.distributed connects."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lastiterate.errors import InputError, RepeatedFitWarning, outside
from lastiterate.release.training_request import Processes

# JAX computes one program on the devices of all processes. Around it they meet here: all that is
# public is compared before the charge, and the first process sends what it alone knows.

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, ``lastiterate.distributed`` and other launchers set for every process."""
RANKS = {
    "WORLD_SIZE": "RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
}
"""In which variables torchrun, a step of Slurm and Open MPI say how many processes they started, and
which of them this is."""
PATIENCE = 300.0
"""Seconds that a process waits for the first one to listen."""
STOPPED = "no longer answers"
SAME = "start every process with the same command and the same files"


class LaunchedProcesses(Processes):
    """The processes that a launcher started, as its variables say; none of them is connected.

    ``variable``: which of them says how many; "" without a launcher. ``count``: of processes that
    are not started yet.
    """

    def __init__(self, count: int | None = None) -> None:
        self.variable = ""
        if count is not None:
            self.count = count
            return
        for count_in, rank in RANKS.items():
            text = os.environ.get(count_in, "")
            if text.isdecimal() and int(text) > 0:
                self.variable, self.count = count_in, int(text)
                own = os.environ.get(rank, "")
                self.rank = int(own) if own.isdecimal() else 0
                return


@contextmanager
def refuse_once(launched: Processes) -> Generator[None]:
    """Let the first process alone say what all of them refuse."""
    try:
        yield
    except InputError:
        if launched.rank:
            raise SystemExit(2) from None
        raise


def refuse_launcher(command: str) -> None:
    """Refuse several processes of a command that trains in one: each would charge for itself."""
    launched = LaunchedProcesses()
    if launched.count == 1:
        return
    with refuse_once(launched):
        raise InputError(
            command,
            "trains in one process, and a launcher started several",
            f"{launched.variable}={launched.count}",
            "start it once, without the launcher; where each process has data of its own, unset "
            f"{launched.variable}",
        )


def warn_of_launcher() -> None:
    """Warn where a launcher started several processes and this one trains alone."""
    launched = LaunchedProcesses()
    if launched.count == 1:
        return
    warnings.warn(
        f"a launcher started {launched.count} processes ({launched.variable}={launched.count}), and "
        "each trains a model of its own here: models of the same records compose; for one model, "
        "call lastiterate.distributed.join() first and give lastiterate.train its result as devices=; "
        f"where every process has other data, unset {launched.variable}",
        RepeatedFitWarning,
        stacklevel=outside(),
    )


def join() -> int:
    """Connect this process with the others that a launcher started.

    Call it before anything else uses JAX. Under ``torchrun`` and other launchers that set ``RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` process 0 listens at the port behind
    ``MASTER_PORT``; under Slurm and Open MPI JAX finds the others itself.

    Returns
    -------
    int
        Number of devices of all processes, for ``devices=`` of ``lastiterate.train``; 1 without a
        launcher.

    Raises
    ------
    InputError
        If a variable is missing, or the others cannot be reached.

    See Also
    --------
    train : Start processes, and train in them.

    Notes
    -----
    An error that ends one process ends all of them; process 0 says why.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.distributed.join()
    1
    """
    count = LaunchedProcesses().count
    if count == 1:
        return 1
    import jax

    if not jax.distributed.is_initialized():
        settings = read_variables()
        try:
            if settings.get("process_id"):
                _wait_for(settings["coordinator_address"])
            jax.distributed.initialize(**settings)
        except (RuntimeError, ValueError, OSError) as error:
            this = settings.get("process_id", "one")
            raise InputError(
                "processes",
                f"must all connect, and this is {this} of {count}",
                str(error).strip().split("\n")[0][:160],
                "call join before anything else uses JAX, and let every machine reach the first one",
            ) from None
    _end_on_errors()
    return jax.device_count()  # pyright: ignore


def _wait_for(address: str) -> None:
    """Return when somebody listens there: JAX would abort the process when it has waited in vain."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=10):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(f"nothing listens at {address} ({error})") from None
        time.sleep(0.2)


def check_variables() -> None:
    """Refuse a launcher that sets some of ``VARIABLES`` only."""
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise InputError(
            "processes",
            f"must all have {', '.join(VARIABLES)} from their launcher, and some are missing",
            " and ".join(missing),
            "start them with torchrun, or leave WORLD_SIZE out for one process",
        )


def read_variables() -> dict[str, Any]:
    """Read the launcher's variables as arguments of jax.distributed.initialize; none under Slurm and
    Open MPI, whose variables JAX reads itself."""
    if "WORLD_SIZE" not in os.environ:
        return {}
    check_variables()
    numbers = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    if not all(text.isdecimal() for text in numbers):
        raise InputError(
            "processes", "must have integers as RANK, WORLD_SIZE and MASTER_PORT", numbers
        )
    rank, count, port = map(int, numbers)
    one_each = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    return {
        "coordinator_address": f"{os.environ['MASTER_ADDR']}:{port + 1 if port < 65535 else port - 1}",
        "num_processes": count,
        "process_id": rank,
        "local_device_ids": int(os.environ.get("LOCAL_RANK", "0")) if one_each else None,
        "cluster_detection_method": "deactivate",
    }


def join_devices(devices: object) -> Processes:
    """The processes whose devices share the batches of a release; this one alone, where its own
    device has all."""
    if type(devices) is not int or devices < 2:
        return Processes()
    import jax

    return JaxProcesses() if jax.process_count() > 1 else Processes()


class JaxProcesses(Processes):
    """All processes of a job as this one sees them.

    **Guarantee:** a process that fails outside of JAX's program tells the others why and ends, which
    closes its connections and ends them too.
    """

    def __init__(self) -> None:
        import jax

        from lastiterate.engine.streaming.buffers import Devices

        self.rank, self.count = jax.process_index(), jax.process_count()
        self._devices = Devices(jax.device_count())  # pyright: ignore
        _end_on_errors()
        with redirect_stdout(os.devnull):  # Gloo says there that it connects
            self.send(lambda: None)

    def check_same(self, **facts: str) -> None:
        every = self._gather_digests(*facts.values())
        for index, name in enumerate(facts):
            for other in range(self.count):
                if (every[other, index] != every[0, index]).any():
                    raise InputError(
                        name,
                        f"must be the same in every process, and process {other} has another than "
                        "process 0; nothing was released",
                        None,
                        SAME,
                    )

    def _gather_digests(self, *facts: str) -> np.ndarray:
        """Return the digests of the facts of every process, (count, facts, bytes)."""
        digests = [hashlib.sha256(fact.encode()).digest() for fact in facts]
        every = self._devices.gather(np.frombuffer(b"".join(digests), np.uint8))
        return every.reshape(self.count, len(facts), -1)

    def check_records(self, fingerprint: Any, identity: str = "") -> None:
        from lastiterate.engine.checkpoint import Key as Secret

        none, own = self._gather_digests("", identity).swapaxes(0, 1)
        if (own == own[0]).all() and (own != none).any():
            return
        secret = Secret(self.send(lambda: os.urandom(32)))
        self.check_same(data=secret.digest(fingerprint()))

    def send(self, make: Any) -> Any:
        sent = pickle.dumps(make()) if self.rank == 0 else b""
        size = int(self._devices.broadcast(np.array(len(sent))))
        held = np.frombuffer(sent, np.uint8) if self.rank == 0 else np.zeros(size, np.uint8)
        return pickle.loads(self._devices.broadcast(held).tobytes())


def _end_on_errors() -> None:
    """From now on an exception that nobody catches ends this process at once: JAX would wait for
    the others, and they for it."""
    from lastiterate.engine.job import follow_first

    if sys.excepthook is not _print_and_leave:
        sys.excepthook = _print_and_leave
        follow_first()


def _print_and_leave(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    sys.__excepthook__(kind, error, trace)
    leave_job(1, str(error) if isinstance(error, InputError) else kind.__name__)


@contextmanager
def redirect_stdout(where: str | int) -> Generator[None]:
    """Send to a file what libraries write to standard output."""
    sys.stdout.flush()
    kept, file = os.dup(1), os.open(where, os.O_WRONLY) if isinstance(where, str) else os.dup(where)
    try:
        os.dup2(file, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(file)


def leave_job(code: int, why: str = "") -> None:
    """End this process, and tell the others why; does nothing outside of a job."""
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        try:
            from lastiterate.engine.job import tell_end

            sys.stdout.flush()
            sys.stderr.flush()
            tell_end(why)
        finally:
            os._exit(code)

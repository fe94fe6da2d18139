"""Shared by all tests: the oracles are importable, warnings about labels are quiet, compiled
programs are kept.

Most of the time of a test is XLA's. What it compiles is kept in pytest's cache (``pytest
--cache-clear`` forgets it) for other test files, child processes and the next session; JAX's key is
the whole program, its options and versions.
"""

import contextlib
import ctypes
import functools
import gc
import json
import os
import sys
from pathlib import Path

import pytest

from entropy import SEED, NamedEntropy
from tiers import EXHAUSTIVE

gc.set_threshold(
    20_000, 20, 20
)  # Python's collector looks seldom: most of what tests make is let go by its count
# before JAX is imported anywhere
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "compiled")
)
# filters and axes of synthetic pictures are kept there too
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).parents[1] / ".pytest_cache" / "d"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# a program in one part instead of 32: the same instructions, and a tenth less of the processors'
# time
FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
# Most programs of tests run for less time than LLVM's passes take, a quarter of all, and the older
# emitter of fused loops compiles in half of the time of the present one: on a new machine nothing
# was compiled before. What is about bits runs as it does for users (``as_users_have_them``), and so
# does everything in the exhaustive tier.
if not EXHAUSTIVE:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", FLAGS)
# matrices are small: a second thread of BLAS waits in a busy loop, a tenth of the processors' time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

RESIDENT, GROWTH = 5 << 28, 1 << 29
"""Bytes of a worker above which memory is given back after a test, and by how many it grows until
the next time."""
LIMIT = {"bytes": RESIDENT}
FEW_PAIRS = 2**12
"""Normals of a small model are drawn this many pairs at once, an eighth of what users have: a fit
in a test seldom needs a hundred. The bits are the same (tests/engine/test_noise_ahead.py)."""


ENTROPY = NamedEntropy()
os.urandom = ENTROPY


def pytest_configure():
    """Hypothesis draws the same examples on every machine, as tests draw the same keys."""
    if SEED == "0":
        from hypothesis import settings

        settings.register_profile("same", derandomize=True)
        settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Every test draws the keys of its own name."""
    ENTROPY.start(None if item.get_closest_marker("system_entropy") else item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """What several tests share draws the keys of the fixture, whichever test is first."""
    if fixturedef.scope == "function":
        return (yield)
    case = getattr(request, "param_index", 0)
    with ENTROPY.within(f"{fixturedef.baseid}::{fixturedef.argname}[{case}]"):
        return (yield)


def pytest_sessionfinish():
    ENTROPY.start(None)


def pytest_collection_modifyitems(config, items):
    """Cases of the exhaustive tier are left out of ``make test``, and counted as deselected."""
    if EXHAUSTIVE:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)


def resident():
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim():
    """Give what is free back to the system: LLVM's leavings, up to a hundred MB for each program
    compiled."""
    with contextlib.suppress(OSError, AttributeError):  # another allocator than glibc's
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def draw_pairs_at_once(count):
    """Set how many pairs of normals a program draws, where the engine is imported; return the count
    before."""
    modules = [sys.modules.get(f"lastiterate.engine.{name}") for name in ("random", "noise")]
    before = [module.PAIRS for module in modules if module]
    for module in filter(None, modules):
        module.PAIRS = count
    return before[0] if before else count


def pytest_collection_finish():
    """Python's collector leaves alone what was imported: looking through it was a twentieth of the
    time of a file.

    And typer's parser of all commands is built once, and not by every call of one: 50 ms each.
    """
    gc.freeze()
    if not EXHAUSTIVE:
        draw_pairs_at_once(FEW_PAIRS)
    if "typer.testing" in sys.modules:
        import typer.testing

        typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """A worker stays under 3 GB: above the limit free memory goes, and where that is too little
    XLA's programs."""
    if resident() < LIMIT["bytes"]:
        return
    trim()
    if resident() >= LIMIT["bytes"] and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
        trim()
        LIMIT["bytes"] = max(RESIDENT, resident() + GROWTH)


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupted():
    """``with interrupted(at) as progress:`` expects a run that ends after so many steps."""

    @contextlib.contextmanager
    def after(at):
        def told(done, *_):
            if done >= at:
                raise Interrupted

        with pytest.raises(Interrupted):
            yield told

    return after


@pytest.fixture
def kept(tmp_path):
    """What ``train`` is told about a checkpoint that it keeps after every step."""
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o600)
    return dict(checkpoint=tmp_path / "c", checkpoint_every=0.0, checkpoint_key=tmp_path / "key")


@pytest.fixture(scope="module")
def optimised():
    """Programs with all of LLVM's passes, for who makes many steps."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


@pytest.fixture(scope="module")
def as_users_have_them(optimised):
    """The same with XLA's present emitter of fused loops: bit by bit the programs of users."""
    from jax._src import (
        compiler,  # flags are read once in a process, and options of a program are its caller's
    )

    plain = compiler.get_compile_options

    def with_emitter(*given, **named):
        options = plain(*given, **named)
        options.env_option_overrides = [
            *options.env_option_overrides,
            ("xla_cpu_use_fusion_emitters", True),
        ]
        return options

    compiler.get_compile_options = with_emitter
    before = draw_pairs_at_once(2**15)
    yield
    draw_pairs_at_once(before)
    compiler.get_compile_options = plain


@pytest.fixture
def patched():
    """Apply a one-line bug, ``patched(module, name, value)``, or patches together,
    ``patched(*patches)``; the trainer's programs are compiled anew, and afterwards.
    """
    from contextlib import ExitStack

    from benchmarks.audit.bugs.bug import patched as with_patches

    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(
            with_patches(*(given if isinstance(given[0], tuple) else (given,)))
        )


@pytest.fixture(scope="session")
def few_pictures_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("patches")


@pytest.fixture
def few_pictures(monkeypatch, few_pictures_folder):
    """Filters and axes of patches come from 64 synthetic pictures, for who compares rows of one
    basis: the recipe itself has golden numbers (tests/features/test_patches.py)."""
    from lastiterate.features import patches

    monkeypatch.setattr(patches.Recipe, "pictures", 64)
    monkeypatch.setattr(patches, "cache_folder", lambda: few_pictures_folder)
    patches.basis_of.cache_clear()
    yield
    patches.basis_of.cache_clear()


ISSUED: list[dict] = []
"""Certificates that were written since the last look."""
CHECKED: set[str] = set()
"""What those say that hold, hashes aside: many tests write the same, and of other weights."""


def record_certificates():
    """Keep what the library writes as a certificate, once it is imported."""
    module = sys.modules.get("lastiterate.accounting.certificate_json")
    if module is None or hasattr(module.document, "plain"):
        return
    plain = module.document

    @functools.wraps(plain)
    def document(*given, **named):
        body = plain(*given, **named)
        ISSUED.append(body)
        return body

    document.plain = plain
    module.document = document


@pytest.fixture(autouse=True)
def issued_certificates_hold():
    """Certificates that a test writes hold under the independent checker, or it says that it does
    not cover them."""
    record_certificates()
    yield
    record_certificates()
    written = [json.loads(json.dumps(body)) for body in ISSUED]
    ISSUED.clear()
    for body in written:
        from lastiterate_check.check import REFUTED, canonical_hash, check

        said = json.dumps({name: body[name] for name in body if not name.endswith("sha256")})
        if said in CHECKED:
            assert body.get("content_sha256") in (None, canonical_hash(body))
            continue
        report = check(body)
        lines = "\n".join(report.lines)
        assert report.verdict != REFUTED, lines
        noise = (body.get("run") or {}).get("noise") or {}
        if noise.get("z", 1.0) >= 0.15:  # below, the checker's floats end: docs/explanation/trust
            assert "which is larger: not shown" not in lines, lines
        CHECKED.add(said)

"""What the process around a fit would write to disk: core dumps, and the compiler's debugging output."""

from __future__ import annotations

import os
import warnings

from lastiterate.errors import ExposureWarning

FLAGS = ("xla_dump_", "xla_hlo_profile", "xla_cpu_emit_", "xla_gpu_dump")
"""Compiler flags in ``XLA_FLAGS`` that write files."""
VARIABLES = ("JAX_DUMP_IR_TO", "JAX_DEBUG_LOG_MODULES", "JAX_LOG_COMPILES", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT")
"""Variables that make JAX log or write what it compiles; shapes and programs, and constants of the caller's loss."""


def exposures() -> tuple[str, ...]:
    """What is set that would write memory or programs to disk, in words."""
    risks = [f"{name} is set" for name in VARIABLES if os.environ.get(name, "0").lower() not in ("", "0", "false")]
    risks += [f"XLA_FLAGS holds {flag}" for flag in FLAGS if flag in os.environ.get("XLA_FLAGS", "")]
    try:
        import resource

        if resource.getrlimit(resource.RLIMIT_CORE)[0] != 0:
            risks.append("a crash writes a core dump (ulimit -c 0 prevents it)")
    except ImportError:  # Windows has no such limit
        pass
    return tuple(risks)


def warn_of_dumps() -> None:
    """Warn where hidden parameters, gradients or records could reach a disk without anybody writing them."""
    risks = exposures()
    if risks:
        warnings.warn("hidden state could be written to disk: " + "; ".join(risks), ExposureWarning, stacklevel=2)

#!/bin/sh
# Measure and check modules of torch on one or more GPUs, in under 8 minutes; without one, on the processor.
# From the root of a checkout, with PYTHON of an environment that has lastiterate[torch], and opacus for its lines:
#   PYTHON=.venv/bin/python sh benchmarks/gpu/run.sh
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
exec timeout 480 "$python" -m benchmarks.gpu.modules "$@"

"""Everything here needs torch, which has no build for some machines: then these tests are skipped,
and say so."""

import pytest

try:
    import torch

    torch.set_num_threads(1)  # small tensors: threads would wait for one another
except ImportError:
    torch = None
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    return None if torch is not None else "torch is not installed: tests/torch_modules is skipped"


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(0)

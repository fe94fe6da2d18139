"""A fit in a forked child would wait for threads that only its parent has."""

import importlib.util
import subprocess
import sys

CHILD = """
import os, numpy as np, lastiterate as li
from lastiterate.engine import Trainer, execute
from lastiterate.engine.network import fit_network
run = li.Run(n=4, steps=2, step_size=0.1, noise=li.GradientNoise(0.1), loss=li.Logistic(), clip=1.0)
X, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
def network():
    return fit_network(run, lambda p, x, y: (p * x).sum() + 0 * y, np.zeros(2), (X, y))
def again():
    from lastiterate.engine import keys_from_seed
    return Trainer(run).fit_many(X, y, keys_from_seed(0, 2))
def module():
    import torch
    from lastiterate.torch.module_training import fit_module
    return fit_module(run, torch.nn.Linear(1, 1), lambda out, y: (out * y).sum(), (X.astype(np.float32), y))
{before}
for after in {after}:
    if (child := os.fork()) == 0:
        try:
            exec(after)
            print("done", flush=True)
        except li.InputError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
{again}
"""
WAYS = ["execute(run, X, y)", "Trainer(run).fit(X, y)", "network()", "again()"]


def said(before, after, again="Trainer(run).fit(X, y)"):
    code = CHILD.format(before=before, after=after, again=again)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500
    ).stdout


def test_a_fit_in_a_child_forked_after_a_fit_is_refused():
    ways = [*WAYS, *["module()"] * (importlib.util.find_spec("torch") is not None)]
    told = said("Trainer(run).fit(X, y)", ways).splitlines()
    assert len(told) == len(ways)
    assert all("was forked after a fit" in line and "spawn" in line for line in told)


def test_a_fit_in_a_child_forked_before_the_first_fit_works():
    assert said("", ["Trainer(run).fit(X, y)"]) == "done\n"

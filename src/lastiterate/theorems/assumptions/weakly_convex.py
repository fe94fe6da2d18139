"""How long a step Proposition 2.1 of Kong and Ribero (2025) covers."""

from __future__ import annotations

from lastiterate.analysis.step_map import step_map
from lastiterate.analysis.weakly_convex_shift import longest_weakly_convex_step
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Assumption, Broken, Held

PAPER = "Kong, Ribero: Privacy of the last iterate in cyclically-traversed DP-SGD on nonconvex composite losses, " \
        "2025 (arXiv:2407.05237v3)"



def _weakly_convex_step(run: Run) -> Held | Broken:
    curvature = step_map(run)
    if curvature is None:
        return Broken("the step cannot be compared with 1/(M + m): state smooth=M, and strong=0 or weak_convexity=m")
    limit, step = longest_weakly_convex_step(curvature), run.first_step
    if step > limit:
        what = "1/(2 (M + m)), because clips can act" if curvature.clipped else "1/(M + m)"
        return Broken(f"the step size {step:g} must be at most {what}, here {limit:g} (Hessians between -m and M)")
    return Held(curvature.facts)



weakly_convex_step = Assumption(
    "weakly_convex_step", "a smooth loss, Hessian in [-m, M], step <= 1/(M + m), half of it where clips can act",
    _weakly_convex_step)

"""The solver of perturbed objectives: where minimisers lie, how near it ends and how far rounding
moves it, against minimisers that are found numerically and the formulas of
docs/theorems/objective-perturbation in 40 digits."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import chi2

import lastiterate as li
from lastiterate.analysis import perturbed_objective as solver
from lastiterate.run.methods import KEPT, contraction, last_noise, look_ahead


def described(
    classes=2, n=12, ridge=0.02, z=0.8, cap=None, row=1.0, intercept=0.5, columns=3, **more
):
    """A run that releases the minimiser of a classifier's perturbed objective."""
    common = {"row_norm": row, "intercept": intercept, "ridge": ridge, "cap": cap}
    loss = li.Logistic(**common) if classes == 2 else li.Softmax(classes=classes, **common)
    relative, steps, last = more.get("relative", 0.9), more.get("steps", 200), more.get("last", 0.1)
    return li.Run(
        n=n,
        steps=steps,
        step_size=relative / loss.facts().smooth.value,
        loss=loss,
        method=li.ObjectivePerturbation(columns * loss.outputs, last),
        noise=li.NoiseMultiplier(z),
    )


RUNS = {
    "two classes": described(),
    "five classes": described(5, n=3000, z=40.0, row=1.5, intercept=0.7, columns=6),
    "capped": described(3, n=7, ridge=0.3, z=5.0, cap=0.2, row=0.5, intercept=0.0),
    "capped, two classes": described(2, n=50, ridge=1e-3, z=0.1, cap=0.3, row=3.0, columns=9),
    "wide": described(2, n=10**5, ridge=0.01, z=3.0, row=0.2, intercept=0.1, columns=5000),
    "many records": described(4, n=10**8, ridge=0.05, z=2.0, relative=0.3, steps=40, last=2.0),
    "steep ridge": described(3, n=40, ridge=9.0, z=2.0, relative=0.94, steps=3),
}


# Against minimisers.


def draw_problem(rng, run, term):
    """The mean objective of random or of the worst records, with a linear term of norm ``term``."""
    classes, outputs = run.loss.target_classes, run.loss.outputs
    columns, n = run.method.parameters // outputs, run.n
    rows, labels = rng.normal(size=(n, columns)), rng.integers(0, classes, n)
    b = rng.normal(size=(outputs, columns))
    kind = rng.integers(3)
    if kind:  # all records, and the term, pull one way, or the term the other way
        rows[:], labels[:] = rows[0], classes - 1
        b = np.zeros((outputs, columns))
        b[-1] = rows[0] * (1 if kind == 1 else -1)
    rows *= math.hypot(run.loss.row_norm, run.loss.intercept) / np.linalg.norm(
        rows, axis=1, keepdims=True
    )
    b *= term / np.linalg.norm(b)

    def objective(flat):
        theta = flat.reshape(outputs, columns)
        scores = rows @ theta.T
        if classes == 2:
            signs, cap = 1 - 2 * labels, run.loss.cap or 1 - 1e-9
            wrong = signs * scores[:, 0]  # beyond the cap the loss is a straight line
            bend = math.log(cap / (1 - cap))
            losses = np.logaddexp(0, np.minimum(wrong, bend)) + cap * np.maximum(wrong - bend, 0)
            residuals = (signs * np.minimum(expit(wrong), cap))[:, None]
        else:
            top = scores.max(axis=1, keepdims=True)
            p = np.exp(scores - top)
            losses = np.log(p.sum(axis=1)) + top[:, 0] - scores[np.arange(n), labels]
            residuals = p / p.sum(axis=1, keepdims=True) - np.eye(classes)[labels]
        value = losses.mean() + run.loss.ridge / 2 * (theta**2).sum() + (b * theta).sum()
        return value, (residuals.T @ rows / n + run.loss.ridge * theta + b).ravel()

    return objective


def find_minimiser(objective, size):
    options = {"gtol": 1e-11, "ftol": 1e-16, "maxiter": 5000, "maxfun": 20_000, "maxcor": 30}
    return minimize(objective, np.zeros(size), jac=True, method="L-BFGS-B", options=options).x


def accelerate(run, objective, steps, error=None):
    """Iterates and points of accelerated steps, written down independently; ``error`` is added to
    every gradient."""
    here = before = np.zeros(run.method.parameters)
    iterates, points, a = [here], [], math.sqrt(run.first_step * 0.875 * run.loss.ridge)
    for _ in range(steps):
        point = here + (1 - a) / (1 + a) * (here - before)
        gradient = objective(point)[1]
        if error is not None:
            gradient = gradient + error(point)
        here, before = point - run.first_step * gradient, here
        iterates.append(here)
        points.append(point)
    return np.array(iterates), np.array(points)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"z": 10.0},
        {"z": 1e-3},
        {"cap": 0.3, "z": 0.5},
        {"classes": 3, "row": 1.5, "z": 3.0},
        {"classes": 4, "ridge": 0.5, "z": 0.05, "relative": 0.94},
    ],
)
def test_every_bound_holds_around_the_minimiser(settings):
    """Norm of the minimiser, first gap, points of gradients, distances after every step."""
    rng, run = np.random.default_rng(5), described(**settings)
    reached, gaps, aways = 0.0, 0.0, 0.0
    for _ in range(6):
        objective = draw_problem(rng, run, solver.perturbation(run))
        best = find_minimiser(objective, run.method.parameters)
        sure = np.linalg.norm(objective(best)[1]) / run.loss.ridge  # how far it may be from there
        assert sure < 1e-4
        length = np.linalg.norm(best)
        gap = objective(np.zeros_like(best))[0] - objective(best)[0]
        gap += 7 / 16 * run.loss.ridge * length**2
        assert length <= solver.radius(run) and gap <= solver.first_gap(run)
        iterates, points = accelerate(run, objective, 60)
        away = np.linalg.norm(points, axis=1).max()
        assert away <= solver.farthest(run)
        for steps in (1, 2, 7, 60):
            apart = np.linalg.norm(iterates[steps] - best)
            assert apart <= solver.distance(replace(run, steps=steps)) + sure
        reached = max(reached, length / solver.radius(run))
        gaps, aways = max(gaps, gap / solver.first_gap(run)), max(aways, away)
    assert reached > 0.2 and gaps > 0.2 and aways > 0.05 * solver.farthest(run), "not wasteful"


@pytest.mark.parametrize("error", [1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("relative", [0.5, 0.94])
def test_wrong_gradients_move_the_end_by_no_more_than_the_floor(monkeypatch, error, relative):
    """Gradients are wrong by as much as ``gradient_error`` allows, away from or around the
    minimiser, or at random."""
    rng, run = np.random.default_rng(8), described(relative=relative, ridge=0.1, steps=400)
    monkeypatch.setattr(solver, "gradient_error", lambda run: error)
    bound = solver.distance(run)
    floor = solver.floor(run)
    assert floor < solver.first_gap(run)
    objective = draw_problem(rng, run, solver.perturbation(run))
    best = find_minimiser(objective, run.method.parameters)
    gone = math.exp(math.log1p(-contraction(run)) * run.steps) * solver.first_gap(run)
    assert bound == pytest.approx(math.sqrt(2 * (gone + floor) / 0.1), rel=1e-8)
    found = 0.0
    for kind in range(3):

        def push(point, kind=kind):
            away = best - point if kind == 0 else rng.normal(size=best.size)
            away = np.array([1.0, 0, 0]) if kind == 1 else away
            return error * away / max(np.linalg.norm(away), 1e-300)

        iterates, _ = accelerate(run, objective, run.steps, push)
        found = max(found, np.linalg.norm(iterates[-1] - best))
    assert bound / 40 < found <= bound


@pytest.mark.parametrize("parameters", [2, 3, 10, 1000, 10**6])
def test_the_linear_term_is_longer_with_negligible_probability(parameters):
    """The tail of chi with as many degrees of freedom, and no more than e^(-14^2 / 2)."""
    run = described(columns=parameters)
    reach = solver.perturbation(run) * run.n / (0.8 * math.hypot(1, 0.5))
    assert reach == pytest.approx(math.sqrt(parameters) + 14, rel=1e-12)
    assert chi2.sf(reach**2, parameters) < math.exp(-98) < solver.FAILURE < 1e-41


# Determinants.


@pytest.mark.parametrize(
    ("classes", "cap"), [(2, None), (2, 0.3), (2, 0.5), (2, 0.7), (3, None), (3, 0.4), (6, None)]
)
def test_curvature_is_that_of_the_worst_record(classes, cap):
    """Eigenvalues of Hessians of the longest row, over probabilities, below and beyond the cap."""
    run, rng = (
        described(classes, cap=cap, row=1.5, intercept=0.7, ridge=0.4),
        (np.random.default_rng(3)),
    )
    count, trace = solver.curvature(run)
    square, most, dets = 1.5**2 + 0.7**2, 0.0, 0.0
    limit = 1.0 if cap is None else cap
    for trial in range(400):
        p = np.full(classes, 1 / classes) + (rng.dirichlet(np.ones(classes)) - 1 / classes) * (
            rng.uniform() if trial else 0
        )
        p /= p.sum()
        if classes == 2:  # where the residual is capped the loss is straight
            hessian = np.array([[p[0] * p[1] if p[0] <= limit else 0.0]])
        elif 1 - p[0] <= limit:
            hessian = np.diag(p) - np.outer(p, p)
        else:  # the label is the first class
            q = np.append(0.0, p[1:] / p[1:].sum())
            hessian = limit * (np.diag(q) - np.outer(q, q))
        values = np.linalg.eigvalsh(hessian) * square
        assert (values > 1e-9 * square).sum() <= count
        most = max(most, values.sum())
        dets = max(dets, np.log1p(values / (run.n * 0.4)).sum())
    if classes == 2:
        capped = limit * (1 - limit) if limit < 0.5 else 0.25
        most, dets = max(most, capped * square), max(dets, math.log1p(capped * square / 4.8))
    assert (count, most) == (classes - 1, pytest.approx(most)) and most <= trace
    assert dets <= solver.log_determinants(run)
    if cap is None or classes == 2:
        assert trace == pytest.approx(most, rel=1e-6)
        assert solver.log_determinants(run) == pytest.approx(dets, rel=1e-6)


def test_only_classifiers_have_determinants():
    other = li.Run(n=5, steps=1, step_size=0.1, loss=li.HuberRidge(ridge=0.1))
    with pytest.raises(TypeError, match="no classifier"):
        solver.curvature(other)


# The formulas in 40 digits.


def written_out(run):
    """What the page about the theorem says, in 40 digits."""
    with mpmath.workdps(40):
        m, n, facts = mpmath.mpf(run.loss.ridge), run.n, run.loss.facts()
        b, h = mpmath.mpf(facts.smooth.value), mpmath.mpf(run.first_step)
        classes, outputs, p = run.loss.target_classes, run.loss.outputs, run.method.parameters
        x = mpmath.sqrt(mpmath.mpf(run.loss.row_norm) ** 2 + mpmath.mpf(run.loss.intercept) ** 2)
        cap = 1 if run.loss.cap is None else run.loss.cap
        sigma = run.noise.z * cap * x * (1 if classes == 2 else mpmath.sqrt(2))
        tilt = sigma * (mpmath.sqrt(p) + 14) / n
        radius = mpmath.findroot(
            lambda r: m / 2 * r**2 - tilt * r - mpmath.log(classes),
            tilt / m + mpmath.sqrt(tilt**2 + m) / m,
        )
        gap = mpmath.log(classes) + tilt**2 / (2 * m) + m * radius**2 / 2
        away = radius + 3 * mpmath.sqrt(4 * gap / m)
        u, columns = mpmath.mpf(2) ** -53, p // outputs
        # scores of ``columns`` products, residuals half as steep; a few elementary functions a
        # class; sums of 1,024 gradients of at most sqrt 2 rows, and the sums of those; the ridge,
        # the linear term and the step
        scores = (columns + 2) * x * away / 2
        sums = mpmath.sqrt(2) * (1024 + mpmath.mpf(n) / 1024 + 8)
        step = 8 * (2 * x + tilt + m * away + 2 * away / h)
        error = 2 * u * (x * (scores + 64 * (outputs + 1) + sums) + step)
        a = mpmath.sqrt(h * m * 7 / 8)
        floor = (error**2 / (2 * (1 / h - b)) + 4 * error**2 / m) / a
        apart = mpmath.sqrt(2 / m * ((1 - a) ** run.steps * gap + floor))
        last = run.method.last * sigma / (n * b)
        return {
            "perturbation": tilt,
            "radius": radius,
            "first_gap": gap,
            "farthest": away,
            "gradient_error": error,
            "floor": floor,
            "distance": apart,
            "last_mu": 2 * apart / last,
        }


@pytest.mark.parametrize("name", RUNS)
def test_the_formulas_are_those_of_the_page(name):
    """Rounded up, and by next to nothing."""
    run = RUNS[name]
    for function, value in written_out(run).items():
        found = getattr(solver, function)(run)
        assert found == pytest.approx(float(value), rel=1e-8, abs=0), function
        if function in ("radius", "first_gap", "floor", "distance", "last_mu"):
            assert found >= value, function


def test_a_minimiser_that_rounding_hides_has_no_distance(monkeypatch):
    """Iterates stay within reach only while rounding adds less than the first gap."""
    run = RUNS["two classes"]
    gap = solver.first_gap(run)
    for floor, finite in ((gap * 0.999, True), (gap, True), (gap * 1.001, False)):
        monkeypatch.setattr(solver, "floor", lambda run, floor=floor: floor)
        assert math.isfinite(solver.distance(run)) == finite
        assert math.isfinite(solver.last_mu(run)) == finite


# Rounding.


@pytest.mark.parametrize("classes", [2, 4])
def test_gradients_in_single_precision_are_as_near_as_the_bound_says(monkeypatch, classes):
    """The bound with the unit roundoff of single precision, on equal records, whose roundings add
    up, and on random ones."""
    unit = 2.0**-24
    monkeypatch.setattr(solver, "U", unit)
    monkeypatch.setattr(solver, "ELEMENTARY", 64 * unit)
    run = described(classes, n=3000, z=200.0, ridge=0.05, columns=7)
    bound, rng, most = solver.gradient_error(run), np.random.default_rng(4), 0.0
    shape, length = (run.loss.outputs, 7), math.hypot(1, 0.5)
    for trial in range(6):
        rows = rng.normal(size=(run.n, 7))
        rows[:] = rows if trial % 2 else rows[0]
        rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
        labels = rng.integers(0, classes, run.n) * (trial % 2)
        theta, b = rng.normal(size=shape), rng.normal(size=shape)
        theta *= solver.farthest(run) * (0.1, 0.5, 1)[trial // 2] / np.linalg.norm(theta)
        b *= solver.perturbation(run) / np.linalg.norm(b)
        given = [part.astype(np.float32) for part in (rows, theta, b)]
        one = mean_gradient(run, *given, labels)
        two = mean_gradient(run, *(part.astype(np.float64) for part in given), labels)
        assert one.dtype == np.float32
        most = max(most, float(np.linalg.norm(one - two)))
    assert bound / 500 < most <= bound


def mean_gradient(run, rows, theta, b, labels):
    """The gradient of the mean objective in the precision of ``rows``, records one after the
    other."""
    classes = run.loss.target_classes
    scores = np.zeros((len(rows), len(theta)), rows.dtype)
    for column in range(rows.shape[1]):
        scores += rows[:, column, None] * theta[None, :, column]
    if classes == 2:
        residuals = expit(scores) - labels[:, None].astype(rows.dtype)
    else:
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals = p / p.sum(axis=1, keepdims=True) - np.eye(classes, dtype=rows.dtype)[labels]
    each = residuals[:, :, None] * rows[:, None, :]
    chunks = [np.cumsum(each[k : k + 1020], axis=0)[-1] for k in range(0, len(rows), 1020)]
    total = np.cumsum(chunks, axis=0, dtype=rows.dtype)[-1]
    return total / rows.dtype.type(run.n) + rows.dtype.type(run.loss.ridge) * theta + b


# Steps that are needed.


@pytest.mark.parametrize("name", [name for name in RUNS if name != "many records"])
def test_the_fewest_steps_for_a_tolerance(name):
    """As many steps reach it, and one step fewer does not."""
    run = RUNS[name]
    start = solver.last_mu(replace(run, steps=1))
    for mu in (0.9 * start, 0.1 * start, 1e-3 * start):
        steps = solver.steps_for(run, mu)
        assert solver.last_mu(replace(run, steps=steps)) <= mu * (1 + 1e-6)
        assert steps == 1 or solver.last_mu(replace(run, steps=steps - 1)) > mu
    assert solver.steps_for(run, 2 * start) == 1, "one step is the least"
    ends = 2 * math.sqrt(2 * solver.floor(run) / run.loss.ridge) / last_noise(run.method, run)
    assert solver.steps_for(run, ends * (1 - 1e-6)) is None, "rounding is larger"
    assert solver.steps_for(run, ends * (1 + 1e-6)) > solver.steps_for(run, 2 * ends) >= 1


def test_the_solver_looks_ahead_as_its_contraction_says():
    for run in RUNS.values():
        a = math.sqrt(run.first_step * KEPT * run.loss.ridge)
        assert contraction(run) == pytest.approx(a, rel=1e-12) and KEPT == 7 / 8
        assert look_ahead(run) == pytest.approx((1 - a) / (1 + a), rel=1e-12)

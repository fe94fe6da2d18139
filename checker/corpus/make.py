"""Write the corpus: small certificates of every theorem, half of them false.

    python checker/corpus/make.py [trained|altered]

``trained`` makes only those again that the command line writes: the automatic plan of every bundled
set, and every named algorithm. They are whole certificates of real trainings. ``altered`` makes
only the false ones of these again.

The true ones are issued by lastiterate: a run, a theorem and its epsilon. The false ones are made
of them: one thing is changed, the epsilon stays, and the bound that the checker computes for what
is described then lies above it by a factor of 1.002 to 10. ``index.json`` says for every file what
was changed and what the checker computes.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import lastiterate as li

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from lastiterate_check.check import canonical_hash, check  # noqa: E402
from lastiterate_check.run import BadInput  # noqa: E402

D = li.domains
LOGISTIC, CAPPED = li.Logistic(ridge=0.01), li.Softmax(classes=4, ridge=0.02, cap=0.1)
WEAK = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, weak_convexity=0.1))
WHITE = (li.PrivateMean(20.0, 1.0), li.PrivateCovariance(25.0))


def run(**changed):
    """A run with usual fields, but for what is changed."""
    usual = {
        "n": 1000,
        "steps": 50,
        "step_size": 0.5,
        "loss": LOGISTIC,
        "noise": li.NoiseMultiplier(6.0),
    }
    return li.Run(**{**usual, **changed})


def gibbs(loss, step, std, strong):
    """Langevin noise with the start that the strongly convex theorems ask for."""
    temperature = step * std**2 / 2
    return {
        "loss": loss,
        "step_size": step,
        "noise": li.GradientNoise(std),
        "start": li.GaussianStart((2 * temperature / strong) ** 0.5),
    }


def specifications():
    """(name, theorem, run, delta) of the true certificates."""
    block, secret = li.Cyclic(100), li.Permuted(100)
    yield "full", "composition-gdp", run(), 1e-5
    yield "full-one-step", "composition-gdp", run(steps=1), 1e-5
    yield (
        "full-million-steps",
        "composition-gdp",
        run(steps=10**6, noise=li.NoiseMultiplier(2e3)),
        1e-6,
    )
    yield "full-tiny-delta", "composition-gdp", run(), 1e-15
    yield "full-small-epsilon", "composition-gdp", run(noise=li.NoiseMultiplier(3e4)), 1e-5
    yield "full-large-epsilon", "composition-gdp", run(noise=li.NoiseMultiplier(1.5)), 1e-5
    yield "full-all-released", "composition-gdp", run(release="all"), 1e-6
    yield "full-replace-one", "composition-gdp", run(adjacency="replace-one"), 1e-5
    yield (
        "full-units",
        "composition-gdp",
        run(rows_per_unit=3, noise=li.NoiseMultiplier(20.0)),
        1e-5,
    )
    yield (
        "full-schedule",
        "composition-gdp",
        run(noise=li.GradientNoise(tuple(0.01 + 0.0001 * k for k in range(50)))),
        1e-5,
    )
    yield "full-prepared", "composition-gdp", run(preprocessing=WHITE), 1e-5
    yield "full-calibrated", "composition-gdp", run(calibration=li.Calibration(30.0)), 1e-5
    yield "full-counted", "composition-gdp", run(counts=(li.NoisyCount(40.0, 200),)), 1e-5
    yield (
        "full-counted-apart",
        "composition-gdp",
        run(counts=(li.NoisyCount(5.0, 200, "apart"),)),
        1e-5,
    )
    yield (
        "allocated-counted-apart",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100), counts=(li.NoisyCount(3.0, 200, "apart"),)),
        1e-5,
    )
    yield (
        "full-groups",
        "composition-gdp",
        run(counts=(li.NoisyGroups(30.0, 200, ("a", "b")),)),
        1e-5,
    )
    yield "full-momentum", "composition-gdp", run(update=li.HeavyBall(0.9)), 1e-5
    yield "cyclic-composition", "composition-gdp", run(batching=block), 1e-5
    yield (
        "reshuffled-schedule",
        "composition-gdp",
        run(
            batching=li.Reshuffled(100),
            noise=li.GradientNoise(tuple(0.05 + 0.001 * (k % 7) for k in range(50))),
        ),
        1e-5,
    )
    yield "tail-average", "composition-gdp", run(method=li.TailAverage(0.5)), 1e-5
    yield "correlated", "correlated-gdp", run(batching=block, noise=li.Correlated(4.0, 8)), 1e-5
    yield (
        "correlated-decay",
        "correlated-gdp",
        run(batching=block, noise=li.Correlated(4.0, 1, decay=0.9)),
        1e-6,
    )
    yield (
        "correlated-signs",
        "correlated-gdp",
        run(batching=block, noise=li.Correlated(4.0, (1.0, -0.4, 0.1))),
        1e-5,
    )
    yield (
        "correlated-permuted",
        "correlated-gdp",
        run(batching=secret, noise=li.Correlated(3.0, 20)),
        1e-5,
    )
    yield (
        "langevin-composition",
        "composition-langevin",
        run(noise=li.Langevin(0.05), steps=30),
        1e-5,
    )
    yield "langevin-linear", "langevin-linear", run(noise=li.Langevin(0.05), steps=30), 1e-6
    yield (
        "langevin-strong",
        "langevin-strongly-convex",
        run(**gibbs(li.Logistic(ridge=0.1), 0.5, 0.02, 0.1)),
        1e-5,
    )
    yield (
        "sgld-strong",
        "sgld-strongly-convex",
        run(**gibbs(li.Logistic(ridge=0.1), 0.5, 0.02, 0.1)),
        1e-6,
    )
    yield (
        "sgld-batch",
        "sgld-strongly-convex-batch",
        run(batching=block, loss=li.Logistic(ridge=0.1), noise=li.Langevin(0.1)),
        1e-5,
    )
    yield "weakly-convex", "cyclic-weakly-convex", run(batching=block, loss=WEAK), 1e-5
    yield (
        "weakly-convex-unfinished",
        "cyclic-weakly-convex",
        run(batching=block, loss=WEAK, steps=47),
        1e-5,
    )
    yield (
        "weakly-convex-bounded",
        "cyclic-weakly-convex-bounded",
        run(batching=block, loss=WEAK, steps=2000, domain=D.Ball(0.05)),
        1e-5,
    )
    yield "iteration", "pabi-convex", run(batching=block), 1e-5
    yield "iteration-one-pass", "pabi-convex", run(batching=li.Cyclic(10), steps=100), 1e-5
    yield "bounded-convex", "bounded-domain-convex", run(domain=D.Ball(0.02), steps=3000), 1e-5
    yield (
        "bounded-box",
        "bounded-domain-convex",
        run(domain=D.Box(-0.01, 0.01, 4), steps=3000),
        1e-6,
    )
    yield "shifts-full", "shifted-interpolation", run(steps=500), 1e-5
    yield "shifts-cyclic", "shifted-interpolation", run(batching=block), 1e-5
    yield "shifts-short-block", "shifted-interpolation", run(n=950, batching=block), 1e-5
    yield "shifts-capped", "shifted-interpolation", run(batching=block, loss=CAPPED), 1e-6
    yield (
        "shifts-clipped",
        "shifted-interpolation",
        run(batching=block, loss=li.Softmax(classes=3, ridge=0.1), clip=0.5, step_size=0.1),
        1e-5,
    )
    yield (
        "shifts-prox",
        "shifted-interpolation",
        run(batching=block, prox=li.penalties.L2Squared(0.05)),
        1e-5,
    )
    yield (
        "shifts-ball",
        "shifted-interpolation",
        run(batching=block, domain=D.Ball(0.03), steps=400),
        1e-5,
    )
    yield (
        "shifts-schedule",
        "shifted-interpolation",
        run(batching=block, step_size=tuple(1 / (1 + k / 20) for k in range(50))),
        1e-5,
    )
    yield (
        "shifts-replace-one",
        "shifted-interpolation",
        run(batching=block, adjacency="replace-one"),
        1e-5,
    )
    yield "shifts-decay", "shifted-interpolation", run(step_size=li.InverseDecay(1.0, 0.05)), 1e-5
    yield "permuted", "shifted-interpolation-permuted", run(batching=secret), 1e-5
    yield (
        "permuted-units",
        "shifted-interpolation-permuted",
        run(batching=secret, rows_per_unit=2, noise=li.NoiseMultiplier(12.0)),
        1e-5,
    )
    yield (
        "permuted-replace-one",
        "shifted-interpolation-permuted",
        run(batching=secret, adjacency="replace-one"),
        1e-5,
    )
    yield (
        "permuted-prepared",
        "shifted-interpolation-permuted",
        run(batching=secret, preprocessing=WHITE),
        1e-6,
    )
    yield (
        "permuted-measured",
        "shifted-interpolation-permuted",
        run(
            batching=secret,
            preprocessing=(li.TopEigenvalue(30.0),),
            step_size=li.RelativeToSmooth(1.8),
        ),
        1e-5,
    )
    yield (
        "permuted-many-blocks",
        "shifted-interpolation-permuted",
        run(batching=li.Permuted(2), steps=1500),
        1e-5,
    )
    yield "reshuffled", "shifted-interpolation-reshuffled", run(batching=li.Reshuffled(100)), 1e-5
    yield (
        "reshuffled-two-blocks",
        "shifted-interpolation-reshuffled",
        run(batching=li.Reshuffled(500), steps=12),
        1e-5,
    )
    yield "bins-last", "shifted-interpolation-bins", run(batching=li.BallsInBins(100)), 1e-5
    yield (
        "allocated-last",
        "shifted-interpolation-allocated",
        run(batching=li.RandomAllocation(100)),
        1e-5,
    )
    yield (
        "poisson",
        "poisson-pld",
        run(batching=li.Poisson(0.05), noise=li.NoiseMultiplier(1.0)),
        1e-5,
    )
    yield (
        "poisson-renyi",
        "poisson-rdp",
        run(batching=li.Poisson(0.05), noise=li.NoiseMultiplier(1.0)),
        1e-5,
    )
    yield (
        "poisson-add-remove",
        "poisson-pld",
        run(batching=li.Poisson(0.02), noise=li.NoiseMultiplier(1.2), adjacency="add-remove"),
        1e-6,
    )
    yield (
        "poisson-replace-one",
        "poisson-pld",
        run(batching=li.Poisson(0.02), noise=li.NoiseMultiplier(1.2), adjacency="replace-one"),
        1e-6,
    )
    yield "poisson-units", "poisson-pld", run(batching=li.Poisson(0.01), rows_per_unit=2), 1e-5
    yield (
        "poisson-prepared",
        "poisson-pld",
        run(batching=li.Poisson(0.02), preprocessing=WHITE),
        1e-5,
    )
    yield (
        "poisson-counted",
        "poisson-pld",
        run(batching=li.Poisson(0.02), counts=(li.NoisyCount(20.0, 99),)),
        1e-5,
    )
    yield (
        "poisson-one-step",
        "poisson-pld",
        run(batching=li.Poisson(0.1), steps=1, noise=li.NoiseMultiplier(1.0)),
        1e-6,
    )
    yield (
        "poisson-long",
        "poisson-pld",
        run(batching=li.Poisson(0.001), steps=20000, noise=li.NoiseMultiplier(1.0)),
        1e-6,
    )
    yield (
        "snapshots",
        "variance-reduction",
        run(
            batching=li.Poisson(0.05),
            method=li.VarianceReduced(10, 3.0),
            noise=li.NoiseMultiplier(2.0),
        ),
        1e-5,
    )
    yield "allocation", "random-allocation-pld", run(batching=li.RandomAllocation(100)), 1e-5
    yield (
        "allocation-loud",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(50), noise=li.NoiseMultiplier(0.8), steps=40),
        1e-6,
    )
    yield (
        "allocation-unfinished",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100), steps=43, noise=li.NoiseMultiplier(2.0)),
        1e-5,
    )
    yield (
        "allocation-add-remove",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100), adjacency="add-remove"),
        1e-6,
    )
    yield (
        "allocation-tiny-delta",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100)),
        1e-12,
    )
    yield (
        "allocation-replace-one",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100), adjacency="replace-one"),
        1e-5,
    )
    yield (
        "allocation-momentum",
        "random-allocation-pld",
        run(batching=li.RandomAllocation(100), update=li.HeavyBall(0.9), preprocessing=WHITE),
        1e-5,
    )
    yield "bins-all", "balls-in-bins-pld", run(batching=li.BallsInBins(100), release="all"), 1e-5
    yield (
        "bins-unfinished",
        "balls-in-bins-pld",
        run(batching=li.BallsInBins(100), release="all", steps=44),
        1e-5,
    )
    yield "subsets", "fixed-size-amplified", run(batching=li.FixedSize(50)), 1e-5
    yield (
        "subsets-replace-one",
        "fixed-size-amplified",
        run(batching=li.FixedSize(50), adjacency="replace-one"),
        1e-5,
    )
    contract = li.Logistic(ridge=0.3, intercept=0.0)
    for kind, batching in (("poisson", li.Poisson(0.1)), ("allocation", li.RandomAllocation(100))):
        yield (
            f"restarted-{kind}",
            f"restarted-{kind}-pld",
            run(
                batching=batching,
                loss=contract,
                step_size=1.0,
                noise=li.NoiseMultiplier(2.0),
                steps=100,
            ),
            1e-5,
        )
    yield (
        "restarted-subsets",
        "restarted-fixed-size",
        run(
            batching=li.FixedSize(100),
            loss=contract,
            step_size=1.0,
            noise=li.NoiseMultiplier(2.0),
            steps=100,
        ),
        1e-5,
    )
    for kind, batching in (
        ("poisson", li.Poisson(0.1)),
        ("allocated", li.RandomAllocation(100)),
        ("fixed-size", li.FixedSize(100)),
    ):
        yield (
            f"delayed-{kind}",
            f"delayed-shifts-{kind}",
            run(
                batching=batching,
                loss=contract,
                step_size=1.0,
                noise=li.NoiseMultiplier(3.0),
                steps=30,
            ),
            1e-5,
        )
    yield (
        "perturbed",
        "objective-perturbation",
        run(
            method=li.ObjectivePerturbation(8),
            steps=400,
            loss=li.Logistic(ridge=0.05),
            noise=li.NoiseMultiplier(4.0),
        ),
        1e-5,
    )
    yield (
        "perturbed-classes",
        "objective-perturbation",
        run(
            method=li.ObjectivePerturbation(20),
            steps=400,
            loss=li.Softmax(classes=4, ridge=0.05),
            noise=li.NoiseMultiplier(4.0),
        ),
        1e-6,
    )


ALGORITHMS = ["noisy-gd", "dp-sgld", "cyclic-dp-sgd", "permuted-sgd", "bins-sgd"]
ALGORITHMS += ["allocation-sgd", "poisson-dp-sgd", "correlated-sgd", "noisy-sgd", "dp-svrg"]
ALGORITHMS += ["objective-perturbation", "output-perturbation", "forgetting-sgd"]
TRAINED = {
    **{f"set-{name}": [name] for name in ("digits", "breast_cancer", "wine", "iris", "diabetes")},
    "set-digits-loud": ["digits", "--epsilon", "8"],
    "set-replace-one": ["breast_cancer", "--epsilon", "2", "--adjacency", "replace-one"],
    "set-add-remove": [
        "breast_cancer",
        "--epsilon",
        "2",
        "--adjacency",
        "add-remove",
        "--n",
        "569",
    ],
    **{f"algorithm-{name}": ["breast_cancer", "--algorithm", name] for name in ALGORITHMS},
}
"""Arguments of ``lastiterate train``, at epsilon 1 where none is given."""


def trained(arguments, folder):
    """The certificate that ``lastiterate train`` writes."""
    out = folder / "model"
    command = [sys.executable, "-m", "lastiterate", "train", *arguments, "--out", str(out)]
    command += [] if "--epsilon" in arguments else ["--epsilon", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((out / "certificate.json").read_text())


def issued(theorem, described, delta):
    """The certificate of one theorem, without what follows from it."""
    evidence = (
        li.Evidence.ENFORCED
        if type(described.loss) is not li.KnownConstants
        else li.Evidence.ASSUMED
    )
    certificate = li.account(described, at_least=evidence)
    body = {
        "epsilon": certificate.curve(theorem).epsilon(delta),
        "delta": delta,
        "adjacency": described.adjacency,
        "theorem": theorem,
        "run": described.to_dict(),
        "at_least": evidence.name,
        "format": 3,
        "library": f"lastiterate {li.__version__}",
    }
    return hashed(json.loads(json.dumps(body)))


def hashed(body):
    """The same with its own hash."""
    body = {key: value for key, value in body.items() if key != "content_sha256"}
    return {**body, "content_sha256": canonical_hash(body)}


def false_ones(name, body):
    """(name, what was changed, the certificate) of changes that may make a certificate false."""

    def changed(what, edit):
        other = copy.deepcopy(body)
        edit(other, other["run"])
        return f"{name}--{what}", what, hashed(other)

    def less_noise(factor):
        def edit(_, run):
            key = {"NoiseMultiplier": "z", "Correlated": "z", "Langevin": "sigma"}.get(
                run["noise"]["type"], "std"
            )
            value = run["noise"][key]
            run["noise"][key] = (
                [x / factor for x in value] if isinstance(value, list) else value / factor
            )

        return edit

    for factor in (1.002, 1.01, 1.1, 2.0, 8.0):
        yield changed(
            f"epsilon-over-{factor}", lambda b, _, f=factor: b.update(epsilon=b["epsilon"] / f)
        )
    for factor in (1.003, 1.05, 1.5):
        yield changed(f"noise-over-{factor}", less_noise(factor))
    if body["run"]["step_size"]["type"] == "Constant":
        yield changed("steps-times-2", lambda _, r: r.update(steps=2 * r["steps"]))
    if body["run"]["noise"]["type"] in ("GradientNoise", "Langevin"):
        yield changed("n-times-0.9", lambda _, r: r.update(n=int(r["n"] * 0.9)))
    if "size" in body["run"]["batching"]:
        yield changed(
            "batch-size", lambda _, r: r["batching"].update(size=int(r["batching"]["size"] * 1.3))
        )
    if body["adjacency"] == "zero-out" and "pld" not in body["theorem"]:
        yield changed(
            "adjacency",
            lambda b, r: (b.update(adjacency="replace-one"), r.update(adjacency="replace-one")),
        )
    if body["theorem"] != "composition-gdp" and "perturbed" not in name and name != "snapshots":
        yield changed("theorem", lambda b, _: b.update(theorem="composition-gdp"))
    yield changed(
        "other-theorem",
        lambda b, _: b.update(
            theorem="pabi-convex" if body["run"]["release"] == "all" else "balls-in-bins-pld"
        ),
    )
    if body["run"]["loss"]["type"] == "Logistic" and body["run"]["loss"]["ridge"] > 0:
        yield changed("ridge-left-out", lambda _, r: r["loss"].update(ridge=0.0))
    yield changed("all-released", lambda _, r: r.update(release="all"))


def altered_whole(name, body):
    """The same of whole certificates: their other statements, facts and preparation too."""

    def changed(what, edit):
        other = copy.deepcopy(body)
        edit(other)
        return f"{name}--{what}", what, hashed(other)

    def louder(body):
        for step in body["run"]["prelude"]:
            step["noise_multiplier"] = step["noise_multiplier"] / 1.5

    def restate(place):
        def edit(body):
            row = body["stated"]["guarantees"][place]
            row["epsilon"] = row["epsilon"] / 1.01

        return edit

    if body["stated"]["guarantees"][-1]["epsilon"] is not None:
        yield changed("one-delta-restated", restate(-1))
    if body["epsilon_replace_one"] is not None:
        yield changed(
            "replace-one-restated",
            lambda b: b.update(epsilon_replace_one=b["epsilon_replace_one"] / 1.01),
        )
    steps = body["run"].get("prelude")
    if steps and all("noise_multiplier" in step for step in steps):
        yield changed("preparation-louder", louder)
    if body["run"].get("rows_per_unit", 1) == 1:
        yield changed("two-rows-each", lambda b: b["run"].update(rows_per_unit=2))
    yield from false_ones(name, body)


def add(index, folder, name, body):
    """Keep a true certificate that the checker shows; whether it does."""
    report = check(body)
    if report.verdict != "holds":
        print("NOT SHOWN", name, body["epsilon"], report.lines[-1])
        return False
    row = {"true": True, "epsilon": body["epsilon"], "computed": report.own.get("epsilon")}
    index[name] = row
    (folder / f"{name}.json").write_text(json.dumps(body, separators=(",", ":")) + "\n")
    print(name, body["theorem"], body["epsilon"], report.own.get("epsilon"), flush=True)
    return True


def add_trained(index, folder):
    """What the command line writes for bundled sets and named algorithms."""
    for name, arguments in TRAINED.items():
        with tempfile.TemporaryDirectory() as place:
            add(index, folder, name, trained(arguments, Path(place)))


def add_altered(index, folder, seen):
    """Keep one false certificate for each that the command line wrote."""
    for name in TRAINED:
        for old in folder.glob(f"{name}--*.json"):
            old.unlink()
            del index[old.stem]
        body = json.loads((folder / f"{name}.json").read_text())
        add_false(index, folder, name, altered_whole(name, body), seen)


def add_false(index, folder, name, changes, seen):
    """Keep one changed certificate that the checker does not show, of a kind that is still rare."""
    for other, kind, wrong in sorted(changes, key=lambda one: seen.get(one[1], 0)):
        try:
            found = check(wrong)
        except BadInput:
            continue
        own = None if kind.endswith("-restated") else found.own.get("epsilon")
        if found.verdict == "holds" or (
            own is not None and not 1.002 <= own / wrong["epsilon"] * 1.0000005 <= 10
        ):
            continue
        seen[kind] = seen.get(kind, 0) + 1
        row = {"true": False, "changed": kind, "epsilon": wrong["epsilon"], "computed": own}
        index[other] = row
        (folder / f"{other}.json").write_text(json.dumps(wrong, separators=(",", ":")) + "\n")
        return


def main():
    """Write all files and the index."""
    folder, place = HERE / "certificates", HERE / "index.json"
    folder.mkdir(exist_ok=True)
    index, seen = {}, {}
    if sys.argv[1:]:
        index = json.loads(place.read_text())
        kinds = [row["changed"] for row in index.values() if not row["true"]]
        seen = {kind: kinds.count(kind) for kind in kinds}
    else:
        for old in folder.glob("*.json"):
            old.unlink()
        for name, theorem, described, delta in specifications():
            body = issued(theorem, described, delta)
            if add(index, folder, name, body):
                add_false(index, folder, name, false_ones(name, body), seen)
    if "altered" not in sys.argv[1:]:
        add_trained(index, folder)
    add_altered(index, folder, seen)
    place.write_text(json.dumps(index, indent=1) + "\n")
    false = sum(not row["true"] for row in index.values())
    print(len(index), "certificates,", false, "of them false:", seen)


if __name__ == "__main__":
    main()

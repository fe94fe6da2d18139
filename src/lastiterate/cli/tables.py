"""What the terminal shows of certificates and models, as tables and as JSON."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import (
    CAVEATS,
    UNNAMED,
    finite,
    format_rounded_up,
    units,
)
from lastiterate.accounting.explain import explain_gain
from lastiterate.cli.app import translate_to_flags
from lastiterate.data.columns import Words
from lastiterate.features.column_maps import FEW, Curves
from lastiterate.features.map_registry import describe_maps
from lastiterate.planning.planner import Choice, share_words
from lastiterate.planning.predicted_risk import predict_scores
from lastiterate.release.units import find_id_columns
from lastiterate.run.losses import KnownConstants
from lastiterate.run.noise import Correlated, NoiseMultiplier
from lastiterate.run.preprocessing import PrivateMean
from lastiterate.run.probability_calibration import AssumedSlope, Calibration, weighs_classes
from lastiterate.run.updates import HeavyBall

if TYPE_CHECKING:
    from lastiterate.data.schema import Schema
    from lastiterate.release.file_training import TrainResult
    from lastiterate.run.run import Run


# What ``--json`` prints: the numbers of the screens, pure functions of what they are given.


def model_to_json(result: TrainResult, where: str) -> dict[str, Any]:
    """A released model in short: its budget, what certifies it, scores on data that are public
    (``null`` where there are none), the run in a few numbers. The folder's ``certificate.json`` has
    all of it.
    """
    model, certificate, delta = result.model, result.model.certificate, result.model.delta
    best, run = certificate.best(delta), certificate.subject.run
    return {
        "model": where,
        "kind": model.form,
        "epsilon": finite(certificate.epsilon(delta)),
        "delta": delta,
        "adjacency": certificate.adjacency,
        "replace_one_epsilon": finite(certificate.replace_one_epsilon(delta)),
        "unit": certificate.unit or None,
        "theorem": None if best is None else best.theorem.name,
        "accuracies": [vars(score) for score in getattr(model, "accuracies", ())],
        "test_score": result.test_score,
        "test_scores": None if result.scores is None else vars(result.scores),
        "plain_score": result.plain_score,
        "run": None if run is None else summary(run),
        "features": result.features or None,
        "plan": None if result.choice is None else result.choice.best.name,
        "caveats": list(certificate.all_caveats()),
    }


def summary(run: Run) -> dict[str, Any]:
    """A run in a few numbers."""
    noise = run.noise
    return {
        "n": run.n,
        "steps": run.steps,
        "batching": run.batching.word,
        "expected_batch": run.batching.expected_batch(run.n),
        "noise_multiplier": noise.z if isinstance(noise, NoiseMultiplier | Correlated) else None,
        "method": run.method.words(run),
    }


def plans_as_json(choice: Choice, delta: float) -> dict[str, Any]:
    """The plans_as_json that were considered, the chosen one first."""
    listed: list[dict[str, Any]] = []
    for plan in choice.plans:
        certificate = plan.certificate
        noise = certificate.run.noise
        charged = {
            row["theorem"]: row["epsilon"]
            for row in certificate.rows(delta)
            if row["applies"] and row["kind"] == "upper" and row["epsilon"] is not None
        }
        scores = predict_scores(certificate.run, plan.risk)
        listed.append(
            {
                "plan": plan.name,
                "predicted_risk": finite(plan.risk),
                "predicted_log_loss_above_best": None
                if scores is None
                else finite(scores.log_loss),
                "predicted_accuracy_below_best": None
                if scores is None
                else finite(scores.accuracy),
                "seconds": plan.seconds,
                "noise_multiplier": noise.z
                if isinstance(noise, NoiseMultiplier | Correlated)
                else None,
                "ledger_share": None if plan.share is None else finite(plan.share),
                "fits_ledger": plan.fits,
                "epsilon_by_theorem": charged,
                "run": certificate.run.to_dict(),
            }
        )
    return {
        "delta": delta,
        "chosen": choice.best.name,
        "without_ledger": choice.alone,
        "plans": listed,
        "output_perturbation_risk": finite(choice.floor),
    }


# What the terminal shows: tables and short texts from certificates; pure functions of what they are
# given.


HIDES = {
    "zero-out": "zero-out hides its presence, replace-one also its values",
    "replace-one": "replace-one hides its values and its presence",
    "add-remove": "add-remove hides its presence and the number of records, not its values",
}
"""What a certificate hides about a record, by adjacency."""
HIDES_ROWS = "what its rows say is hidden, not how many they are"
"""The same of a unit where rows are the records, whose number is public."""

STANDARD = ("holds if the run is executed exactly as described", *CAVEATS)
"""Caveats of every run, which the screen says in one sentence."""


def show_model(console: Console, result: TrainResult, where: str) -> None:
    """The one screen that ``train`` ends with."""
    model = result.model
    certificate, delta = model.certificate, model.delta
    table = Table.grid(padding=(0, 2))
    table.add_row("privacy", _describe_epsilon(certificate, delta))
    table.add_row(
        "protects",
        _describe_unit(getattr(model, "run", None), certificate, delta),
    )
    for row in _person_rows(model):
        table.add_row(*row)
    kinds = {
        "linear": lambda: _run_rows(model),
        "selected": lambda: _selection_rows(model),
        "exact": lambda: _exact_rows(model),
    }
    for row in kinds.get(model.form, lambda: _sample_rows(model))():
        table.add_row(*row)
    if model.schema is not None and model.schema.features:
        table.add_row("features", describe_maps(model.schema.features) + _weigh_curves(result))
    for row in _column_rows(model):
        table.add_row(*row)
    if model.schema is not None and model.schema.target_range is not None:
        low, high = model.schema.target_range
        table.add_row("predicts", escape(f"{model.schema.target}, within [{low:g}, {high:g}]"))
    if said := getattr(getattr(model, "answers", None), "about_threshold", ""):
        table.add_row("predicts", escape(said))
    what = measure(model)
    if result.test_score is not None:
        table.add_row(f"test {what}", _describe_score(result))
    for row in _class_rows(result):
        table.add_row(*row)
    for accuracy in getattr(model, "accuracies", ()):
        table.add_row("accuracy", str(accuracy))
    table.add_row("conditions", escape(_describe_conditions(certificate)))
    table.add_row("model", escape(where))
    console.print(Panel(table, title="released: one model", expand=False))


def _weigh_curves(result: TrainResult) -> str:
    """What may suit a regression better, where the budget carries few knots only."""
    schema, order = result.model.schema, result.order
    if schema is None or not schema.regression or order.features != "auto":
        return ""
    few = any(isinstance(one, Curves) and one.knots == FEW for one in schema.features)
    straight = f"; {_name_straight(schema)} suits straight effects better, but another fit is charged again"
    return straight if few else ""


def _describe_score(result: TrainResult) -> str:
    """A score on public data, and what it has to be compared with."""
    scores, others = result.scores, list[str]()
    if result.plain_score is not None:
        others.append(f"{result.plain_score:.3f} without privacy")
    if scores is not None and scores.largest_class is not None:
        others.append(f"always {scores.largest_class}: {scores.largest_share:.3f}")
    if scores is not None and scores.beyond:
        others.append(scores.beyond)
    compared = f" ({escape('; '.join(others))})" if others else ""
    return f"[bold]{result.test_score:.3f}[/bold], public data{compared}"


def _describe_epsilon(certificate: Certificate, delta: float) -> str:
    """Epsilon under the certificate's adjacency, and under replace-one where it differs."""
    epsilon, other = certificate.epsilon(delta), certificate.replace_one_epsilon(delta)
    said = f"[bold]epsilon {format_rounded_up(epsilon)}[/bold] at delta {delta:g}"
    if other == epsilon:
        return f"{said} ({certificate.adjacency})"
    known = format_rounded_up(other) if math.isfinite(other) else "unknown"
    return f"{said} ({certificate.adjacency}; replace-one {known})"


def _describe_conditions(certificate: Certificate) -> str:
    """Everything that the certificate rests on; what every run rests on as one sentence."""
    caveats = certificate.all_caveats()
    if certificate.unit:  # train bounds the rows of a named unit: the row "rows used" says so
        bound = units(certificate.subject.describe_unit(certificate.unit)["rows"])
        caveats = tuple(caveat for caveat in caveats if caveat != bound)
    special = [translate_to_flags(caveat) for caveat in caveats if caveat not in STANDARD]
    if not all(caveat in caveats for caveat in STANDARD):
        return "; ".join(map(translate_to_flags, caveats))
    return "; ".join(
        (
            *special,
            "the run is executed as described, in double precision; iterates, gradients, noise, seed "
            "stay secret; other releases add up",
        )
    )


def measure(model: object) -> str:
    """What the scores of a model are."""
    from lastiterate.release.linear_model import FittedLinear
    from lastiterate.release.score_meaning import Labels

    return (
        "accuracy"
        if isinstance(model, FittedLinear) and isinstance(model.answers, Labels)
        else "R^2"
    )


def _describe_unit(run: Run | None, certificate: Certificate, delta: float) -> str:
    """Whom the numbers are about, and what is hidden of them."""
    adjacency, unit = certificate.adjacency, certificate.unit
    rows = 1 if run is None else max(run.rows_per_unit, run.rows_per_record)
    if unit:
        hidden = HIDES[adjacency]
        if run is not None and run.rows_per_unit > 1 and not run.nominal:
            hidden = HIDES_ROWS
        whose = "one unit" if unit == UNNAMED else escape(f"one {unit}")
        counted = f"{rows} rows, all of them together" if rows > 1 else "1 row"
        return f"{whose} with at most {counted}; {hidden}"
    if rows == 1:
        two = certificate.group(2, delta)
        known = format_rounded_up(two) if math.isfinite(two) else "nothing is certified"
        return (
            f"one row; {HIDES[adjacency]}; 2 rows of a person: {known}; k rows: more than k times"
        )
    return f"one unit with at most {rows} rows, all of them together; {HIDES[adjacency]}"


def describe_protection(ids: tuple[str, ...]) -> str:
    """How all rows of one person are protected together; one of ``ids`` may name the person."""
    if len(ids) == 1:
        return f"--unit {shlex.quote(ids[0])} protects all rows of one {ids[0]} together"
    return (
        f"--unit COLUMN protects all rows of a person together: {' or '.join(ids)}, whichever "
        "names the person"
    )


def _person_rows(model: Any) -> list[tuple[str, str]]:
    """How many rows of persons were used, all of it public; or how persons are protected, where
    the schema has a column of identifiers that nobody named; or nothing.
    """
    unit, run = model.certificate.unit, cast(Any, getattr(model, "run", None))
    if run is None:
        return []
    if not unit:
        ids = find_id_columns(model.schema)
        if not ids or max(run.rows_per_unit, run.rows_per_record) > 1:
            return []
        return [("persons", escape(describe_protection(ids)))]
    rows = max(run.rows_per_unit, run.rows_per_record)
    most = f"at most {rows} row{'s' * (rows > 1)} of each {unit}"
    if run.nominal:
        said = most
    elif run.rows_per_record > 1:
        said = f"{most}, of which there are {run.n}"
    elif model.form == "selected":
        said = f"{run.n + model.selection.held_out} rows, the first of each {unit}"
    elif rows > 1:
        said = (
            f"{run.n} rows, {most}; this number is public: how many rows a {unit} has is not hidden"
        )
    else:
        said = f"{run.n} rows, the first of each {unit}; --rows-per-unit uses more"
    return [("rows used", escape(said))]


def about_text(schema: Schema) -> str:
    """Which exports a model of this schema has, if text is in it; empty without text."""
    if not any(isinstance(column, Words) for column in schema.columns):
        return ""
    return "has no ONNX form; export --to mlflow takes it"


def about_wide_columns(schema: Schema) -> str:
    """Which columns take most of a row, and how to leave one out; empty where none stands out.
    Whether a column says anything is not public."""
    widths, kinds = _count_numbers(schema), {column.name: column.kind for column in schema.columns}
    total = sum(widths.values())
    wide = sorted(widths.items(), key=lambda one: -one[1])[:3]
    wide = [(name, width) for name, width in wide if width >= max(16, total / 10) and width < total]
    if not wide:
        return ""
    named = ", ".join(f"{name} ({kinds[name]}) {width}" for name, width in wide)
    return (
        f"{total} numbers in a row, {named}; each adds noise, a rare class suffers most, and "
        f'kind = "ignore" leaves out a column that says little'
    )


def _count_numbers(schema: Schema) -> dict[str, int]:
    """How many numbers in a row come from each column; none of arrays, and none of text that has no
    map yet."""
    owners = {field.name: column.name for column in schema.columns for field in column.fields}
    unmapped = not schema.features and any(isinstance(one, Words) for one in schema.columns)
    counts = dict.fromkeys(owners.values(), 0)
    if owners and not unmapped:
        for field, _, width in schema.form().levels[0]:
            counts[owners[field.name]] += width
    return counts


def _column_rows(model: Any) -> list[tuple[str, str]]:
    """The widest columns, and which export takes a model of text."""
    if model.schema is None:
        return []
    said = ("columns", about_wide_columns(model.schema)), ("text", about_text(model.schema))
    return [(name, escape(words)) for name, words in said if words]


def _hint_rare_classes(result: TrainResult) -> list[tuple[str, str]]:
    """That a rare class may never be predicted, where nothing was measured on public data: neither
    class weights, a threshold nor one accuracy shows it; all of it is public.
    """
    order, model = result.order, result.model
    if model.form not in ("linear", "exact") or measure(model) != "accuracy":
        return []
    two = model.schema is not None and len(model.schema.classes) == 2
    helps = f"; --class-weight{' or --threshold' * two} may help"
    chosen = " and ".join(
        words
        for words, value in (
            ("class weights", order.class_weight),
            ("a threshold", order.threshold),
        )
        if value is not None
    )
    counted = bool(getattr(model, "accuracies", ()))
    known = "one overall accuracy does not show them" if counted else "accuracy was not measured"
    said = f"{known}, and {f'even with {chosen} ' if chosen else ''}a rare class may never be predicted"
    return [
        (
            "rare classes",
            f"{said}: --test FILE --test-is-public shows it{'' if chosen else helps}",
        )
    ]


def _class_rows(result: TrainResult) -> list[tuple[str, str]]:
    """What accuracy on public data has to be compared with, and what helps where one class is
    nearly all of them.
    """
    scores, order = result.scores, result.order
    if scores is None:
        return _hint_rare_classes(result)
    if scores.largest_class is None:
        return []
    rows: list[tuple[str, str]] = []
    if scores.auroc is not None:
        rows.append(
            (
                "test ranking",
                escape(
                    f"AUROC {scores.auroc:.3f}, average precision {scores.average_precision:.3f} "
                    f"for {scores.rarer_class} ({scores.rarer_share:.3f} of the records)"
                ),
            )
        )
    if scores.recall is not None and (order.class_weight or order.threshold is not None):
        found = f"recall {scores.recall:.3f}, precision {scores.precision:.3f}"
        rows.append(("test labels", escape(f"{found} for {scores.rarer_class}")))
    alone = order.class_weight is None and order.threshold is None
    if scores.rare and alone and result.model.form != "selected":
        schema = result.model.schema
        mapped = order.features == "auto" and schema is not None and bool(schema.features)
        rows.append(
            (
                "rare classes",
                "--class-weight trains for the rarer classes"
                + (
                    "; or --threshold predicts the rarer one more often"
                    if scores.recall is not None
                    else ""
                )
                + (f"; {_name_straight(schema)} has fewer columns" if mapped else ""),
            )
        )
    return rows


def _name_straight(schema: Schema | None) -> str:
    """The value of ``--features`` that takes numbers as they are; text needs a map of its own."""
    texts = schema is not None and any(isinstance(column, Words) for column in schema.columns)
    return f"--features {'words' if texts else 'plain'}"


def _describe_run(run: Run, unit: str) -> str:
    """The run in one line; ``unit``: the name of a unit, of which a record is all rows that are used."""
    words = run.method.words(run)
    if not unit or run.rows_per_unit > 1:
        return words
    records = "units" if unit == UNNAMED else f"units ({unit})"
    return escape(words.replace(f"{run.n} records", f"{run.n} {records}", 1))


def _run_rows(model: Any) -> list[tuple[str, str]]:
    certificate, delta = model.certificate, model.delta
    best, run = certificate.best(delta), certificate.run
    assert best is not None and best.evidence is not None
    return [
        ("certified by", f"{best.theorem.name}, from {best.evidence.name.lower()} facts"),
        ("secrecy", explain_gain(certificate, delta)),
        ("run", _describe_run(run, certificate.unit)),
        *_probabilities(run, model.schema),
    ]


def _name_weights(weights: tuple[float, ...], schema: Schema | None) -> str:
    """Class weights with the names of their classes."""
    names = range(len(weights)) if schema is None else schema.classes
    named = ", ".join(f"{name} {weight:.4g}" for name, weight in zip(names, weights, strict=True))
    return f"{named} (scaled so that the largest is 1)"


def _probabilities(run: Run, schema: Schema | None) -> list[tuple[str, str]]:
    """Whether probabilities are calibrated, of a classifier."""
    weights = run.loss.class_weights
    counted = (
        []
        if weights is None
        else [
            (
                "class weights",
                escape(_name_weights(weights, schema)),
            )
        ]
    )
    if not run.loss.target_classes:
        return counted
    match run.probability_calibration:
        case None:
            said = "not calibrated: they rank records, and nothing more"
        case AssumedSlope(slope):
            said = f"made less extreme by a fixed public factor, {slope:g}: measuring it takes more records"
        case Calibration():
            said = f"calibrated by {run.probability_calibration.rounds} noisy rounds, which are part of the guarantee"
    if weighs_classes(run):
        said += "; they are those of the weighted records, not of the records"
    return [*counted, ("probabilities", said)]


def _exact_rows(model: Any) -> list[tuple[str, str]]:
    run = model.run
    return [
        ("certified by", "exact sums, exact discrete Gaussian noise, every step charged"),
        ("run", _describe_run(run, model.certificate.unit)),
        *_probabilities(run, model.schema),
    ]


def _selection_rows(model: Any) -> list[tuple[str, str]]:
    chosen, run = model.selection, model.run
    classes, many = run.loss.target_classes, len(chosen.candidates)
    return [
        (
            "selected",
            f"the best of a secret number of runs, {chosen.law.mean:.3g} on average, by a noisy "
            + ("accuracy" if classes else "squared error"),
        ),
        (
            "from",
            f"{many} candidate{'s' * (many > 1)}, {chosen.held_out} records held out for their "
            f"scores",
        ),
        *([("rare classes", _describe_rare_selected(run))] if classes else []),
        (
            "run",
            f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, "
            f"{_describe_row_norm(run)}",
        ),
        *_probabilities(run, model.schema),
    ]


def _describe_rare_selected(run: Run) -> str:
    """What a selection by accuracy says of rare classes: nothing, whatever their weights."""
    said = "accuracy hardly counts them"
    if weighs_classes(run):
        return f"{said}: even with class weights a rare class may never be predicted"
    return f"{said}; train has --class-weight, --threshold"


def _describe_row_norm(run: Run) -> str:
    """The norm of rows as it was asked for, and the clip of the rows that the run centres."""
    assert not isinstance(run.loss, KnownConstants)
    given = next(
        (part.row_norm for part in run.preprocessing if isinstance(part, PrivateMean)), 0.0
    )
    if not given or given == run.loss.row_norm:
        return f"row norm {run.loss.row_norm:g}"
    return f"row norm {given:g} ({run.loss.row_norm:g} once a noisy mean is subtracted)"


def _sample_rows(model: Any) -> list[tuple[str, str]]:
    prior = model.problem.model
    return [
        (
            "one exact posterior sample",
            f"prior precision {prior.prior_precision:.4g}, "
            f"noise precision {prior.noise_precision:.4g}",
        )
    ]


def plans(console: Console, choice: Choice, delta: float) -> None:
    """The plans that were considered, what the theorems charge for each, and why the first won."""
    shared, classes = (
        choice.alone is not None,
        bool(choice.best.certificate.run.loss.target_classes),
    )
    console.print(_plan_table(choice, shared, classes))
    console.print(
        "predicted: excess loss on a public reference problem; no data are read."
        + (
            " Log loss, of calibrated or of too steep probabilities, and accuracy are against the "
            "best possible ones."
            if classes
            else ""
        ),
        style="dim",
    )
    charges: list[str] = []
    for plan in choice.plans:
        charged = [
            (row["epsilon"], row["theorem"])
            for row in plan.certificate.rows(delta)
            if row["applies"] and row["kind"] == "upper" and row["epsilon"] is not None
        ]
        charges.append(
            f"  {plan.name}: "
            + ", ".join(f"{name} {format_rounded_up(value)}" for value, name in sorted(charged))
        )
    console.print(
        f"epsilon at delta = {delta:g} that each theorem charges:",
        *charges,
        sep="\n",
        highlight=False,
    )
    first, *others = choice.plans
    rival = min(others, key=lambda plan: plan.risk, default=None)
    reason = (
        "the only family that fits"
        if rival is None
        else (
            f"predicted {format_rounded_up(first.risk)} in {first.seconds:.2g} s once the data are read, "
            f"against "
            f"{format_rounded_up(rival.risk)} in {rival.seconds:.2g} s by {rival.name}"
        )
    )
    console.print(f"chosen: [bold]{first.name}[/bold], {reason}.", highlight=False)
    sharing = choice.about_sharing if shared else ""
    for said in filter(None, (choice.about_passes, choice.about_noise, sharing)):
        console.print(said[0].upper() + said[1:] + ".", highlight=False)
    sentence = explain_gain(first.certificate, delta)
    console.print(sentence[0].upper() + sentence[1:] + ".", highlight=False)


def _plan_table(choice: Choice, shared: bool, classes: bool) -> Table:
    """A row for every plan, the chosen one first; with what the ledger is charged, and with scores
    of classifiers.
    """
    table = Table(title="plans considered", title_justify="left")
    means, ledger = (
        ("log loss", "accuracy") if classes else ("predicted",),
        ("ledger",) if shared else (),
    )
    for name in ("plan", *means, "run", "noise multiplier", "seconds", *ledger):
        table.add_column(name, justify="left" if name in ("plan", "run") else "right")
    for place, plan in enumerate(choice.plans):
        run = plan.certificate.run
        momentum = (
            f", momentum {run.optimizer.beta:.3g}" if isinstance(run.optimizer, HeavyBall) else ""
        )
        blocks = (
            f"{run.steps // run.blocks} epochs of {run.blocks} blocks"
            if run.blocks > 1
            else f"{run.steps} steps"
        )
        ridge = f", ridge {strong:.3g}" if (strong := run.loss.facts().fact("strong")) else ""
        multiplier = (
            f"{run.noise.z:.4g}" if isinstance(run.noise, NoiseMultiplier | Correlated) else ""
        )
        scores = predict_scores(run, plan.risk)
        means = (
            (format_rounded_up(plan.risk),)
            if scores is None
            else (f"+{scores.log_loss:.3g}", f"-{scores.accuracy:.2g}")
        )
        share = (share_words(plan.share),) if shared else ()
        table.add_row(
            plan.name,
            *means,
            blocks + momentum + ridge,
            multiplier,
            f"{plan.seconds:.2g}",
            *share,
            style="bold" if place == 0 else "",
        )
    table.add_row(
        "output perturbation",
        *(("+" if classes else "") + format_rounded_up(choice.floor), "")[: len(means)],
        "for comparison, not executed",
        "",
        "",
        style="dim",
    )
    return table

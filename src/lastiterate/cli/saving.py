"""A model that was paid for is never lost: where its folder cannot be written, it goes to a temporary one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lastiterate import interrupts
from lastiterate.cli.terminal import Terminal
from lastiterate.errors import InputError
from lastiterate.ledger.store import Ledger
from lastiterate.release import folder, manifest
from lastiterate.release.charging import Charging, weights_hash
from lastiterate.release.fitted import Fitted


def committed(model: Fitted, where: Path, charging: Charging) -> Path:
    """Write the model, call it released, write its report: all of it, whatever is pressed meanwhile; the place.

    What the ledger would refuse is not written. A ledger that cannot be written at the moment does not cost the model.
    """
    interrupts.check()
    with interrupts.later():
        if charging.finished is None:
            charging.announce(model)
            place = saved(model, where)
        else:
            place = charging.finished
            Terminal(stderr=True).print(f"{place} was written by an earlier run of this command, which was stopped "
                                        "before it ended: nothing was trained or charged again", highlight=False,
                                        markup=False, soft_wrap=True)
        complete = f"the model is complete, at {place}"
        interrupts.say(complete)
        try:
            charging.release(model)
        except InputError as error:
            raise error.followed_by(f"{complete}, and its line in the ledger is charged") from None
        show_head(charging.ledger)
        reported(place, model, charging.ledger)
        charging.discard()
    return place


def saved(model: Fitted, where: Path) -> Path:
    """Write the model to ``where``, or else to a new temporary folder; returns the place and says what happened.

    A folder with these weights is left as it is: an earlier process of this fit wrote it.
    """
    there = folder.whole(where)
    if there is not None and there.hashes[folder.WEIGHTS] == weights_hash(model):
        return where
    try:
        return model.save(where)
    except (OSError, InputError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else error.rule.removesuffix(".")
        other = Path(tempfile.mkdtemp(prefix="lastiterate-")) / where.name
        model.save(other)
        Terminal(stderr=True).print(f"[bold red]error:[/bold red] --out {where} could not be written ({why}); the "
                                    f"model was saved at {other}: move it from there", highlight=False, soft_wrap=True)
        return other


def reported(place: Path, model: Fitted, ledger: Ledger | None = None) -> None:
    """Write the report into a model's folder, with the line of the ledger that was charged; where there is no space
    left for it the model is complete without."""
    from lastiterate.report import page, subject

    if manifest.holds(place, manifest.PAGE):
        return
    try:
        text = page.page(subject.of_release(place, model.certificate, ledger))
        manifest.add(place, manifest.PAGE, text.encode(), replacing=True)
    except OSError as error:
        Terminal(stderr=True).print(f"the model is complete, but its report could not be written ({error.strerror}): "
                                   f"lastiterate report {place}", highlight=False, soft_wrap=True)


def show_head(ledger: Ledger | None) -> None:
    """After a charge: the ledger's head, which shows later that none of its lines was lost."""
    head = None if ledger is None else ledger.head()
    if ledger is not None and head is not None:
        said = f"lastiterate ledger verify {ledger.path} --head {head}"
        Terminal(stderr=True).print(f"the ledger's head is {head}: keep it in another place, and see later that "
                                    f"nothing was lost with: {said}", style="dim", highlight=False, markup=False,
                                    soft_wrap=True)

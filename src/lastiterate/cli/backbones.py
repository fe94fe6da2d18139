"""``lastiterate features``: images to features with a public backbone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.atomic_files import SHARED, is_taken, whole_file, write_file
from lastiterate.cli.screen import app, console, reports_errors
from lastiterate.errors import InputError

if TYPE_CHECKING:
    import numpy as np

OWN = "scattering"


@app.command("features")
@reports_errors
def features_command(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="a .npz, .npy or IDX file of images")],
    out: Annotated[Path, typer.Option("--out", help="a new .npz file: X and y, or x_PART and y_PART; "
                                    "its schema is written beside it")],
    backbone: Annotated[str, typer.Option("--backbone", help="scattering (wavelets, nothing to load), "
                                          "torchvision:NAME or timm:NAME (need the library and --weights) or a "
                                          "TorchScript file")] = OWN,
    weights: Annotated[Path | None, typer.Option("--weights", help="local weights of torchvision's or timm's network")
                       ] = None,
) -> None:
    """Features of images by a public backbone, for ``train``: every image is mapped by itself."""
    import numpy as np

    from lastiterate.data.images import read_images
    from lastiterate.data.table import FormatFacts
    from lastiterate.data.template import array_template
    from lastiterate.features import Scattering

    _check_target(out)
    if weights is not None and not backbone.startswith(("torchvision:", "timm:")):
        raise InputError("weights", "are for a backbone of torchvision or timm", str(weights), "leave it out")
    sets, run = read_images(images), Scattering().apply if backbone == OWN else _of_torch(backbone, weights)

    arrays: dict[str, np.ndarray] = {}
    for each in sets:
        tail = f"_{each.part}" if len(sets) > 1 else ""
        arrays[f"x{tail}" if tail else "X"] = rows = run(each.pixels)
        if each.labels is not None:
            arrays[f"y{tail}"] = each.labels
        norm = float(np.linalg.norm(rows, axis=1).max())
        console.print(f"{each.part or 'images'}: {len(rows)} of {rows.shape[1]} features, largest norm {norm:.3g}"
                      + (" by construction" if backbone == OWN else ": measured on these images, choose --row-norm "
                         "without looking"), highlight=False)
    facts = FormatFacts(-1, 1, "coefficients of a scattering transform, of norm 1 by construction", norm=1.0)
    _write(out, arrays, array_template(facts if backbone == OWN else None))
    console.print(f"{out.with_suffix('.toml')}: the schema that train reads; facts marked \"?\" are left "
                  "to fill in", highlight=False)


def _write(out: Path, arrays: dict[str, np.ndarray], schema: str) -> None:
    """The rows and their schema beside them, or nothing."""
    import numpy as np

    facts = out.with_suffix(".toml")
    write_file(facts, schema.encode(), new=True, mode=SHARED)
    try:
        with whole_file(out, new=True, mode=SHARED) as file:
            np.savez(file, allow_pickle=False, **arrays)
    except BaseException:
        facts.unlink(missing_ok=True)
        raise


def _check_target(out: Path) -> None:
    """Refuse what cannot be written, before the work."""
    if out.suffix != ".npz":
        raise InputError("out", "must end in .npz", out.name)
    for path in (out, out.with_suffix(".toml")):
        if is_taken(path):
            raise InputError("out", "must not exist yet, nor the schema beside it", str(path), "choose another name")
    if not out.parent.is_dir():
        raise InputError("out", "must lie in an existing folder", str(out), "make the folder first")


def _of_torch(backbone: str, weights: Path | None) -> Callable[..., np.ndarray]:
    """The features of a network of torch, which only who asks for it loads."""
    try:
        torch = import_module("lastiterate.torch.backbone")
    except ImportError:
        raise InputError("backbone", f"other than {OWN} needs torch", backbone, "pip install torch") from None
    return partial(torch.features, torch.backbone_of(backbone, weights))

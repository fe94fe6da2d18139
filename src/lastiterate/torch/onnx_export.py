"""Released modules as ONNX files that carry their release, by PyTorch's own exporter."""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.atomic_files import SHARED, is_taken, write_file
from lastiterate.errors import InputError, first_line
from lastiterate.release import folder as folders
from lastiterate.release import onnx_model
from lastiterate.release.released_model import ReleasedModel
from lastiterate.torch.module_training import answers_for_units, unwrap
from lastiterate.torch.records import inputs_of

OPSET = 20


def write_onnx(
    model: ReleasedModel,
    module: torch.nn.Module | None,
    file: str | Path,
    x: object,
    *,
    names: Collection[str],
    inputs: int | None,
) -> Path:
    """See ``FittedModule.to_onnx``; ``names``: of the trained arrays, ``inputs``: as in
    ``FittedModule``."""
    where = folders.to_path(file, "file")
    if is_taken(where):
        raise InputError("file", "must not exist yet", str(where), "choose another name")
    if module is None:
        raise InputError("model", "must be a module", None, "load the folder with like=module")
    if answers_for_units(module):
        raise InputError(
            "model",
            "must answer for single rows in a file, and PerUnit answers for units",
            "PerUnit",
            f"write lastiterate.load(folder, like=module).to_onnx({str(file)!r}, x) with the module "
            "inside of it and rows x",
        )
    if x is None:
        raise InputError(
            "x",
            "is needed: public records, which say what shapes the module takes",
            None,
            f"write model.to_onnx({file!r}, torch.zeros(2, ...)) with the shape of a record",
        )
    onnx_model.check_library()
    made = _export(unwrap(module), inputs_of(x, inputs))
    missing = sorted(set(names) - {one.name for one in made.graph.initializer})
    if missing:
        raise InputError(
            "model", "must be one whose weights PyTorch writes as they are", missing[0]
        )
    write_file(where, onnx_model.seal(made, model.files()), new=True, mode=SHARED)
    return where


def _export(module: torch.nn.Module, inputs: Any) -> Any:
    """The graph of a module in evaluation mode, for any number of records."""
    first = next(module.parameters())
    inputs = tree_map(
        lambda a: a[:2].to(first.device, first.dtype if a.is_floating_point() else a.dtype), inputs
    )
    if min(len(leaf) for leaf in tree_leaves(inputs)) < 2:
        raise InputError(
            "x", "must hold two records or more", 1, "one record cannot show which axis is theirs"
        )
    records = tree_map(lambda _: {0: torch.export.Dim("records")}, inputs)
    named = isinstance(inputs, dict)
    positional = () if named else inputs if isinstance(inputs, tuple) else (inputs,)
    dynamic = records if named or isinstance(inputs, tuple) else (records,)
    training = [part for part in module.modules() if part.training]
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it lists libraries that are not installed
        module.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module,
                positional,
                kwargs=inputs if named else None,
                dynamo=True,
                optimize=False,  # arrays keep their names and values
                dynamic_shapes=dynamic,
                opset_version=OPSET,
                verbose=False,
            )
        return _remove_notes(program.model_proto)
    except ImportError:
        raise InputError(
            "onnxscript", "is needed to write modules", None, "pip install lastiterate[onnx]"
        ) from None
    except Exception as error:  # the exporter raises its own kinds, and the module's
        said = _describe(error)
        raise InputError(
            "model",
            "must be one that torch.onnx.export writes",
            said,
            "leave caches out of its outputs: model.module.config.use_cache = False"
            if "Cache" in said
            else "torch.onnx.export(model.module, (x,), dynamo=True) shows all that torch says",
        ) from None
    finally:
        logger.setLevel(level)
        for part in training:
            part.training = True


def _describe(error: Exception) -> str:
    """The reason of an error of the exporter, which it wraps in advice and in colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", first_line(error.__cause__ or error, 240))


def _remove_notes(made: Any) -> Any:
    """The model without the exporter's notes, which hold paths of this machine."""
    graph = made.graph
    for part in (made, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for function in made.functions:
        for part in (function, *function.node, *function.value_info):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    return made

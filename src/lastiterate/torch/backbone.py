"""Public backbones in torch: a TorchScript file, or a network of torchvision or timm with local
weights; nothing is downloaded."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lastiterate.errors import InputError, first_line

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""What torchvision's networks were trained with; public numbers."""
CHUNK, FULL_SIDE = 64, 224


LIBRARIES = ("torchvision", "timm")


@dataclass(frozen=True, eq=False)
class Backbone:
    """``module``: images to features. ``side``: what images are resized to, with three channels and
    normalised by ``mean`` and ``std``; ``None``: it takes images as they are."""

    module: torch.nn.Module
    side: int | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD


def backbone_of(name: str, weights: Path | None) -> Backbone:
    """``FILE.pt``: a TorchScript module; ``torchvision:NAME`` or ``timm:NAME`` with ``weights``, a
    file of its state, without its head.

    The file is the caller's own choice of public code: load nothing that is not trusted.
    """
    library, _, model = name.partition(":")
    if library in LIBRARIES and model:
        if weights is None:
            raise InputError(
                "weights",
                "must name a local file of the backbone's weights",
                None,
                "nothing is downloaded",
            )
        return (_torchvision if library == "torchvision" else _timm)(model, weights)
    path = Path(name)
    if not path.is_file():
        raise InputError(
            "backbone",
            "must be scattering, patches, torchvision:NAME, timm:NAME or a TorchScript file",
            name,
        )
    try:
        return Backbone(torch.jit.load(str(path), map_location="cpu").eval())
    except RuntimeError as error:
        raise InputError(
            "backbone", "must be a TorchScript file", name, first_line(error, 100)
        ) from None


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            "backbone", f"needs {name}", name, "pip install 'lastiterate[vision]'"
        ) from None
    except RuntimeError as error:  # a build for another build of torch
        raise InputError(
            "backbone",
            f"needs a {name} that fits the torch that is installed",
            name,
            first_line(error, 100),
        ) from None


def _load_state(network: torch.nn.Module, weights: Path) -> None:
    """The state in ``weights`` (torch's format, without code, or safetensors) into a network, all
    of it."""
    try:
        if weights.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(weights)
        else:
            state = torch.load(weights, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except (
        Exception
    ) as error:  # whatever the file holds; the library's own errors are of many kinds
        raise InputError(
            "weights",
            "must be a file of the backbone's whole state",
            str(weights),
            first_line(error, 100),
        ) from None


def _torchvision(name: str, weights: Path) -> Backbone:
    models = _library("torchvision").models
    if name not in models.list_models():
        raise InputError("backbone", "must be a model of torchvision", name)
    network = models.get_model(name, weights=None)
    _load_state(network, weights)
    for head in ("fc", "classifier", "head", "heads"):
        if hasattr(network, head):
            setattr(network, head, torch.nn.Identity())
    return Backbone(network.eval(), FULL_SIDE)


def _timm(name: str, weights: Path) -> Backbone:
    timm = _library("timm")
    if name not in timm.list_models():
        raise InputError("backbone", "must be a model of timm", name)
    network = timm.create_model(name, pretrained=False)
    _load_state(network, weights)
    network.reset_classifier(0)
    known = network.pretrained_cfg
    return Backbone(
        network.eval(), int(known["input_size"][-1]), tuple(known["mean"]), tuple(known["std"])
    )


def features(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    """Rows (n, d) float32 of images (n, height, width, channels) in [0, 1].

    In evaluation mode every image is mapped by itself.
    """
    rows = list[np.ndarray]()
    with torch.no_grad():
        for begin in range(0, len(images), CHUNK):
            part: Any = torch.from_numpy(
                np.ascontiguousarray(images[begin : begin + CHUNK].transpose(0, 3, 1, 2))
            )
            if backbone.side is not None:
                size = (backbone.side, backbone.side)
                part = torch.nn.functional.interpolate(
                    part, size=size, mode="bilinear", align_corners=False
                )
                part = part.expand(-1, 3, -1, -1) if part.shape[1] == 1 else part
                part = (part - torch.tensor(backbone.mean)[:, None, None]) / torch.tensor(
                    backbone.std
                )[:, None, None]
            rows.append(backbone.module(part).flatten(1).numpy().astype(np.float32))
    return np.concatenate(rows)

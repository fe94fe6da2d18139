"""Public backbones in torch: a TorchScript file, or a torchvision network with local weights; nothing is downloaded."""

# pyright: reportMissingImports=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lastiterate.errors import InputError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""What torchvision's networks were trained with; public numbers."""
CHUNK = 64


def module_for(name: str, weights: Path | None) -> torch.nn.Module:
    """``FILE.pt``: a TorchScript module; ``torchvision:NAME`` with ``weights``, a file of its state, without its head.

    The file is the caller's own choice of public code: load nothing that is not trusted.
    """
    if name.startswith("torchvision:"):
        if weights is None:
            raise InputError("weights", "must name a local file of the backbone's weights", None,
                             "nothing is downloaded")
        return _torchvision(name.removeprefix("torchvision:"), weights)
    path = Path(name)
    if not path.is_file():
        raise InputError("backbone", "must be random-convolution, torchvision:NAME or a TorchScript file", name)
    try:
        return torch.jit.load(str(path), map_location="cpu").eval()
    except RuntimeError as error:
        raise InputError("backbone", "must be a TorchScript file", name, str(error).splitlines()[0][:100]) from None


def _torchvision(name: str, weights: Path) -> torch.nn.Module:
    try:
        from torchvision import models
    except ImportError:
        raise InputError("backbone", "needs torchvision", name, "pip install torchvision") from None
    if name not in models.list_models():
        raise InputError("backbone", "must be a model of torchvision", name)
    found = models.get_model(name, weights=None)
    found.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    for head in ("fc", "classifier", "head", "heads"):
        if hasattr(found, head):
            setattr(found, head, torch.nn.Identity())
    return found.eval()


def features(module: torch.nn.Module, images: np.ndarray, side: int | None) -> np.ndarray:
    """Rows (n, d) float32 of images (n, height, width, channels) in [0, 1]; ``side``: resized to it, three channels.

    In evaluation mode every image is mapped by itself.
    """
    rows = list[np.ndarray]()
    with torch.no_grad():
        for begin in range(0, len(images), CHUNK):
            part: Any = torch.from_numpy(np.ascontiguousarray(images[begin:begin + CHUNK].transpose(0, 3, 1, 2)))
            if side is not None:
                part = torch.nn.functional.interpolate(part, size=(side, side), mode="bilinear", align_corners=False)
                part = part.expand(-1, 3, -1, -1) if part.shape[1] == 1 else part
                part = (part - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
            rows.append(module(part).flatten(1).numpy().astype(np.float32))
    return np.concatenate(rows)

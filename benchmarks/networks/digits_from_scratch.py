"""All of MNIST at epsilon 3, a network from scratch; the recipe is tried on drawn digits, never on
MNIST.

python -m benchmarks.networks.digits_from_scratch [--mnist FOLDER] [--batch 2048] [--steps 600]
    [--copies 1] [--clip 0.1] [--rate 2] [--decay 0.98] [--checkpoint FILE] [--log FILE.jsonl]

Without a folder: 60,000 digits in the fonts of matplotlib, turned, sheared, moved and under noise.
Random allocation, momentum .9, tanh and an exponential average, as in Tramer and Boneh (2021,
arXiv:2011.11660), Papernot et al. (2021, arXiv:2007.14191) and De et al. (2022, arXiv:2204.13650),
whose copies are moved by up to two pixels.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn.functional import cross_entropy, pad

import lastiterate as li
from benchmarks.networks.tasks import Data, digits

EPSILON, DELTA = 3.0, 1e-5


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def moved(
    key: li.torch.RecordKey, x: torch.Tensor, behind: float = -0.1307 / 0.3081
) -> torch.Tensor:
    """An image (c, h, w), up to two pixels off its place; ``behind`` it lies a background."""
    down, right = key.integers(0, 5, 2)
    wide = pad(x, (2, 2, 2, 2), value=behind)
    rows = down + torch.arange(x.shape[1])
    columns = right + torch.arange(x.shape[2])
    return wide.index_select(1, rows).index_select(2, columns)


def drawn(n: int, tests: int = 5000) -> Data:
    """Digits of many fonts, in the units of ``digits``."""
    rng = np.random.default_rng(4)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [
        ImageFont.truetype(str(path), 22)
        for path in sorted(folder.glob("DejaVu*.ttf"))
        if "Display" not in path.name
    ] + [ImageFont.truetype(str(path), 22) for path in sorted(folder.glob("STIXGeneral*.ttf"))]
    y = rng.integers(0, 10, n + tests)
    x = np.zeros((n + tests, 1, 28, 28), np.float32)
    for i, digit in enumerate(y):
        canvas = Image.new("L", (40, 40))
        font = fonts[rng.integers(len(fonts))]
        ImageDraw.Draw(canvas).text(
            (20, 20),
            str(digit),
            font=font,
            fill=255,
            anchor="mm",
            stroke_width=int(rng.integers(0, 2)),
        )
        turn, shear, wide, high = (
            rng.normal(0, 0.2),
            rng.normal(0, 0.25),
            *np.exp(rng.normal(0, 0.18, 2)),
        )
        rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
        matrix = rotation @ np.array([[wide, shear], [0, high]])
        shift = np.array([20, 20]) - matrix @ (np.array([14, 14]) + rng.normal(0, 1, 2))
        a, b, c, d, e, f = *matrix[0], shift[0], *matrix[1], shift[1]
        x[i, 0] = (
            np.asarray(
                canvas.transform(
                    (28, 28), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR
                )
            )
            / 255
        )
    spoilt = (
        rng.normal(0, 0.1, x.shape).astype(np.float32)
        * (rng.random(len(x)) < 0.5)[:, None, None, None]
    )
    x = np.clip(x + spoilt, 0, 1)
    x = (x - np.float32(0.1307)) / np.float32(0.3081)
    return x[:n], y[:n], x[n:], y[n:]


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--mnist", type=Path, help="folder with MNIST's four files")
    for name, default in (
        ("n", 60000),
        ("batch", 2048),
        ("steps", 600),
        ("copies", 1),
        ("seed", 0),
    ):
        given.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("clip", 0.1), ("rate", 2.0), ("decay", 0.98)):
        given.add_argument(f"--{name}", type=float, default=default)
    given.add_argument(
        "--checkpoint", type=Path, help="a file to go on from; its key lies beside it, FILE.key"
    )
    given.add_argument("--log", type=Path, help="a line is added to it")
    asked = given.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    x, y, tests, answers = drawn(asked.n) if asked.mnist is None else digits(asked.mnist, asked.n)
    run = li.Run(
        n=len(x),
        steps=asked.steps,
        step_size=1.0,
        clip=asked.clip,
        batching=li.RandomAllocation(asked.batch),
    )
    how: dict[str, Any] = {"augment": moved, "copies": asked.copies} if asked.copies > 0 else {}
    if asked.checkpoint is not None:
        how |= {
            "checkpoint": asked.checkpoint,
            "checkpoint_key": asked.checkpoint.with_suffix(".key"),
        }
    begun, clock = time.process_time(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = li.train(
            run,
            (x, y),
            model=network(),
            loss=cross_entropy,
            epsilon=EPSILON,
            delta=DELTA,
            optimizer=lambda p: torch.optim.SGD(p, lr=asked.rate, momentum=0.9),
            average=li.ExponentialAverage(asked.decay),
            **how,
        )
    right = float((model.predict(tests).argmax(1) == answers).mean())
    line = {
        **{
            name: value
            for name, value in vars(asked).items()
            if name not in ("mnist", "log", "checkpoint")
        },
        "data": "drawn" if asked.mnist is None else "MNIST",
        "accuracy": right,
        "epsilon": model.certificate.epsilon(DELTA),
        "processor_s": round(time.process_time() - begun),
        "clock_s": round(time.perf_counter() - clock),
    }
    print(json.dumps(line), flush=True)
    if asked.log is not None:
        with asked.log.open("a") as log:
            log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

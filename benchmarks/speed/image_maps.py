"""Public maps of images: processor time of a record, and of one image by itself.

python -m benchmarks.speed.image_maps [RECORDS] [--rounds K] [--filters 300 500]

Random colour images of 32 x 32 pixels, with one thread: `OPENBLAS_NUM_THREADS=1`. Medians over
rounds. Filters and axes of patches are made, or read from the cache, before the first round.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from lastiterate.features import Patches, Scattering

SIDE, AXES = 32, 1500


def processor_ms(record_map: Patches | Scattering, images: np.ndarray, rounds: int) -> float:
    """Milliseconds of processor time for a record: the median over rounds."""
    taken = list[float]()
    for _ in range(rounds):
        began = time.process_time()
        record_map.apply(images)
        taken.append((time.process_time() - began) / len(images) * 1e3)
    return statistics.median(taken)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("records", nargs="?", type=int, default=2048)
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--filters", nargs="*", type=int, default=[300, 500])
    asked = given.parse_args()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (asked.records, SIDE, SIDE, 3), dtype=np.uint8)
    maps: dict[str, Patches | Scattering] = {
        f"patches, {filters} filters": Patches(filters=filters, axes=AXES, full=True)
        for filters in asked.filters
    }
    maps["scattering"] = Scattering()
    for name, record_map in maps.items():
        record_map.apply(images[:1])
        many, one = (processor_ms(record_map, some, asked.rounds) for some in (images, images[:1]))
        print(f"{name}: {many:.2f} ms a record of {asked.records}, {one:.1f} ms for one image")


if __name__ == "__main__":
    main()

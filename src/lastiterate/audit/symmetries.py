"""The same pair of data sets seen otherwise: classes, columns, signs and places drawn anew for every audit.

Linear models treat classes, columns and signs alike, and so does a right trainer: it leaks on a pair that is turned as
it leaks on the pair. A wrong one may be right for the last class, the first column or the record that comes first,
which are what a pair that somebody wrote down happens to use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lastiterate.audit.neighbours import DataSet, Neighbours
from lastiterate.run.domains import AffineBall
from lastiterate.run.losses import LinearLoss
from lastiterate.run.run import Run


def turned(run: Run, loss: LinearLoss, pair: Neighbours, rng: np.random.Generator) -> Neighbours:
    """``pair`` with its classes (for numbers: their sign), columns, their signs, and its record's place drawn by
    ``rng``; as it is where the run's domain is no symmetric one."""
    if isinstance(run.domain, AffineBall):
        return pair
    width = pair.with_record.features.shape[1]
    columns, signs = rng.permutation(width), rng.choice((-1.0, 1.0), width)
    classes = rng.permutation(loss.target_classes) if loss.target_classes else np.zeros(0, int)
    sign = 1.0 if loss.target_classes else rng.choice((-1.0, 1.0))

    def seen(data: DataSet) -> DataSet:
        target = classes[data.target] if loss.target_classes else sign * data.target
        if data.absent is not None:
            target[data.absent] = 0  # nothing of the record's answer is left to be read
        features = (data.features[:, columns] * signs).astype(data.features.dtype)
        return replace(data, features=features, target=target)

    direction = pair.direction
    if direction is not None:
        direction = np.concatenate((direction[:, columns][:, :width] * signs, direction[:, width:]), axis=1)
        if loss.target_classes == 0 or loss.outputs == 1:
            direction = direction * (sign if loss.target_classes == 0 else 1.0 - 2.0 * classes[0])
        else:
            direction = direction[np.argsort(classes)]
    image = replace(pair, with_record=seen(pair.with_record), without_record=seen(pair.without_record),
                    direction=direction)
    return placed(run, image, rng)


def placed(run: Run, pair: Neighbours, rng: np.random.Generator) -> Neighbours:
    """``pair`` with its record in another place, where it leaks as much from every one: where batches are drawn, or
    hold all records."""
    blind = run.batching.drawn != "never" or run.blocks == 1
    return moved(pair, int(rng.choice(places(run)))) if blind else pair


def places(run: Run) -> list[int]:
    """The first record, the last one, those at the ends of the first and the last block, and any other."""
    size = int(run.divisor)
    edges = {0, run.n - 1, size - 1, size, run.n - size, run.n - size - 1}
    return [place for place in sorted(edges) if 0 <= place < run.n] + [run.n // 2]


def moved(pair: Neighbours, record: int) -> Neighbours:
    """The same records, with the pair's own in another place of the public order."""
    order = np.arange(len(pair.with_record.target))
    order[[record, pair.record]] = order[[pair.record, record]]

    def there(data: DataSet) -> DataSet:
        return DataSet(data.features[order], data.target[order], None if data.absent is None else record)

    return replace(pair, with_record=there(pair.with_record), without_record=there(pair.without_record), record=record)

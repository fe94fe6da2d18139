"""The small runs that the bugs are put into; each is calibrated to its budget when it is audited."""

from __future__ import annotations

from dataclasses import replace

import lastiterate as li

LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
BASE = li.Run(n=6, steps=12, step_size=0.5, loss=LOSS)
ORTHOGONAL = replace(BASE, loss=replace(LOSS, intercept=0.0))
ONE_STEP = replace(ORTHOGONAL, steps=1)
FAR_CLIP = replace(BASE, loss=replace(LOSS, intercept=0.0, residual_clip=50.0), clip=1.0)
FAR_CLIP_INTERCEPT = replace(BASE, loss=replace(LOSS, residual_clip=50.0), clip=1.0)
TURNING = replace(
    BASE,
    batching=li.Cyclic(3),
    step_size=1.0,
    loss=replace(LOSS, intercept=0.0, row_norm=0.1, ridge=1.9),
)
TWO_BLOCKS = replace(BASE, batching=li.Cyclic(2), steps=30)
SHORT_BLOCK = replace(BASE, batching=li.Cyclic(4), steps=11)
LOGISTIC = replace(BASE, loss=li.Logistic(row_norm=1.0, ridge=0.1, intercept=0.5))
CAPPED = replace(BASE, loss=li.Logistic(row_norm=1.0, ridge=0.1, intercept=0.5, cap=0.2))
SOFTMAX = replace(BASE, loss=li.Softmax(classes=3, row_norm=1.0, ridge=0.1))
SOFTMAX_CLIPPED = replace(SOFTMAX, clip=0.5)
ALL = replace(BASE, release="all", batching=li.Cyclic(2), steps=48)
SWAPPED = replace(BASE, adjacency="replace-one")
RARE = replace(
    ORTHOGONAL,
    n=10,
    batching=li.Poisson(0.1),
    steps=64,
    step_size=0.1,
    loss=replace(LOSS, intercept=0.0, ridge=0.01),
)
CONTRACTING = replace(BASE, batching=li.Permuted(2), loss=replace(LOSS, ridge=1.0), steps=9)
ALLOCATED = replace(
    ORTHOGONAL,
    batching=li.RandomAllocation(1),
    steps=24,
    step_size=0.1,
    loss=replace(LOSS, intercept=0.0, ridge=0.01),
)
IN_A_BALL = replace(BASE, domain=li.domains.Ball(0.5))
LONG = replace(BASE, steps=20, loss=replace(LOSS, ridge=0.1))
CENTRED = replace(BASE, preprocessing=(li.PrivateMean(20.0, 1.0),))

"""Strong convexity forgets: epsilon of the last iterate stops growing, composition does not."""

from dataclasses import replace

import matplotlib.pyplot as plt

import lastiterate as li

run = li.Run(
    n=5000,
    steps=10,
    step_size=0.5,
    noise=li.NoiseMultiplier(20.0),
    batching=li.Cyclic(250),
    loss=li.Logistic(ridge=0.05),
)
counts = [20, 50, 100, 200, 500, 1000, 2000, 5000]
figure, axes = plt.subplots(figsize=(6, 3.6))
for release, name in (("last", "only the last iterate"), ("all", "every iterate: composition")):
    found = [
        li.account(replace(run, steps=count, release=release)).epsilon(1e-6) for count in counts
    ]
    axes.plot(counts, found, marker="o", label=name)
    print(
        f"{name}: epsilon {found[0]:.3f} after {counts[0]} steps, {found[-1]:.3f} after "
        f"{counts[-1]}"
    )
axes.set(xlabel="steps", ylabel="epsilon at delta 1e-6", xscale="log", yscale="log")
axes.legend(frameon=False)

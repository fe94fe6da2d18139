"""A secret order is worth noise: four ways to read the same blocks, one budget."""

import matplotlib.pyplot as plt

import lastiterate as li

passes = [1, 5, 50]
ways = {
    "blocks in a public order": li.Cyclic(300),
    "shuffled once": li.Permuted(300),
    "drawn again every pass": li.RandomAllocation(300),
}
figure, axes = plt.subplots(figsize=(6, 3.6))
for name, batching in ways.items():
    found = []
    for count in passes:
        run = li.Run(n=6000, steps=20 * count, step_size=0.2, loss=li.Logistic(), batching=batching)
        found.append(li.calibrate(run, epsilon=1.0, delta=1e-6).run.noise.z)
    axes.plot(passes, found, marker="o", label=name)
    print(f"{name}: noise multiplier {found[0]:.2f} for one pass, {found[-1]:.2f} for {passes[-1]}")
axes.set(xlabel="passes", ylabel="noise multiplier for epsilon 1", xscale="log", yscale="log")
axes.legend(frameon=False)

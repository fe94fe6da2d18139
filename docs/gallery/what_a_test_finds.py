"""The meaning of epsilon: at each rate of false alarms, the most that any test of one record can find."""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from lastiterate.planning.task import budget

rates = np.linspace(0, 1, 201)
figure, axes = plt.subplots(figsize=(4.6, 4.2))
for epsilon in (0.5, 1.0, 3.0, 8.0):
    mu = budget(epsilon, 1e-5)  # the Gaussian curve of (epsilon, 1e-5)
    found = norm.cdf(norm.ppf(rates) + mu)
    axes.plot(rates, found, label=f"epsilon {epsilon:g}")
    print(
        f"epsilon {epsilon:g}: mu {mu:.3f}; of 100 used records at most "
        f"{100 * norm.cdf(norm.ppf(0.01) + mu):.0f} "
        "are found at one false alarm in 100"
    )
axes.plot([0, 1], [0, 1], color="#777777", linestyle=":", label="guessing")
axes.set(
    xlabel="share of unused records that are flagged",
    ylabel="share of used records that are flagged",
)
axes.legend(frameon=False)

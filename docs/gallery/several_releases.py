"""Two releases add up, and less than twice: budgets of Gaussian curves compose in mu."""

import matplotlib.pyplot as plt

import lastiterate as li
from lastiterate.curves.gaussian import Gdp
from lastiterate.planning.task import budget

one = Gdp(budget(1.0, 1e-5))
counts = list(range(1, 11))
found = [li.curves.compose(*[one] * count).epsilon(1e-5) for count in counts]
figure, axes = plt.subplots(figsize=(6, 3.6))
axes.plot(counts, found, marker="o", label="composed")
axes.plot(counts, counts, color="#777777", linestyle=":", label="added up")
axes.set(xlabel="releases of epsilon 1", ylabel="epsilon of all together, delta 1e-5")
axes.legend(frameon=False)
print(f"two releases: {found[1]:.2f}, ten: {found[-1]:.2f}")

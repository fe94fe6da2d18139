"""Accuracy and budget: accuracy on the handwritten digits at four budgets."""

import warnings

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from lastiterate.errors import RepeatedFitWarning
from lastiterate.estimators import DPLogisticRegression

warnings.simplefilter("ignore", RepeatedFitWarning)  # a public set: of your own data, fits add up
x, y = load_digits(return_X_y=True)
train, test, answers, wanted = train_test_split(x / 16, y, test_size=0.2, random_state=0)
epsilons, found = [0.3, 1.0, 3.0, 8.0], []
for epsilon in epsilons:
    model = DPLogisticRegression(
        epsilon=epsilon, row_norm=8.0, classes=range(10), algorithm="allocation-sgd", random_state=0
    ).fit(train, answers)
    found.append(model.score(test, wanted))
    print(
        f"epsilon {epsilon:g}: accuracy {found[-1]:.2f}, by "
        f"{model.certificate_.best(1e-5).theorem.name}"
    )
figure, axes = plt.subplots(figsize=(6, 3.6))
axes.plot(epsilons, found, marker="o")
axes.set(
    xlabel="epsilon at delta 1e-5", ylabel="accuracy on 360 records", xscale="log", ylim=(0.5, 1)
)

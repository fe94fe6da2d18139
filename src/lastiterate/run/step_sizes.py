"""Step sizes: step k = 0, 1, ... produces iterate k + 1."""

from __future__ import annotations

from dataclasses import dataclass

from lastiterate.run.validate import positive


@dataclass(frozen=True)
class Constant:
    """The same step size at every step."""

    value: float

    def __post_init__(self) -> None:
        positive("step_size", self.value)

    def at(self, step: int) -> float:
        return self.value



@dataclass(frozen=True)
class InverseDecay:
    """Step sizes ``1 / (2 beta + strong k / 2)`` (Ryffel et al. 2022, Corollary 3.2)."""

    beta: float
    strong: float

    def __post_init__(self) -> None:
        positive("beta of inverse-decay", self.beta)
        positive("strong of inverse-decay", self.strong, zero=True)

    def at(self, step: int) -> float:
        return 1.0 / (2.0 * self.beta + self.strong * step / 2.0)



@dataclass(frozen=True)
class Steps:
    """One step size per step."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            positive("every entry of step_size", value)

    def at(self, step: int) -> float:
        return self.values[step]



StepSize = Constant | InverseDecay | Steps

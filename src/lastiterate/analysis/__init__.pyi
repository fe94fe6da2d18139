"""The public names of this package (see ``lazy``)."""

from lastiterate.analysis.step_map import bound_clipped_step as bound_clipped_step
from lastiterate.analysis.step_map import step_lipschitz as step_lipschitz

__all__: list[str]

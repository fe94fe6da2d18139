"""The public names of this package (see ``lazy``)."""

from lastiterate.analysis.step_map import clipped_step_lipschitz as clipped_step_lipschitz
from lastiterate.analysis.step_map import step_lipschitz as step_lipschitz

__all__: list[str]

"""The public names of this package (see ``lazy``)."""

from lastiterate.report.style import STYLES as STYLES
from lastiterate.report.style import drawn_as as drawn_as
from lastiterate.report.style import dressed as dressed

__all__: list[str]

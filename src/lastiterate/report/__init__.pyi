"""The public names of this package (see ``lazy``)."""

from lastiterate.report.charts import STYLES as STYLES
from lastiterate.report.charts import drawn_as as drawn_as
from lastiterate.report.charts import dressed as dressed

__all__: list[str]

"""The public names of this package (see ``lazy``)."""

from lastiterate.report.charts import STYLES as STYLES
from lastiterate.report.charts import drawn_as as drawn_as
from lastiterate.report.charts import dressed as dressed
from lastiterate.report.plots import epsilon_over_steps as epsilon_over_steps
from lastiterate.report.plots import receiver_curve as receiver_curve

__all__: list[str]

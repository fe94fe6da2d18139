"""The public names of this package (see ``lazy``)."""

from lastiterate.report.charts import STYLES as STYLES
from lastiterate.report.charts import dress_axes as dress_axes
from lastiterate.report.charts import style_line as style_line
from lastiterate.report.plots import epsilon_over_steps as epsilon_over_steps
from lastiterate.report.plots import receiver_curve as receiver_curve

__all__: list[str]

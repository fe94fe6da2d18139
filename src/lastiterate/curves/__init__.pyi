"""The public names of this package (see ``lazy``)."""

from lastiterate.curves.composition import compose as compose
from lastiterate.curves.curve import BestOf as BestOf
from lastiterate.curves.curve import Curve as Curve
from lastiterate.curves.curve import EpsDelta as EpsDelta
from lastiterate.curves.gaussian import Gdp as Gdp
from lastiterate.curves.gaussian import GdpMixture as GdpMixture
from lastiterate.curves.lower_bound import LowerBound as LowerBound
from lastiterate.curves.lower_bound import MixturePair as MixturePair
from lastiterate.curves.renyi import Rdp as Rdp
from lastiterate.curves.sampled_batches import Pld as Pld

__all__: list[str]

from lastiterate.features.hat_functions import Curves as Curves
from lastiterate.features.scattering import Scattering as Scattering

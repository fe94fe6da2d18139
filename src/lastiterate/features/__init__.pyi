from lastiterate.features.hat_functions import Curves as Curves

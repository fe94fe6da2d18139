from lastiterate.estimators.schema_transformer import SchemaTransformer as SchemaTransformer
from lastiterate.features.half_spaces import Gated as Gated
from lastiterate.features.hashed_words import HashedWords as HashedWords
from lastiterate.features.hat_functions import Curves as Curves
from lastiterate.features.number_bins import Bins as Bins
from lastiterate.features.scattering import Scattering as Scattering

from lastiterate.estimators.pipelines import SchemaTransformer as SchemaTransformer
from lastiterate.features.column_maps import Bins as Bins
from lastiterate.features.column_maps import Curves as Curves
from lastiterate.features.column_maps import Gated as Gated
from lastiterate.features.hashed_words import HashedWords as HashedWords
from lastiterate.features.patches import Patches as Patches
from lastiterate.features.scattering import Scattering as Scattering

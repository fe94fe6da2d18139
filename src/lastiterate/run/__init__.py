"""Everything that a description of a training run is made of."""

"""What a privacy guarantee looks like: curves with a direction, and their composition."""

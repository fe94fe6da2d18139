"""lastiterate."""

"""Networks trained with the same budget and the same steps by this library and others."""

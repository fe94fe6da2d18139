from lastiterate.jax.private_loop import PrivatePair as PrivatePair
from lastiterate.jax.private_loop import PrivateState as PrivateState
from lastiterate.jax.private_loop import private as private

__all__: list[str]

# For pyright alone: JAX's own types forget what a compiled function takes and returns, and are partial where a function
# is an argument. Stand-ins for the modules behind jax, of what is used here; every other name of them is unknown.
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# one for each count of arguments, so that those of lambdas are known to be of any type
Function = (
    Callable[[], R]
    | Callable[[Any], R]
    | Callable[[Any, Any], R]
    | Callable[[Any, Any, Any], R]
    | Callable[[Any, Any, Any, Any], R]
    | Callable[[Any, Any, Any, Any, Any], R]
)

class Jitted(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

def jit(fun: Callable[P, R], /, **options: Any) -> Jitted[P, R]: ...
def vmap(fun: Function[R], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., R]: ...
def grad(
    fun: Function[Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]: ...
def value_and_grad(fun: Function[Any]) -> Callable[..., tuple[Any, Any]]: ...
def make_jaxpr(fun: Function[Any], *, return_shape: bool = False) -> Callable[..., Any]: ...
def eval_shape(fun: Function[Any], /, *arguments: Any) -> Any: ...
def device_put(x: Any, device: Any = None, *, may_alias: bool = False) -> Any: ...

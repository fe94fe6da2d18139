"""A private training in the form of a pair of functions, `init` and `update`, for a user's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack, cast, final

import jax.numpy as jnp
from jax.core import Tracer

from lastiterate.engine.step_iterator import StepIterator
from lastiterate.errors import InputError
from lastiterate.release.network_model import FittedNetwork
from lastiterate.release.training import TrainingOptions, begin_steps, check_options
from lastiterate.run.run import Run


def private(run: Run, loss: Callable[..., Any], **options: Unpack[TrainingOptions]) -> PrivatePair:
    """Make the pair `init` and `update` of a private training, for a loop of your own.

    Parameters
    ----------
    run : Run
        Description of the training. With ``release="last"`` iterates stay hidden; with
        ``release="all"`` the loop may look at every one of them, and every one is charged.
    loss : callable
        ``loss(params, *record)`` of one record, written with JAX, as `lastiterate.train` takes it.
    **options
        Other arguments of `lastiterate.train` by name, such as ``epsilon``, ``delta``,
        ``optimizer``, ``ledger``, ``dataset`` or ``checkpoint``.

    Returns
    -------
    PrivatePair
        Pair with ``init``, ``update``, ``parameters`` and ``release``.

    Raises
    ------
    InputError
        If ``loss`` is no function. All else is checked by ``init``.
    TypeError
        If an option is none of `lastiterate.train`.

    See Also
    --------
    lastiterate.train : The same training without a loop.

    Notes
    -----
    **Guarantee:** the steps, the checks, the charge and the certificate are those of
    `lastiterate.train`: with the same seed, the same bits.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate.jax import private
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(100, 3)).astype(np.float32)
    >>> run = li.Run(n=100, steps=4, step_size=0.1, clip=1.0)
    >>> pair = private(run, lambda w, row: ((w @ row) - 1.0) ** 2, epsilon=2.0, delta=1e-4)
    >>> state = pair.init(np.zeros(3), (x,))
    >>> while state.done < state.steps:
    ...     state = pair.update(state)
    >>> model = pair.release(state)
    >>> model.params.shape, model.certificate.epsilon(1e-4) <= 2.0
    ((3,), True)
    """
    check_options("private", options)
    if not callable(loss):
        raise InputError(
            "loss", "must be a function of the parameters and one record", type(loss).__name__
        )
    return PrivatePair(run, loss, options)


@final
class PrivateState:
    """A run between two steps: how many are made, and of how many.

    `PrivatePair.init` and `PrivatePair.update` make it. It shows no parameters and cannot be copied
    to another process.

    Parameters
    ----------
    pair : PrivatePair
        Pair whose run it is.
    steps : StepIterator
        Steps of the run.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate.jax import private
    >>> run = li.Run(n=8, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    >>> pair = private(run, lambda w, row: w @ row)
    >>> pair.update(pair.init(np.zeros(3), (np.ones((8, 3)),)))
    PrivateState(1 of 2 steps)
    """

    __slots__ = ("_done", "_pair", "_steps")

    def __init__(self, pair: PrivatePair, steps: StepIterator[Any]) -> None:
        self._pair, self._steps, self._done = pair, steps, steps.done

    @property
    def done(self) -> int:
        """Number of steps that are made."""
        return self._done

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return self.run.steps

    @property
    def run(self) -> Run:
        """Run that is executed, with its noise."""
        return self._steps.run

    def __repr__(self) -> str:
        return f"PrivateState({self.done} of {self.steps} steps)"

    def __reduce__(self) -> Any:
        return self._steps.__reduce__()


@final
class PrivatePair:
    """The functions `init` and `update` of a private training, and what ends it.

    `private` makes it.

    Parameters
    ----------
    run : Run
        Description of the training.
    loss : callable
        Loss of one record.
    options : dict
        Other arguments of `lastiterate.train`.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate.jax import private
    >>> run = li.Run(n=8, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0), release="all")
    >>> pair = private(run, lambda w, row: w @ row)
    >>> state = pair.update(pair.init(np.zeros(3), (np.ones((8, 3)),)))
    >>> pair.parameters(state).shape
    (3,)
    """

    def __init__(self, run: Run, loss: Callable[..., Any], options: TrainingOptions) -> None:
        self._run, self._loss, self._options = run, loss, options

    def init(self, params: object, data: object) -> PrivateState:
        """Check everything, charge the ledger, and return the state before the first step.

        Parameters
        ----------
        params : nested arrays
            First parameters, chosen without the data.
        data : tuple of array_like, or source of records
            Private records, as `lastiterate.train` takes them. The run draws batches from them
            itself. Arrays of NumPy are copied.

        Returns
        -------
        PrivateState
            State before the first step; where ``checkpoint`` names a file of a run that was
            stopped, the state that the file holds.

        Raises
        ------
        NotCertified
            If no theorem certifies the run.
        InputError
            If input is bad or the budget does not suffice.
        """
        _check_untraced("init")
        steps = begin_steps(
            "params",
            self._run,
            data,
            params,
            self._loss,
            self._options,
            kinds="network",
            more="call update until state.done is state.steps",
        )
        return PrivateState(self, steps)

    def update(self, state: PrivateState) -> PrivateState:
        """Make the next step of the run, and return the state after it.

        Parameters
        ----------
        state : PrivateState
            Last state, which is used up.

        Returns
        -------
        PrivateState
            State after the step.

        Raises
        ------
        InputError
            If ``state`` is not the last one, if all steps are made, or if the run was ended by an
            error.
        """
        _check_untraced("update")
        steps = self._steps_of(state)
        steps.advance()
        return PrivateState(self, steps)

    def parameters(self, state: PrivateState) -> Any:
        """Return a copy of the last iterate, of a run that releases all of them.

        Parameters
        ----------
        state : PrivateState
            Last state, which stays usable.

        Returns
        -------
        nested arrays
            Iterate, structured like the first parameters.

        Raises
        ------
        InputError
            If the run has ``release="last"``, or ``state`` is not the last one.

        Notes
        -----
        **Guarantee:** the certificate covers every iterate. It covers no loss or accuracy on
        private records that the loop computes from one.
        """
        return self._steps_of(state).read_iterate()

    def release(self, state: PrivateState) -> FittedNetwork:
        """Return the released model, once, after the last step.

        Parameters
        ----------
        state : PrivateState
            State after the last step.

        Returns
        -------
        FittedNetwork
            Released model with its certificate, as `lastiterate.train` returns it.

        Raises
        ------
        InputError
            If steps are missing, if the model was released before, or if the run diverged.
        """
        return cast(FittedNetwork, self._steps_of(state).release())

    def _steps_of(self, state: PrivateState) -> StepIterator[Any]:
        """The steps of the last state; a state that was used is refused, so that no step is made
        twice with one draw of noise."""
        if not isinstance(state, PrivateState) or state._pair is not self:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "state",
                "must be one that init or update of this pair returned",
                type(state).__name__,
                "begin with state = pair.init(params, data)",
            )
        steps = state._steps
        if state.done != steps.done:
            raise InputError(
                "state",
                f"must be the last one, after {steps.done} steps: a state is used once",
                f"{state.done} steps",
                "write state = pair.update(state)",
            )
        return steps


def _check_untraced(function: str) -> None:
    """Refuse to run inside of jax.jit, where a step would be recorded and not made."""
    if isinstance(jnp.zeros(()), Tracer):
        raise InputError(
            function,
            "must be called outside of jax.jit, scan and other transformations",
            None,
            "its steps are compiled already",
        )

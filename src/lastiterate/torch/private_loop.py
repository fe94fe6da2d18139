"""A private training of a module whose steps the user's loop takes, in the form of Opacus."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack, final

import torch

from lastiterate.engine.step_iterator import StepIterator
from lastiterate.errors import InputError
from lastiterate.release.training import TrainingOptions, begin_steps, check_options
from lastiterate.run.run import Run
from lastiterate.torch.module_training import unwrap, unwrap_names
from lastiterate.torch.parameters import Grouped, Parameters
from lastiterate.torch.processes import find_sharded_parts, unwrap_replicas
from lastiterate.torch.released_module import FittedModule


def make_private(
    run: Run,
    *,
    module: torch.nn.Module | Grouped,
    data: object,
    loss: Callable[..., Any],
    **options: Unpack[TrainingOptions],
) -> PrivateLoop:
    """Check and charge a private training of a module, and return the loop of its steps.

    Parameters
    ----------
    run : Run
        Description of the training. With ``release="last"`` iterates stay hidden; with
        ``release="all"`` the loop may look at every one of them, and every one is charged.
    module : torch.nn.Module or Grouped
        Module with its first parameters, chosen without the data. A copy is trained; the module
        itself gets the released parameters.
    data : tuple of array_like, or Dataset, or source of records
        Private records, as `lastiterate.train` takes them. The run draws batches from them itself.
        Arrays and tensors are copied.
    loss : callable
        ``loss(output, *rest)`` of one record.
    **options
        Other arguments of `lastiterate.train` by name, such as ``epsilon``, ``delta``,
        ``optimizer``, ``ledger``, ``dataset`` or ``checkpoint``.

    Returns
    -------
    PrivateLoop
        Steps of the run, to iterate over.

    Raises
    ------
    NotCertified
        If no theorem certifies the run.
    InputError
        If input is bad or the budget does not suffice.
    TypeError
        If an option is none of `lastiterate.train`.

    See Also
    --------
    lastiterate.train : The same training without a loop.
    OpacusAccountant : Accountant for loops that Opacus executes.

    Notes
    -----
    **Guarantee:** the steps, the checks, the charge and the certificate are those of
    `lastiterate.train`: with the same seed, the same bits.

    Examples
    --------
    >>> import torch
    >>> import lastiterate as li
    >>> from lastiterate.torch import make_private
    >>> run = li.Run(n=8, steps=3, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    >>> data = torch.ones(8, 3), torch.zeros(8, dtype=torch.long)
    >>> net = torch.nn.Linear(3, 2)
    >>> private = make_private(run, module=net, data=data, loss=torch.nn.functional.cross_entropy)
    >>> for step in private:
    ...     print(step, "of", private.steps)
    1 of 3
    2 of 3
    3 of 3
    >>> model = private.release()
    >>> torch.equal(net.weight, model.module.weight)
    True
    """
    check_options("make_private", options)
    if find_sharded_parts(module):
        raise InputError(
            "module",
            "must not be sharded by fully_shard, because it gets the released parameters",
            type(module).__name__,
            "give the module before fully_shard, or train with lastiterate.train",
        )
    steps = begin_steps(
        "module",
        run,
        data,
        module,
        loss,
        options,
        kinds="torch",
        more="iterate over the loop for the others"
        + (EVERY if isinstance(run, Run) and run.release == "all" else ""),
    )
    return PrivateLoop(unwrap_replicas(module), steps)


EVERY = (
    ": module_at({done}, like=module) of the finished loop's model is the module of this step, which is "
    "paid for"
)
"""What a loop may do that stops early, where every iterate is released."""


@final
class PrivateLoop:
    """The steps of a private training: iterating makes them, `release` ends it.

    `make_private` makes it. Iterating again resumes after the last step.

    Parameters
    ----------
    module : torch.nn.Module or Grouped
        Module that gets the released parameters.
    steps : StepIterator
        Steps of the run.

    Examples
    --------
    >>> import torch
    >>> import lastiterate as li
    >>> from lastiterate.torch import make_private
    >>> run = li.Run(n=8, steps=3, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0), release="all")
    >>> data = torch.ones(8, 3), torch.zeros(8, dtype=torch.long)
    >>> loss = torch.nn.functional.cross_entropy
    >>> private = make_private(run, module=torch.nn.Linear(3, 2), data=data, loss=loss)
    >>> next(private), private
    (1, PrivateLoop(1 of 3 steps))
    >>> sorted(private.parameters())
    ['bias', 'weight']
    """

    def __init__(self, module: torch.nn.Module | Grouped, steps: StepIterator[Any]) -> None:
        self._module = module.module if isinstance(module, Grouped) else module
        trained = Parameters.of(module)
        shapes = dict(zip(trained.names, trained.shapes, strict=True))
        self._shapes = unwrap_names(self._module, shapes)
        self._steps = steps

    @property
    def done(self) -> int:
        """Number of steps that are made."""
        return self._steps.done

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return self.run.steps

    @property
    def run(self) -> Run:
        """Run that is executed, with its noise."""
        return self._steps.run

    def __repr__(self) -> str:
        return f"PrivateLoop({self.done} of {self.steps} steps)"

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.done == self.steps:
            raise StopIteration
        self._steps.advance()
        return self.done

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return a copy of the last iterate by the names of its parameters, where all are released.

        Returns
        -------
        dict of str to torch.Tensor
            Trained parameters after the last step, on the CPU.

        Raises
        ------
        InputError
            If the run has ``release="last"``, or no step is made.

        Notes
        -----
        **Guarantee:** the certificate covers every iterate. It covers no loss or accuracy on
        private records that the loop computes from one.
        """
        return self._steps.read_iterate()

    def release(self) -> FittedModule:
        """Return the released model, once, after the last step; the module gets its parameters.

        With ``release="all"`` the module gets those after the last step.

        Returns
        -------
        FittedModule
            Released model with its certificate, as `lastiterate.train` returns it.

        Raises
        ------
        InputError
            If steps are missing, if the model was released before, or if the run diverged.
        """
        trained = self._find_trained()
        model: FittedModule = self._steps.release()
        every = model.run.release == "all"
        with torch.no_grad():
            for name, tensor in model.state.items():
                trained[name].copy_(tensor[-1] if every else tensor)
        return model

    def _find_trained(self) -> Mapping[str, torch.Tensor]:
        """The trained parameters of the user's module; refused where the loop replaced them."""
        now = dict(unwrap(self._module).named_parameters())
        for name, shape in self._shapes.items():
            if name not in now or now[name].shape != shape:
                raise InputError(
                    "module",
                    f"must still have its parameter {name} of shape {tuple(shape)}, to get the "
                    "released numbers",
                    tuple(now[name].shape) if name in now else "none",
                    "put it back, and release then",
                )
        return now

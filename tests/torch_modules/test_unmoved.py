"""Parameters that no record moves, and hooks on gradients, are refused before anything is paid."""

import pytest
import torch

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import Grouped, private_version
from lastiterate.torch.gradient_graphs import find_constant_gradients, gradient_graph
from lastiterate.torch.record_gradients import PerRecord, to_theta
from lastiterate.torch.trial_training import check_training

CROSS = torch.nn.functional.cross_entropy
RUN = li.Run(
    n=4, steps=1, step_size=0.1, noise=li.GradientNoise(1.0), clip=1.0, loss=li.KnownConstants()
)
X, Y = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)


class Net(torch.nn.Module):
    """A layer that records move, and ``v``, which is read by ``how``."""

    def __init__(self, how=lambda v, x: x @ v):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.v, self.how = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.ones(3)), how

    def forward(self, x):
        return self.layer(x) + torch.stack(
            [self.how(self.v, x), self.layer.weight.sum().expand(len(x))], 1
        )


UNMOVED = {
    "sign": lambda v, x: x @ torch.sign(v),
    "times 0": lambda v, x: x @ (0 * v),
    "times 0, rectified": lambda v, x: torch.relu(x @ (torch.tanh(v) * 0.0) + 1),
    "times zeros": lambda v, x: x @ (v * torch.zeros(3)),
    "whole numbers": lambda v, x: x @ torch.floor(v),
    "of one row": lambda v, x: x[:, 0] + (torch.ceil(v) * 1.5).sum(),
}
MOVED = {
    "linear": lambda v, x: x @ v,
    "added": lambda v, x: v.sum() + x[:, 0],
    "rectified": lambda v, x: torch.relu(x * v).sum(1),
    "straight through": lambda v, x: x @ (v + (torch.sign(v) - v).detach()),
    "written in place": lambda v, x: torch.zeros(len(x)).index_add(0, torch.arange(len(x)), x @ v),
}


def trained(module, loss=CROSS):
    return li.train(RUN, (X, Y), model=module, loss=loss, delta=1e-2)


@pytest.mark.parametrize("which", UNMOVED)
def test_a_parameter_that_no_record_moves_is_refused_by_name(which):
    with pytest.raises(InputError, match=r"train only what records move.*got 'v'; freeze it with"):
        trained(Net(UNMOVED[which]))


def test_a_penalty_alone_moves_nothing():
    class Penalised(Net):
        def forward(self, x):
            return self.layer(x), self.v.expand(len(x), 3)

    def loss(output, y):
        return CROSS(output[0], y) + (output[1] ** 2).sum()

    with pytest.raises(InputError, match=r"train only what records move.*got 'v'"):
        trained(Penalised(), loss)
    assert trained(Grouped(Penalised(), {"layer": 1.0}), loss).certificate.epsilon(1e-2) > 0


@pytest.mark.parametrize("which", MOVED)
def test_parameters_that_records_move_are_trained(which):
    assert trained(Net(MOVED[which])).module.v.shape == (3,)


def test_the_graph_tells_which_gradients_follow_from_a_record():
    records = (torch.zeros(1, 3), torch.zeros(1, dtype=torch.long))
    for ways, wanted in ((UNMOVED, ["v"]), (MOVED, [])):
        for which, how in ways.items():
            module = Net(how)
            parameters = check_training(RUN, module, None)
            summed = PerRecord(module, CROSS, parameters, (), 1.0, False)
            graph = gradient_graph(
                summed, to_theta(parameters.vector(module), parameters.device), records
            )
            assert find_constant_gradients(graph, 2, parameters.names) == wanted, which
            if wanted:
                assert find_constant_gradients(graph, 0, parameters.names) == list(
                    parameters.names
                ), "without a record"


def test_hooks_on_gradients_are_refused():
    ways = {
        "a parameter's": lambda net: net.layer.weight.register_hook(lambda slope: 0 * slope),
        "after accumulation": lambda net: net.v.register_post_accumulate_grad_hook(lambda p: None),
        "of several": lambda net: torch.autograd.graph.register_multi_grad_hook(
            (net.v,), lambda slopes: None
        ),
        "of a part": lambda net: net.layer.register_full_backward_hook(
            lambda part, given, made: None
        ),
        "before a part": lambda net: net.layer.register_full_backward_pre_hook(
            lambda part, made: None
        ),
        "of all": lambda net: torch.nn.modules.module.register_module_full_backward_hook(
            lambda *_: None
        ),
    }
    for which, register in ways.items():
        module = Net()
        handle = register(module)
        try:
            for use in (trained, private_version):
                with pytest.raises(InputError, match="must have no hooks on gradients"):
                    use(module)
        finally:
            handle.remove()
        assert private_version(module).changed == (), which
    loss = torch.nn.CrossEntropyLoss()
    loss.register_full_backward_hook(lambda part, given, made: None)
    with pytest.raises(InputError, match=r"^loss must have no hooks on gradients"):
        trained(Net(), loss)


def test_what_looks_at_no_gradient_may_stay():
    module = Net()
    module.v.retain_grad()
    module.layer.register_full_backward_hook(lambda part, given, made: None).remove()
    module.layer.register_forward_hook(lambda part, given, made: 2 * made)
    assert trained(module).module.v.shape == (3,)

"""Modules: what they register, how hooks and state behave."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import symgrad as sg
from symgrad import nn

F64 = sg.float64


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def T(array, **kwargs):
    return sg.tensor(np.asarray(array, float), dtype=F64, **kwargs)


def close(found, expected, tol=1e-12):
    np.testing.assert_allclose(np.asarray(found.detach().numpy()), expected, rtol=tol, atol=tol)


def filled(module, seed=1):
    """The module in float64 with known parameters."""
    module.double()
    for k, p in enumerate(module.parameters()):
        p.data.copy_(T(numbers(*p.shape, seed=seed + k)))
    return module


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.scale = nn.Parameter(sg.ones(1))
        self.register_buffer("seen", sg.zeros(1))
        self.register_buffer("scratch", sg.zeros(1), persistent=False)

    def forward(self, x, factor=1):
        return self.first(x) * self.scale * factor


def test_attributes_are_sorted_into_tables():
    m = Two()
    assert [n for n, _ in m.named_parameters()] == ["scale", "first.weight", "first.bias"]
    assert [n for n, _ in m.named_buffers()] == ["seen", "scratch"]
    assert list(m.state_dict()) == ["scale", "seen", "first.weight", "first.bias"]
    assert [n for n, _ in m.named_modules()] == ["", "first"]
    m.first = None
    assert [n for n, _ in m.named_parameters()] == ["scale"]
    m.plain = 3
    m.plain = nn.Parameter(sg.ones(1))
    assert "plain" in m._parameters and "plain" not in m.__dict__
    del m.plain
    with pytest.raises(AttributeError, match="'Two' object has no attribute 'plain'"):
        _ = m.plain


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda m: setattr(m, "scale", sg.ones(1)),
            TypeError,
            "cannot assign 'symgrad.FloatTensor' as parameter",
        ),
        (
            lambda m: setattr(m, "first", 3),
            TypeError,
            "cannot assign 'int' as child module 'first'",
        ),
        (lambda m: m.register_parameter("a.b", None), KeyError, "t contain"),
        (lambda m: m.register_parameter("", None), KeyError, "t be empty string"),
        (
            lambda m: m.register_parameter("forward", None),
            KeyError,
            "attribute 'forward' already exists",
        ),
        (lambda m: m.register_parameter("q", sg.ones(1)), TypeError, "object to parameter 'q'"),
        (
            lambda m: m.register_buffer("q", 3),
            TypeError,
            "cannot assign 'int' object to buffer 'q'",
        ),
        (lambda m: m.register_module("q", 3), TypeError, "int is not a Module subclass"),
        (lambda m: m.get_submodule("first.x"), AttributeError, "Linear has no attribute `x`"),
        (lambda m: m.train(3), ValueError, "training mode is expected to be boolean"),
        (lambda m: m.to(sg.int64), TypeError, "only accepts floating point or complex dtypes"),
        (lambda m: nn.Module()(1), NotImplementedError, 'missing the required "forward" function'),
    ],
)
def test_refusals(act, error, message):
    with pytest.raises(error, match=message):
        act(Two())


def test_assignment_before_init_is_refused():
    class Early(nn.Module):
        def __init__(self):
            self.first = nn.Linear(1, 1)

    with pytest.raises(
        AttributeError, match=r"cannot assign module before Module.__init__\(\) call"
    ):
        Early()


def test_what_holds_for_all_below():
    m = nn.Sequential(Two(), nn.Dropout())
    assert not m.eval()[1].training and m.train()[1].training
    m.requires_grad_(False)
    assert m(sg.ones(1, 2)).grad_fn is None
    m.requires_grad_()
    m(sg.ones(1, 2)).sum().backward()
    m.zero_grad(set_to_none=False)
    assert m[0].scale.grad.tolist() == [0.0]
    m.zero_grad()
    assert m[0].scale.grad is None
    order = []
    m.apply(lambda part: order.append(type(part).__name__))
    assert order == ["Linear", "Two", "Dropout", "Sequential"]


def test_change_of_dtype_keeps_the_parameters():
    m = nn.Linear(2, 1)
    weight = m.weight
    m(sg.ones(1, 2)).sum().backward()
    m.double()
    assert m.weight is weight and weight.dtype is F64 and weight.is_leaf
    assert weight.grad.dtype is F64 and weight.grad.tolist() == [[1.0, 1.0]]
    m(T([[2.0, 3.0]])).sum().backward()
    assert weight.grad.tolist() == [[3.0, 4.0]]


def test_state_is_loaded_by_name():
    a, b = Two(), Two()
    a.seen.fill_(4.0)
    assert repr(b.load_state_dict(a.state_dict())) == "<All keys matched successfully>"
    assert b.seen.tolist() == [4.0] and sg.equal(a.first.weight, b.first.weight)
    assert b.first.weight.is_leaf and b.first.weight is not a.first.weight
    found = b.load_state_dict({"scale": sg.zeros(1), "more": sg.ones(1)}, strict=False)
    assert found.missing_keys == [
        "seen",
        "first.weight",
        "first.bias",
    ] and found.unexpected_keys == ["more"]
    assert b.scale.tolist() == [0.0]


def test_state_of_another_module_is_refused():
    with pytest.raises(RuntimeError) as refusal:
        nn.Linear(2, 3).load_state_dict({"weight": sg.ones(3, 3), "x": sg.ones(1)})
    assert str(refusal.value) == (
        "Error(s) in loading state_dict for Linear:\n"
        '\tUnexpected key(s) in state_dict: "x". \n'
        '\tMissing key(s) in state_dict: "bias". \n'
        "\tsize mismatch for weight: copying a param with shape symgrad.Size([3, 3]) from checkpoint, the "
        "shape in current model is symgrad.Size([3, 2])."
    )


def test_modules_are_copied_and_pickled():
    m = filled(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    x = T(numbers(4, 2))
    expected = m(x).tolist()
    for made in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert made(x).tolist() == expected
        with sg.no_grad():
            made[0].weight.zero_()
        assert m(x).tolist() == expected


def test_module_text():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(True))
            self.heads = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])

    assert repr(Net()) == (
        "Net(\n"
        "  (body): Sequential(\n"
        "    (0): Conv1d(1, 2, kernel_size=(3,), stride=(1,), padding=(1,))\n"
        "    (1): ReLU(inplace=True)\n"
        "  )\n"
        "  (heads): ModuleList(\n"
        "    (0-1): 2 x Linear(in_features=2, out_features=1, bias=True)\n"
        "  )\n"
        ")"
    )


def test_containers_are_lists_and_dicts():
    s = nn.Sequential(nn.Identity(), nn.ReLU())
    s.append(nn.Tanh()).insert(0, nn.GELU())
    del s[1]
    assert [type(m).__name__ for m in s] == ["GELU", "ReLU", "Tanh"] and len(s[1:]) == 2
    s[0] = nn.Sigmoid()
    assert [type(m).__name__ for m in s] == ["Sigmoid", "ReLU", "Tanh"]
    with pytest.raises(IndexError, match="index 3 is out of range"):
        s[3]
    d = nn.ModuleDict({"a": nn.ReLU()})
    d["b"] = nn.Linear(1, 1)
    assert list(d) == ["a", "b"] and "a" in d and len(list(d.parameters())) == 2
    values = nn.ParameterList([sg.ones(1)])
    values.append(sg.ones(2))
    assert [n for n, _ in values.named_parameters()] == ["0", "1"] and type(
        values[0]
    ) is nn.Parameter
    table = nn.ParameterDict({"x": sg.ones(1)})
    assert list(table.keys()) == ["x"] and len(list(table.parameters())) == 1


def test_xor_is_learnt():
    sg.manual_seed(3)
    x = T([[0, 0], [0, 1], [1, 0], [1, 1]])
    y = T([[0], [1], [1], [0]])
    m = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = sg.optim.Adam(m.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(m(x), y).backward()
        optimizer.step()
    assert (m(x) > 0).tolist() == [[False], [True], [True], [False]]


# -- hooks --------------------------------------------------------------------------------


class Triple(nn.Module):
    def forward(self, x, factor=3):
        return x * factor


def test_forward_hooks_may_change_arguments_and_results():
    m, log = Triple(), []
    handles = [
        m.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
        m.register_forward_pre_hook(
            lambda m, args, kwargs: (args, {"factor": 10}), with_kwargs=True
        ),
        m.register_forward_hook(lambda m, args, out: out + args[0]),
        m.register_forward_hook(lambda m, args, out: log.append(out.item()), prepend=True),
    ]
    assert m(T(1.0)).item() == 22.0 and log == [20.0]
    for handle in handles:
        handle.remove()
    assert m(T(1.0)).item() == 3.0


def test_backward_hooks_see_and_replace_gradients():
    m, log = Triple(), []
    m.register_full_backward_pre_hook(lambda m, out: (out[0] * 2,))
    m.register_full_backward_hook(lambda m, into, out: log.append((into[0].item(), out[0].item())))
    m.register_full_backward_hook(lambda m, into, out: (into[0] * 5,))
    x = T(1.0, requires_grad=True)
    (m(x) * 7).backward()
    assert log == [(42.0, 14.0)] and x.grad.item() == 210.0


def test_backward_hooks_run_without_gradients_of_inputs():
    m, log = nn.Linear(1, 1, bias=False).double(), []
    m.register_full_backward_hook(lambda m, into, out: log.append((into, out[0].tolist())))
    (m(T([[2.0]])) * 3).sum().backward()
    assert log == [((None,), [[3.0]])] and m.weight.grad.tolist() == [[6.0]]


def test_backward_hooks_take_part_in_second_derivatives():
    m = Triple()
    m.register_full_backward_hook(lambda m, into, out: (into[0] * into[0],))
    x = T(2.0, requires_grad=True)
    (g,) = sg.autograd.grad(m(x) ** 2, x, create_graph=True)
    # d(9 x²)/dx is 18 x; the hook squares what comes through the module.
    assert g.item() == 36.0**2
    # d(324 x²)/dx is 648 x, and it comes through the module too.
    assert sg.autograd.grad(g, x)[0].item() == (648.0 * 2.0) ** 2


def test_backward_hook_of_the_wrong_length_is_refused():
    m = Triple()
    m.register_full_backward_hook(lambda m, into, out: (into[0], into[0]))
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2, but expected 1"):
        m(T(1.0, requires_grad=True)).backward()

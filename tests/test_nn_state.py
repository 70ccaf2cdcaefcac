"""Modules as functions of their state: initial values, names, clipping, flat vectors, by NumPy."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from scipy import special
from test_nn import F64, T, close, filled, numbers

import symgrad as sg
from symgrad import nn

# -- functions of modules ------------------------------------------------------------------


def test_module_as_a_function_of_its_parameters():
    m = filled(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
    values = {name: p.detach() * 0.5 for name, p in m.named_parameters()}
    before = dict(m.named_parameters())
    x = numbers(3, 2)
    w0, b0, w1, b1 = (v.numpy() for v in values.values())
    close(sg.func.functional_call(m, values, (T(x),)), np.tanh(x @ w0.T + b0) @ w1.T + b1)
    assert all(p is before[name] for name, p in m.named_parameters())


def test_gradients_per_sample_by_vmap():
    m = filled(nn.Linear(3, 1))
    x, y = numbers(5, 3), numbers(5, seed=9)
    values = {name: p.detach() for name, p in m.named_parameters()}

    def loss(values, x, y):
        return (sg.func.functional_call(m, values, (x,))[0] - y) ** 2

    found = sg.vmap(sg.func.grad(loss), in_dims=(None, 0, 0))(values, T(x), T(y))
    residual = x @ m.weight.detach().numpy()[0] + m.bias.detach().numpy() - y
    close(found["weight"], (2 * residual[:, None] * x)[:, None])
    close(found["bias"], 2 * residual[:, None])


def test_ensembles_by_stacked_state():
    models = [filled(nn.Linear(2, 3), seed=5 * k) for k in range(4)]
    parameters, buffers = sg.func.stack_module_state(models)
    assert parameters["weight"].is_leaf and parameters["weight"].requires_grad and buffers == {}
    x = T(numbers(6, 2))

    def call(parameters, x):
        return sg.func.functional_call(models[0], parameters, (x,))

    found = sg.vmap(call, in_dims=(0, None))(parameters, x)
    w = [m.weight.detach().numpy() for m in models]
    close(found, np.stack([x.numpy() @ w[k].T + models[k].bias.detach().numpy() for k in range(4)]))


def test_functional_call_ties_weights_and_may_be_strict():
    line = nn.Linear(1, 1, bias=False).double()
    tied = nn.Sequential(line, line)
    assert sg.func.functional_call(tied, {"0.weight": T([[3.0]])}, (T([[2.0]]),)).tolist() == [
        [18.0]
    ]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\): '1.weight'"):
        sg.func.functional_call(
            tied, {"0.weight": T([[3.0]])}, (T([[2.0]]),), strict=True, tie_weights=False
        )
    with pytest.raises(ValueError, match="appeared in multiple dictionaries"):
        sg.func.functional_call(tied, [{"a": T(1.0)}, {"a": T(1.0)}], ())


def test_compiled_module_moves_its_statistics():
    m = nn.BatchNorm1d(2).double()
    f = sg.compile(m)
    x = numbers(6, 2)
    for _ in range(3):
        f(T(x))
    close(m.running_mean, (1 - 0.9**3) * x.mean(0))
    assert m.num_batches_tracked.item() == 3


# -- initial values and utilities ----------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "variance"),
    [
        (nn.init.xavier_uniform_, 2 / 500),
        (nn.init.xavier_normal_, 2 / 500),
        (lambda t: nn.init.kaiming_uniform_(t, nonlinearity="relu"), 2 / 300),
        (lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="linear"), 1 / 200),
        (lambda t: nn.init.uniform_(t, -1, 3), 16 / 12),
        (lambda t: nn.init.normal_(t, 0.0, 0.1), 0.01),
    ],
)
def test_initial_values_have_their_variance(fill, variance):
    sg.manual_seed(0)
    p = nn.Parameter(sg.empty(200, 300, dtype=F64))
    assert fill(p) is p and p.is_leaf
    # The relative deviation of a variance of 60,000 normal draws is 0.6%.
    assert p.detach().numpy().var() == pytest.approx(variance, rel=0.03)


def test_other_initial_values():
    t = nn.init.orthogonal_(sg.empty(3, 5, dtype=F64))
    close(t @ t.T, np.eye(3), 1e-12)
    assert nn.init.eye_(sg.empty(2, 3)).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    cut = nn.init.trunc_normal_(sg.empty(10000, dtype=F64), a=-1.0, b=1.0).numpy()
    assert np.abs(cut).max() <= 1.0
    # The variance of a normal variable within [-1, 1].
    density = np.exp(-0.5) / np.sqrt(2 * np.pi)
    assert cut.var() == pytest.approx(1 - 2 * density / special.erf(np.sqrt(0.5)), rel=0.05)
    assert nn.init.calculate_gain("leaky_relu", 1.0) == 1.0
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        nn.init.xavier_uniform_(sg.empty(3))


def test_gradients_are_clipped_together():
    a, b = T([3.0], requires_grad=True), T([0.0, 4.0], requires_grad=True)
    (3 * a.sum() + 4 * b[1]).backward()
    kept = b.grad
    assert nn.utils.clip_grad_norm_([a, b], 1.0).item() == 5.0
    assert b.grad is kept
    close(a.grad, [0.6], 1e-6)
    close(b.grad, [0.0, 0.8], 1e-6)
    assert nn.utils.clip_grad_norm_([a, b], 10.0).item() == pytest.approx(1.0, rel=1e-6)
    close(a.grad, [0.6], 1e-6)
    assert nn.utils.clip_grad_norm_([b], 0.4, float("inf")).item() == pytest.approx(0.8, rel=1e-6)
    nn.utils.clip_grad_value_([a], 0.5)
    assert a.grad.tolist() == [0.5]


def test_clipping_may_refuse_what_is_not_finite():
    a = T([1.0], requires_grad=True)
    a.grad = T([np.inf])
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        nn.utils.clip_grad_norm_([a], 1.0, error_if_nonfinite=True)


def test_parameters_as_one_vector():
    m = filled(nn.Linear(2, 3))
    vector = nn.utils.parameters_to_vector(m.parameters())
    close(vector, np.concatenate([p.detach().numpy().ravel() for p in m.parameters()]))
    nn.utils.vector_to_parameters(T(np.arange(9.0)), m.parameters())
    assert m.weight.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] and m.bias.tolist() == [
        6.0,
        7.0,
        8.0,
    ]
    assert m.weight.is_leaf and m.weight.requires_grad


# -- state by name -------------------------------------------------------------------------


def test_parameters_and_buffers_by_dotted_name():
    m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert m.get_parameter("0.weight") is m[0].weight
    assert m.get_buffer("1.running_mean") is m[1].running_mean
    with pytest.raises(AttributeError, match="Linear has no attribute `scale`"):
        m.get_parameter("0.scale")
    with pytest.raises(AttributeError, match=r"`running_mean` is not an nn\.Parameter"):
        m.get_parameter("1.running_mean")
    with pytest.raises(AttributeError, match="`weight` is not a buffer"):
        m.get_buffer("0.weight")


def test_embedding_over_a_given_table():
    table = numbers(4, 3)
    frozen = nn.Embedding.from_pretrained(T(table))
    assert not frozen.weight.requires_grad
    close(frozen(sg.tensor([2, 0, 2])), table[[2, 0, 2]])
    free = nn.Embedding.from_pretrained(T(table), freeze=False)
    free(sg.tensor([2, 0, 2])).sum().backward()
    close(free.weight.grad, np.array([1.0, 0.0, 2.0, 0.0])[:, None] * np.ones(3))
    with pytest.raises(AssertionError, match="expected to be 2-dimensional"):
        nn.Embedding.from_pretrained(T([1.0]))


def test_running_statistics_start_anew():
    m = nn.BatchNorm1d(2).double()
    m(T(numbers(6, 2)))
    m.reset_running_stats()
    assert m.running_mean.tolist() == [0.0, 0.0] and m.running_var.tolist() == [1.0, 1.0]
    assert m.num_batches_tracked.item() == 0


def test_generator_goes_on_from_a_copied_state():
    first = sg.Generator().manual_seed(3)
    sg.rand(5, generator=first)
    second = first.clone_state()
    assert sg.rand(5, generator=second).tolist() == sg.rand(5, generator=first).tolist()
    assert (
        sg.rand(5, generator=second).tolist()
        != sg.rand(5, generator=sg.Generator().manual_seed(3)).tolist()
    )


def test_what_a_tensor_says_of_itself():
    assert sg.is_tensor(T(1.0)) and not sg.is_tensor(np.ones(2))
    assert T(1.0).element_size() == 8 and sg.ones(2, dtype=sg.float32).element_size() == 4
    assert T(1.0).is_cuda is False


# -- arguments that count or are refused ---------------------------------------------------


def test_to_copies_when_asked():
    x = T([1.0, 2.0])
    for y in (x.to(F64, copy=True), x.to(F64, False, True), x.to(other=x, copy=True)):
        y.mul_(9.0)
        assert x.tolist() == [1.0, 2.0] and y.tolist() == [9.0, 18.0]
    assert x.to(F64) is x
    assert x.to(other=sg.ones(1)).dtype is sg.float32
    with pytest.raises(TypeError, match="dtyp"):
        x.to(dtyp=F64)
    with pytest.raises(TypeError, match="dtyp"):
        nn.Linear(1, 1).to(dtyp=F64)


def test_asarray_without_a_copy_is_refused():
    with pytest.raises(ValueError, match="a copy is always made"):
        np.asarray(T([1.0]), copy=False)


def test_checkpoint_enters_the_contexts_given():
    entered = []

    @contextlib.contextmanager
    def noting(name):
        entered.append(name)
        yield

    x = T(2.0, requires_grad=True)
    y = sg.autograd.checkpoint.checkpoint(
        lambda t: t * t,
        x,
        use_reentrant=False,
        context_fn=lambda: (noting("call"), noting("again")),
    )
    assert entered == ["call"]
    y.backward()
    assert entered == ["call", "again"] and x.grad.item() == 4.0


def test_checkpoint_refuses_contexts_where_it_is_traced():
    def double(t):
        return sg.autograd.checkpoint.checkpoint(
            lambda t: t * 2.0,
            t,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext()),
        )

    x = T([2.0, 3.0], requires_grad=True)
    for traced in (sg.compile(double), sg.vmap(double)):
        with pytest.raises(NotImplementedError, match="no second call for the second context"):
            traced(x)
    with pytest.raises(NotImplementedError, match="leave it out there"):
        sg.scan(lambda c, t: (c, double(t)), T(0.0), x)


def test_steps_and_schedulers_refuse_what_they_cannot_do():
    one, other = (sg.optim.SGD([T([1.0], requires_grad=True)], lr=0.1) for _ in range(2))
    with pytest.raises(NotImplementedError, match="a step is not recorded"):
        sg.optim.SGD([T([1.0], requires_grad=True)], lr=0.1, differentiable=True)
    schedules = sg.optim.lr_scheduler
    pair = [schedules.StepLR(one, 1), schedules.StepLR(other, 1)]
    with pytest.raises(ValueError, match="index 1 belongs to another"):
        schedules.ChainedScheduler(pair)
    with pytest.raises(ValueError, match="index 1 belongs to another"):
        schedules.SequentialLR(one, pair, [2])

"""Layers and parameters: what they compute, by NumPy and SciPy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from scipy import signal, special

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


# -- layers -------------------------------------------------------------------------------


def test_linear_and_bilinear_are_numpys_products():
    x, y = numbers(5, 3), numbers(5, 4, seed=2)
    line = filled(nn.Linear(3, 2))
    close(line(T(x)), x @ line.weight.detach().numpy().T + line.bias.detach().numpy())
    both = filled(nn.Bilinear(3, 4, 2, bias=False))
    close(both(T(x), T(y)), np.einsum("bi,oij,bj->bo", x, both.weight.detach().numpy(), y))


def test_convolution_is_scipys_correlation():
    image = numbers(2, 3, 7, 6)
    layer = filled(nn.Conv2d(3, 4, (3, 2)))
    kernels, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    expected = [
        [
            sum(signal.correlate2d(image[n, c], kernels[o, c], "valid") for c in range(3)) + bias[o]
            for o in range(4)
        ]
        for n in range(2)
    ]
    close(layer(T(image)), np.array(expected))


@pytest.mark.parametrize(
    ("mode", "theirs"), [("zeros", "fill"), ("reflect", "symm"), ("circular", "wrap")]
)
def test_convolution_pads_as_asked(mode, theirs):
    image = numbers(5, 5)
    layer = filled(nn.Conv2d(1, 1, 3, padding=1, padding_mode=mode, bias=False))
    kernel = layer.weight.detach().numpy()[0, 0]
    if mode == "reflect":
        expected = signal.correlate2d(np.pad(image, 1, mode="reflect"), kernel, "valid")
    else:
        expected = signal.correlate2d(image, kernel, "same", boundary=theirs)
    close(layer(T(image[None]))[0], expected)


def test_gradient_of_a_convolution_is_the_full_convolution():
    x, g = numbers(9), numbers(6, seed=3)
    kernel = numbers(4, seed=4)
    leaf, weight = T(x[None, None], requires_grad=True), T(kernel[None, None], requires_grad=True)
    nn.functional.conv1d(leaf, weight).backward(T(g[None, None]))
    close(leaf.grad[0, 0], np.convolve(g, kernel, "full"))
    close(weight.grad[0, 0], np.correlate(x, g, "valid"))


def test_maximum_of_a_window_gives_its_gradient_to_the_first_of_equals():
    x = T([[[1.0, 1.0, 2.0, 3.0, 3.0, 3.0]]], requires_grad=True)
    nn.MaxPool1d(3)(x).sum().backward()
    assert x.grad.tolist() == [[[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]]]


def test_pooling_tells_where_the_largest_elements_are():
    x = numbers(2, 3, 6, 7)
    values, places = nn.functional.max_pool2d(T(x), (2, 3), (2, 2), (1, 1), return_indices=True)
    plane = x.reshape(2, 3, -1)
    np.testing.assert_array_equal(
        np.take_along_axis(plane, places.numpy().reshape(2, 3, -1), 2),
        values.numpy().reshape(2, 3, -1),
    )


def test_mean_of_windows_counts_padding_only_if_asked():
    x = T([[[1.0, 2.0, 3.0]]])
    assert nn.AvgPool1d(2, 2, 1)(x).tolist() == [[[0.5, 2.5]]]
    assert nn.AvgPool1d(2, 2, 1, count_include_pad=False)(x).tolist() == [[[1.0, 2.5]]]
    assert nn.AvgPool1d(2, 2, ceil_mode=True)(x).tolist() == [[[1.5, 3.0]]]


def test_embedding_gives_rows_and_trains_no_padding():
    table = nn.Embedding(4, 2, padding_idx=-1)
    assert table.weight[3].tolist() == [0.0, 0.0]
    rows = table(sg.tensor([3, 0, 0]))
    assert rows.tolist() == table.weight.detach().numpy()[[3, 0, 0]].tolist()
    rows.sum().backward()
    assert table.weight.grad.tolist() == [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_normalisations_by_numpy():
    x = numbers(3, 6)
    layer = filled(nn.LayerNorm(6))
    scaled = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(layer(T(x)), scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy())
    root = nn.RMSNorm(6, eps=0.1).double()
    close(root(T(x)), x / np.sqrt((x * x).mean(1, keepdims=True) + 0.1))
    halves = x.reshape(3, 2, 3)
    expected = (halves - halves.mean(2, keepdims=True)) / np.sqrt(
        halves.var(2, keepdims=True) + 1e-5
    )
    close(nn.GroupNorm(2, 6).double()(T(x)), expected.reshape(3, 6))


def test_batch_normalisation_keeps_running_statistics():
    x = numbers(8, 3, 5)
    layer = nn.BatchNorm1d(3, momentum=0.25).double()
    centre, spread = x.mean((0, 2)), x.var((0, 2))
    by_channel = (1, 3, 1)
    close(
        layer(T(x)), (x - centre.reshape(by_channel)) / np.sqrt(spread.reshape(by_channel) + 1e-5)
    )
    close(layer.running_mean, 0.25 * centre)
    close(layer.running_var, 0.75 + 0.25 * x.var((0, 2), ddof=1))
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    used = layer(T(x))
    close(
        used,
        (x - 0.25 * centre.reshape(by_channel))
        / np.sqrt(layer.running_var.numpy().reshape(by_channel) + 1e-5),
    )
    assert layer.num_batches_tracked.item() == 1


def test_batch_normalisation_may_average_all_batches():
    layer = nn.BatchNorm1d(1, momentum=None).double()
    for value in (1.0, 2.0, 6.0):
        layer(T([[value], [value + 2]]))
    assert layer.running_mean.tolist() == pytest.approx([4.0])


def test_dropout_scales_what_it_keeps():
    sg.manual_seed(0)
    layer = nn.Dropout(0.25)
    made = layer(sg.ones(40000)).numpy()
    np.testing.assert_allclose(np.unique(made), [0.0, 4 / 3], rtol=1e-6)
    # Five standard deviations of a mean of 40,000 draws.
    assert abs(np.mean(made == 0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 40000)
    assert layer.eval()(sg.ones(3)).tolist() == [1.0, 1.0, 1.0]


def maps(cell, x, h):
    """What a recurrent cell's gates get from input and state."""
    wi, wh, bi, bh = (p.detach().numpy() for p in cell.parameters())
    return x @ wi.T + bi, h @ wh.T + bh


def test_recurrent_cells_by_their_equations():
    x, h, c = numbers(4, 3), numbers(4, 2, seed=2), numbers(4, 2, seed=3)
    plain = filled(nn.RNNCell(3, 2))
    a, b = maps(plain, x, h)
    close(plain(T(x), T(h)), np.tanh(a + b))
    long = filled(nn.LSTMCell(3, 2))
    a, b = maps(long, x, h)
    i, f, g, o = np.split(a + b, 4, axis=1)
    memory = special.expit(f) * c + special.expit(i) * np.tanh(g)
    found = long(T(x), (T(h), T(c)))
    close(found[1], memory)
    close(found[0], special.expit(o) * np.tanh(memory))
    gated = filled(nn.GRUCell(3, 2))
    a, b = maps(gated, x, h)
    (ra, za, na), (rb, zb, nb) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
    z = special.expit(za + zb)
    new = np.tanh(na + special.expit(ra + rb) * nb)
    close(gated(T(x), T(h)), (1 - z) * new + z * h)
    a, b = maps(gated, x, np.zeros((4, 2)))
    assert gated(T(x)).shape == (4, 2)


def test_attention_of_several_heads():
    layer = filled(nn.MultiheadAttention(4, 2, batch_first=True))
    q, k = numbers(1, 3, 4), numbers(1, 5, 4, seed=2)
    mask = np.triu(np.ones((3, 5), bool), 3)
    weights, bias, out, out_bias = (p.detach().numpy() for p in layer.parameters())
    parts = [
        x[0] @ weights[4 * n : 4 * n + 4].T + bias[4 * n : 4 * n + 4]
        for n, x in enumerate((q, k, k))
    ]
    heads, seen = [], []
    for h in range(2):
        mine = [p[:, 2 * h : 2 * h + 2] for p in parts]
        scores = np.where(mask, -np.inf, mine[0] @ mine[1].T / np.sqrt(2))
        seen.append(special.softmax(scores, axis=1))
        heads.append(seen[-1] @ mine[2])
    found, shown = layer(T(q), T(k), T(k), attn_mask=sg.tensor(mask))
    close(found[0], np.concatenate(heads, axis=1) @ out.T + out_bias)
    close(shown[0], np.mean(seen, axis=0))
    padded, _ = layer(
        T(q), T(k), T(k), key_padding_mask=sg.tensor([[False, False, False, True, True]])
    )
    close(padded, layer(T(q), T(k[:, :3]), T(k[:, :3]))[0].detach().numpy())


X = np.linspace(-3, 3, 13)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.ReLU(), np.maximum(X, 0)),
        (nn.ReLU6(), np.clip(X, 0, 6)),
        (nn.LeakyReLU(0.2), np.where(X > 0, X, 0.2 * X)),
        (nn.ELU(0.5), np.where(X > 0, X, 0.5 * np.expm1(X))),
        (nn.GELU(), X * special.ndtr(X)),
        (nn.SiLU(), X * special.expit(X)),
        (nn.Mish(), X * np.tanh(np.log1p(np.exp(X)))),
        (nn.Sigmoid(), special.expit(X)),
        (nn.LogSigmoid(), special.log_expit(X)),
        (nn.Tanh(), np.tanh(X)),
        (nn.Softplus(2.0), np.log1p(np.exp(2 * X)) / 2),
        (nn.Softsign(), X / (1 + np.abs(X))),
        (nn.Hardtanh(-2, 0.5), np.clip(X, -2, 0.5)),
        (nn.Threshold(0.4, -7.0), np.where(X > 0.4, X, -7.0)),
        (nn.Softshrink(1.0), np.sign(X) * np.maximum(np.abs(X) - 1, 0)),
        (nn.Softmax(0), special.softmax(X)),
        (nn.LogSoftmax(dim=0), special.log_softmax(X)),
        (nn.PReLU().double(), np.where(X > 0, X, 0.25 * X)),
        (nn.Identity(1, x=2), X),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_activation(module, expected):
    close(module(T(X)), expected)


def test_activation_in_place():
    x = T([-1.0, 2.0])
    assert nn.ReLU(inplace=True)(x) is x
    assert x.tolist() == [0.0, 2.0]


def test_activation_refuses_unknown_settings():
    with pytest.raises(TypeError, match="unexpected keyword argument 'slope'"):
        nn.LeakyReLU(slope=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'threshold'"):
        nn.Threshold()


P, Q = np.array([0.2, 0.7, 0.4]), np.array([0.0, 1.0, 0.5])
SCORES, CLASSES = numbers(4, 3, seed=7), np.array([0, 2, 1, 2])
LOGS = special.log_softmax(SCORES, axis=1)
WEIGHTS = np.array([1.0, 2.0, 0.5])


@pytest.mark.parametrize(
    ("loss", "args", "expected"),
    [
        (nn.MSELoss(), (P, Q), np.mean((P - Q) ** 2)),
        (nn.MSELoss(reduction="none"), (P, Q), (P - Q) ** 2),
        (nn.L1Loss(reduction="sum"), (P, Q), np.abs(P - Q).sum()),
        (nn.HuberLoss(delta=0.25), (P, Q), np.mean(special.huber(0.25, P - Q))),
        (nn.SmoothL1Loss(beta=0.25), (P, Q), np.mean(special.huber(0.25, P - Q)) / 0.25),
        (nn.BCELoss(), (P, Q), np.mean(-Q * np.log(P) - (1 - Q) * np.log(1 - P))),
        (
            nn.BCEWithLogitsLoss(),
            (P, Q),
            np.mean(-Q * special.log_expit(P) - (1 - Q) * special.log_expit(-P)),
        ),
        (nn.KLDivLoss(reduction="sum"), (np.log(P), P[::-1]), np.sum(special.rel_entr(P[::-1], P))),
        (nn.CrossEntropyLoss(), (SCORES, CLASSES), -LOGS[range(4), CLASSES].mean()),
        (nn.NLLLoss(reduction="sum"), (LOGS, CLASSES), -LOGS[range(4), CLASSES].sum()),
        (
            nn.CrossEntropyLoss(weight=T(WEIGHTS)),
            (SCORES, CLASSES),
            -(WEIGHTS[CLASSES] * LOGS[range(4), CLASSES]).sum() / WEIGHTS[CLASSES].sum(),
        ),
        (
            nn.CrossEntropyLoss(label_smoothing=0.3),
            (SCORES, CLASSES),
            -(0.7 * LOGS[range(4), CLASSES] + 0.1 * LOGS.sum(1)).mean(),
        ),
        (nn.GaussianNLLLoss(), (P, Q, P + 1), np.mean(np.log(P + 1) + (P - Q) ** 2 / (P + 1)) / 2),
    ],
)
def test_loss(loss, args, expected):
    given = [sg.tensor(a) if a.dtype.kind == "i" else T(a) for a in args]
    close(loss(*given), expected)


# -- parameters ---------------------------------------------------------------------------


def test_parameter_is_a_leaf_over_the_same_memory():
    data = sg.ones(2)
    with sg.no_grad():
        p = nn.Parameter(data)
    assert isinstance(p, sg.Tensor) and p.is_leaf and p.requires_grad
    data[0] = 5.0
    assert p.tolist() == [5.0, 1.0]
    assert type(p * 1) is type(p[0]) is type(p.detach()) is sg.Tensor
    assert repr(p) == "Parameter containing:\ntensor([5., 1.], requires_grad=True)"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_of_a_parameter_are_parameters(copied):
    p = nn.Parameter(sg.ones(2), requires_grad=False)
    p.mark = "kept"
    made = copied(p)
    assert (
        type(made) is nn.Parameter
        and made is not p
        and not made.requires_grad
        and made.mark == "kept"
    )
    p.fill_(3.0)
    assert made.tolist() == [1.0, 1.0]


def test_copies_share_what_was_shared():
    line = nn.Linear(1, 1)
    tied = nn.ModuleList([line, line])
    made = copy.deepcopy(tied)
    assert made[0].weight is made[1].weight and made[0].weight is not line.weight


def test_integers_are_no_parameters():
    with pytest.raises(
        RuntimeError, match="nly Tensors of floating point and complex dtype can require grad"
    ):
        nn.Parameter(sg.tensor([1]))

"""In-place methods that change a tensor's shape and not its memory: values by NumPy's views."""

import numpy as np
import pytest

import symgrad as sg

SHAPES = [
    ("t_", (), (2, 3), np.transpose),
    ("transpose_", (0, 2), (2, 3, 4), lambda a: a.swapaxes(0, 2)),
    ("swapaxes_", (-1, 0), (2, 3), lambda a: a.swapaxes(-1, 0)),
    ("swapdims_", (0, 1), (2, 2), lambda a: a.swapaxes(0, 1)),
    ("squeeze_", (), (1, 3, 1), np.squeeze),
    ("squeeze_", (0,), (3, 1), lambda a: a),
    ("unsqueeze_", (1,), (3,), lambda a: a[:, None]),
]


@pytest.mark.parametrize(("name", "args", "shape", "view"), SHAPES)
def test_the_memory_stays_and_is_shared(name, args, shape, view):
    data = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    x = sg.tensor(data)
    before = x.view(-1)
    assert getattr(x, name)(*args) is x
    want = view(data)
    assert tuple(x.shape) == want.shape and x._version == 1
    np.testing.assert_array_equal(x.numpy(), want)
    np.testing.assert_array_equal(before.numpy(), data.ravel())
    x.mul_(2)
    np.testing.assert_array_equal(before.numpy(), 2 * data.ravel())
    before[0] = 9.0
    want = 2 * data
    want.flat[0] = 9.0
    np.testing.assert_array_equal(x.numpy(), view(want))
    assert (x + 1).shape == x.shape


def test_derivatives_follow_a_changed_shape():
    x = sg.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    y = x * 2
    y.t_()
    factor = sg.tensor([[1.0], [10.0], [100.0]])
    (y * factor).sum().backward()
    assert x.grad.tolist() == [[2.0, 20.0, 200.0]]
    z = (x * 3)[0]
    z.unsqueeze_(0).mul_(x)
    (g,) = sg.autograd.grad(z.sum(), x)
    assert g.tolist() == [[6.0, 12.0, 18.0]]


def test_a_leaf_and_a_tensor_from_outside_keep_their_shape():
    leaf = sg.ones(1, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"squeeze_: a leaf Variable .* use squeeze"):
        leaf.squeeze_()
    outside = sg.ones(1, 2)
    with pytest.raises(RuntimeError, match=r"t_: a tensor from outside keeps its shape.*\(1, 2\)"):
        sg.compile(lambda x: outside.t_() * x)(1.0)
    assert outside.shape == (1, 2)
    made = sg.compile(lambda x: (x * 2).t_())(np.ones((2, 3)))
    assert made.shape == (3, 2)


@pytest.mark.parametrize("name", ["view_", "permute_", "select_", "expand_", "real_"])
def test_other_views_have_no_twin(name):
    assert not hasattr(sg.Tensor, name)

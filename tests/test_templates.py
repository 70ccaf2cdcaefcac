"""Composites made by template are node for node what their functions record."""

import contextlib
import math

import numpy as np
import pytest

import symgrad as sg
from symgrad import family, simplify, template
from symgrad.family import COMPOSITES
from symgrad.op import CONSTANT, REGISTRY, grad_mode
from symgrad.structure import behind
from symgrad.testing import draw, subject
from symgrad.testing.samples import nodes, sample_cases

CASES = [c for c in sample_cases() if c[0].name in COMPOSITES]
IDS = [f"{s.name}-{number}-{floating.name}" for s, number, floating in CASES]


def origin(name, x):
    """An operand of the same shape and dtype, as the result of some op."""
    if name == "leaf" or x.dtype.category != 2:
        return x
    if name == "product":
        return x * 1.5
    if name == "moved":
        return REGISTRY["flip"](x, dims=(0,)) if x.shape and "flip" in REGISTRY else x * 1.5
    return {
        "exp": REGISTRY["exp"],
        "sigmoid": REGISTRY["sigmoid"],
        "sum": lambda v: 1.0 + REGISTRY["exp"](v),
    }[name](x)


def described(result, operands):
    """All that tells two graphs over these operands apart."""
    roots = result if isinstance(result, list | tuple) else [result]
    roots = [r for r in roots if isinstance(r, sg.expr.Expr)]
    found = behind(roots, True)
    place = {id(n): k for k, n in enumerate(found)}
    names = {id(n): k for k, n in enumerate(operands)}
    lines = []
    for n in found:
        number = repr(n.value) if n.op is CONSTANT else None
        lines.append(
            (n.op.name, n.attrs, n.shape, n.dtype, n.requires_grad, number, names.get(id(n)))
            + tuple(place[id(a)] for a in n.args if id(a) in place)
        )
    return lines, [place[id(r)] for r in roots]


def calls(case, from_op, count):
    """Descriptions of the same call made several times, on operands of its own each time."""
    s, number, floating = case
    composite = COMPOSITES[s.name]
    for _ in range(count):
        drawn = draw(subject(s.name), number, floating)
        operands = [origin(from_op, x) for x in nodes(drawn.arrays)]
        args, options = drawn.arguments(operands)
        yield described(composite(*args, **options), operands)


@pytest.mark.parametrize("from_op", ["leaf", "product", "moved", "exp", "sigmoid", "sum"])
def test_a_template_makes_the_nodes_that_the_function_records(from_op, monkeypatch):
    direct = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            family, "expanded", lambda function, args, options: function(*args, **options)
        )
        for name, case in zip(IDS, CASES, strict=True):
            # Some functions take only certain values, which an operand made by an op may leave.
            with contextlib.suppress(RuntimeError, IndexError):
                (direct[name],) = calls(case, from_op, 1)
    assert len(direct) > 0.9 * len(CASES)
    template.forget()
    for name, case in zip(IDS, CASES, strict=True):
        if name in direct:
            # A template of plain operands must not serve those that an accuracy rule looks at.
            assert len(list(calls(case, "leaf", 3))) == 3
            for made in calls(case, from_op, 3):
                assert made == direct[name], name


def known(name, *args, **options):
    """Whether the third call of a composite was made by template."""
    template.forget()
    for _ in range(3):
        COMPOSITES[name](*args, **options)
    return any(
        isinstance(t, template.Template)
        for key, t in template._TEMPLATES.items()
        if key[0] is COMPOSITES[name].function
    )


def test_what_networks_are_made_of_is_made_by_template():
    x, w, b = (t.expr() for t in (sg.ones(4, 3), sg.ones(2, 3), sg.ones(2)))
    classes = sg.tensor([0, 1, 2, 1]).expr()
    assert known("linear", x, w, b)
    assert known("softmax", x, -1)
    assert known("layer_norm", x, (3,))
    assert known("mean", x)
    assert known("cross_entropy", x, classes)


def test_what_depends_on_more_than_kinds_is_not():
    x = sg.ones(4, 3).expr()
    assert not known("logsumexp", REGISTRY["exp"](x), 1)
    assert not known("mse_loss", x, x)
    assert not known("one_hot", sg.tensor([0, 1]).expr())


def test_a_wrong_class_is_refused_at_every_call():
    x = sg.ones(3, 4)
    for target in ([0, 1, 2], [3, 2, 1], [1, 1, 1]):
        sg.nn.functional.cross_entropy(x, sg.tensor(target))
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        sg.nn.functional.cross_entropy(x, sg.tensor([0, 4, 1]))


def shifted(x, by):
    return x + by


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (1, True), (1, 1.0), (2.5, 3.5)])
def test_options_that_are_equal_but_not_the_same_are_kept_apart(first, second):
    template.forget()
    for _ in range(3):
        for by in (first, second):
            made = template.expanded(shifted, (sg.ones(2, dtype=sg.float64).expr(),), {"by": by})
            number = (
                made.args[1].value if made.args[1].op is CONSTANT else made.args[1].args[0].value
            )
            assert number == by and math.copysign(1.0, number) == math.copysign(1.0, by)


def test_grad_mode_and_accuracy_rules_are_asked_at_every_call():
    def logarithm(x):
        return sg.ops.transcendental.log(sg.ops.special.sigmoid(x))

    x = sg.tensor([0.5], requires_grad=True).expr()
    template.forget()
    for enabled in (True, False, True):
        for _ in range(3):
            with grad_mode(enabled):
                assert template.expanded(logarithm, (x,), {}).requires_grad is enabled
    stable = template.expanded(logarithm, (x,), {}).op
    simplify.set_enabled(False)
    try:
        for _ in range(3):
            assert template.expanded(logarithm, (x,), {}).op is REGISTRY["log"] is not stable
    finally:
        simplify.set_enabled(True)
    assert template.expanded(logarithm, (x,), {}).op is stable


def test_values_follow_the_operands_not_the_first_call():
    for k in range(4):
        x = np.arange(6.0).reshape(2, 3) * (k + 1)
        found = sg.softmax(sg.tensor(x), -1).numpy()
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-14)


VIEWS = {
    "row": (lambda x: x[1], lambda a: a[1]),
    "last row": (lambda x: x[-1], lambda a: a[-1]),
    "element": (lambda x: x[1, 2], lambda a: a[1, 2]),
    "column": (lambda x: x[:, 2], lambda a: a[:, 2]),
    "rows": (lambda x: x[0:2], lambda a: a[0:2]),
    "every other": (lambda x: x[..., ::2], lambda a: a[..., ::2]),
    "new axis": (lambda x: x[None, 1:], lambda a: a[None, 1:]),
    "transposed": (lambda x: x.T, lambda a: a.T),
    "swapped": (lambda x: x.transpose(0, 1), lambda a: a.swapaxes(0, 1)),
    "reshaped": (lambda x: x.reshape(4, 3), lambda a: a.reshape(4, 3)),
    "in one": (lambda x: x.reshape((4, 3)), lambda a: a.reshape(4, 3)),
    "unsqueezed": (lambda x: x.unsqueeze(1), lambda a: a[:, None]),
    "as it is": (lambda x: x.reshape(3, 4), lambda a: a),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_made_again_is_made_of_the_same_nodes_by_no_function(name, monkeypatch):
    view, reference = VIEWS[name]
    array = np.arange(12.0).reshape(3, 4)
    first, second = (sg.tensor(array, requires_grad=True) for _ in range(2))
    made = view(first)
    movements = [type(o) for o in REGISTRY.values() if o.family == "movement"]
    for kind in set(movements):
        monkeypatch.setattr(kind, "__call__", lambda *_, **__: pytest.fail("recorded anew"))
    again = view(second)
    monkeypatch.undo()
    assert described(again.expr(), [second.expr()]) == described(made.expr(), [first.expr()])
    np.testing.assert_array_equal(again.detach().numpy(), reference(array))
    assert again._path == made._path
    with sg.no_grad():
        again.mul_(2.0)
        kept = view(second)
    assert not kept.expr().requires_grad or kept.is_leaf
    np.testing.assert_array_equal(kept.detach().numpy(), 2.0 * reference(array))


def test_keys_that_are_equal_and_mean_something_else_are_told_apart():
    array = np.arange(12.0).reshape(3, 4)
    x = sg.tensor(array)
    for _ in range(3):
        np.testing.assert_array_equal(x[1].numpy(), array[1])
        np.testing.assert_array_equal(x[True].numpy(), array[True])
        np.testing.assert_array_equal(x[0, 1].numpy(), array[0, 1])
        np.testing.assert_array_equal(x[[0, 1]].numpy(), array[[0, 1]])
        np.testing.assert_array_equal(x[0:1].numpy(), array[0:1])
        np.testing.assert_array_equal(x[(0, 1, None)].numpy(), array[0, 1, None])
        np.testing.assert_array_equal(x[1:, 0].numpy(), array[1:, 0])
    with pytest.raises(IndexError):
        x[3]

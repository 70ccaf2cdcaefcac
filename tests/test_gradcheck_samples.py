"""The user's own instruments, `gradcheck` and `gradgradcheck`, pass at a smooth sample of every op
through which a derivative flows: the first of at most `MOST` elements.

The op is called on tensors, its floating results are added up to a list, and the checkers
difference them without any knowledge of the op. Symmetric matrices stay symmetric when they are
moved (`SYMMETRIC`), as derivatives there are along such.
"""

import pytest
from test_mutants import SYMMETRIC

import symgrad as sg
from symgrad.expr import Expr
from symgrad.tensor import Tensor
from symgrad.testing import (
    along_symmetric,
    call,
    draw,
    has_derivative,
    subjects,
)
from symgrad.testing.derivatives import smooth_point

MOST = 60
"""Elements of the floating inputs of a sample, at most: the checkers difference each one."""


def prepared(subject, number):
    """A function of the floating tensors of a sample, and these; None if nothing flows."""
    if subject.name in SYMMETRIC:
        subject = along_symmetric(subject)
    point = smooth_point(subject, number)
    if point is None:
        return None
    drawn = draw(subject, number, sg.float64, point.attempt)
    places = [k for k, a in enumerate(drawn.arrays) if a.dtype.kind == "f"]
    if sum(drawn.arrays[k].size for k in places) > MOST:
        return None
    others = {k: sg.tensor(a) for k, a in enumerate(drawn.arrays) if k not in places}

    def function(*moving):
        table = {**others, **dict(zip(places, moving, strict=True))}
        nodes = [table[k].expr() for k in range(len(drawn.arrays))]
        results = [r for r in call(subject, drawn, nodes) if isinstance(r, Expr)]
        return tuple(Tensor(r) for r in results if r.dtype.is_floating_point and r.requires_grad)

    leaves = [sg.tensor(drawn.arrays[k], requires_grad=True) for k in places]
    return (function, leaves) if function(*leaves) else None


def samples():
    for subject in subjects():
        for number in range(len(subject.samples)):
            if has_derivative(subject, number) and prepared(subject, number) is not None:
                yield pytest.param(subject, number, id=f"{subject.name}-{number}")
                break


@pytest.mark.parametrize(("subject", "number"), list(samples()))
def test_gradcheck_and_gradgradcheck_pass(subject, number):
    found = prepared(subject, number)
    assert found is not None
    function, leaves = found
    settings = {"check_batched_grad": False, "check_undefined_grad": False}
    assert sg.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-5, **settings)
    first = function(*leaves)
    slopes = sg.autograd.grad(
        [y.sum() for y in first], leaves, create_graph=True, allow_unused=True
    )
    if any(g is not None and g.requires_grad for g in slopes):
        assert sg.autograd.gradgradcheck(function, leaves, atol=1e-6, rtol=1e-5, **settings)


def test_hardly_an_op_is_left_out():
    assert len(list(samples())) >= 300

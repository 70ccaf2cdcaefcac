"""The user's side of an op: function, method, in-place twin, compiled function, pickle and copy.

All must give the bits of the recorded expression. Start reading at `check_surface`.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

import symgrad
from symgrad import interface
from symgrad.dtypes import DType, float64
from symgrad.tensor import Tensor
from symgrad.testing.derivatives import projection
from symgrad.testing.evaluator import run, same_bits
from symgrad.testing.samples import Drawn, Subject, call, draw, flattened, nodes

OTHER_METHODS = {"where": "the method's tensor is the function's second argument, as in torch"}
"""Methods whose arguments are in another order than the function's."""

PROPERTIES = ("real", "imag")
"""Functions that tensors have as attributes."""


def tensors(drawn: Drawn, requires_grad: bool = False) -> list[Tensor]:
    """The sample's arrays as tensors."""
    return [
        symgrad.tensor(a, requires_grad=requires_grad and a.dtype.kind == "f") for a in drawn.arrays
    ]


def looked(result: Any) -> list[np.ndarray]:
    """The arrays of a result, or of nested sequences of results."""
    return [r.resolve_conj().numpy() for r in flattened(result) if isinstance(r, Tensor)]


def _compare(name: str, found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected), f"{name}: {len(found)} results, not {len(expected)}"
    for k, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(x, y), f"{name}: result {k} is {x}, not {y}"


def public_function(subject: Subject) -> Callable[..., Any] | None:
    """The function that users call, None for an op without one."""
    return interface.FUNCTIONS.get(subject.name)


def check_surface(subject: Subject, number: int, floating: DType) -> None:
    """Function, method, in-place twin, pickle and deep copy of one sample."""
    function = public_function(subject)
    assert function is not None
    drawn = draw(subject, number, floating)
    expected = run(call(subject, drawn, nodes(drawn.arrays, grad=False)))

    args, attrs = drawn.arguments(tensors(drawn))
    made = function(*args, **attrs)
    _compare("function", looked(made), expected)
    for r in flattened(made):
        if isinstance(r, Tensor):
            for name, other in (
                ("pickle", pickle.loads(pickle.dumps(r))),
                ("deepcopy", copy.deepcopy(r)),
            ):
                _compare(name, looked(other), looked(r))

    args, attrs = drawn.arguments(tensors(drawn))
    if not args or not isinstance(args[0], Tensor):
        return
    method = getattr(args[0], subject.name, None)
    if subject.name in PROPERTIES:
        _compare("attribute", looked(method), expected)
    elif method is not None and subject.name not in OTHER_METHODS:
        _compare("method", looked(method(*args[1:], **attrs)), expected)
        if isinstance(made, Tensor):
            _check_in_place(subject, drawn, expected)


def _check_in_place(subject: Subject, drawn: Drawn, expected: list[np.ndarray]) -> None:
    args, attrs = drawn.arguments(tensors(drawn))
    x = args[0]
    twin = getattr(x, f"{subject.name}_", None)
    if twin is None or expected[0].shape != x.shape or expected[0].dtype != x.dtype.numpy:
        return
    others = [a for a in args[1:] if isinstance(a, Tensor)]
    before = [o.numpy().copy() for o in others]
    assert twin(*args[1:], **attrs) is x, "in-place twin returns another tensor"
    _compare("in-place twin", looked(x), expected)
    _compare("other arguments after in-place", looked(others), before)


def check_compiled(subject: Subject, number: int, floating: DType) -> None:
    """`symgrad.compile` of the call gives the same bits, at the first and at later calls."""
    function = public_function(subject)
    assert function is not None
    drawn = draw(subject, number, floating)
    if not drawn.arrays:
        return
    expected = run(call(subject, drawn, nodes(drawn.arrays, grad=False)))

    def program(*given: Any) -> Any:
        args, attrs = drawn.arguments(given)
        return [r for r in flattened(function(*args, **attrs)) if isinstance(r, Tensor)]

    compiled = symgrad.compile(program)
    for turn in range(2):
        _compare(f"compiled, call {turn}", looked(compiled(*tensors(drawn))), expected)


def check_backward(subject: Subject, number: int, floating: DType) -> None:
    """`backward` leaves the bits that the pulled back expressions have."""
    function = public_function(subject)
    assert function is not None
    drawn = draw(subject, number, floating)
    scalar = projection(subject, drawn, subject.seed(number))
    if scalar is None:
        return
    expected = run(scalar.gradient())
    leaves = tensors(drawn, requires_grad=True)
    args, attrs = drawn.arguments(leaves)
    made = [r for r in flattened(function(*args, **attrs)) if isinstance(r, Tensor)]
    outputs = [r for r in made if r.requires_grad and r.dtype is float64]
    rng = subject.seed(number)
    total: Any = None
    for r in outputs:
        signs = np.where(rng.random(r.shape) < 0.5, -1.0, 1.0)
        weights = np.asarray(signs * rng.uniform(0.5, 1.5, r.shape)).astype(r.dtype.numpy)
        term = interface.FUNCTIONS["sum"](interface.FUNCTIONS["mul"](r, symgrad.tensor(weights)))
        total = term if total is None else total + term
    total.backward()
    wanted = [t for k, t in enumerate(leaves) if k in drawn.floating_places and t.numel()]
    found = [np.zeros(t.shape, t.dtype.numpy) if t.grad is None else t.grad.numpy() for t in wanted]
    _compare("backward", found, expected)

"""Values against the reference: within ULPs for elementwise ops, within a tolerance for the rest.

Checks raise AssertionError with the figures that differ. Start reading at `check_value`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.family import Elementwise
from symgrad.op import Op
from symgrad.testing.evaluator import run
from symgrad.testing.samples import Drawn, Subject, call, draw, nodes, truth

ELEMENT_ULP = 4.0
"""Bound of an elementwise op that does not state its own as ``ulp``."""

CANCELLING = {
    "logaddexp": "zero where exp(x) + exp(y) = 1",
    "logaddexp2": "zero where 2**x + 2**y = 1",
    "sine_quotient": "an integral of cosines, zero at many points",
    "digamma": "zeros between its poles",
}
"""Ops whose zeros lie where terms cancel: their ULPs are those of 1 where they are smaller."""

ROUNDINGS = 256.0
"""Bound of everything else, in units of the dtype's epsilon, relative to the largest element."""


def ulps(actual: np.ndarray, expected: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Distance in units of the last place of `actual`'s dtype.

    Parameters
    ----------
    actual : ndarray of float32 or float64
    expected : ndarray
        In float64, or in `actual`'s dtype.
    least : float
        The unit is at least that of this number.

    Returns
    -------
    ndarray of float64
        0 where both are the same NaN or infinity, infinite where one is finite and one not.
    """
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
        size = np.maximum(np.abs(rounded), rounded.dtype.type(least))
        step = np.spacing(size).astype(np.float64)
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64)) / step
    gap = np.where(np.isfinite(actual) & np.isfinite(rounded), gap, np.inf)
    return np.where(same, np.minimum(np.nan_to_num(gap, nan=0.0), 0.5), gap)


def expected_dtype(reference: np.ndarray, drawn: Drawn) -> DType:
    """What torch's promotion gives, from the reference's kind and the arguments.

    A floating result has the widest floating dtype among the arguments with dimensions, else
    among those without, else the default, and a complex one is as precise; other results have the
    reference's dtype.
    """
    asked = drawn.arguments(drawn.arrays)[1].get("dtype")
    if isinstance(asked, DType):
        return asked
    if reference.dtype.kind not in "fc":
        return dtypes.from_numpy(reference.dtype)
    floats = [a for a in drawn.arrays if a.dtype.kind in "fc"]
    chosen = [dtypes.from_numpy(a.dtype).to_real() for a in floats if a.ndim]
    chosen = chosen or [dtypes.from_numpy(a.dtype).to_real() for a in floats]
    widest = max(chosen, key=lambda d: d.itemsize) if chosen else dtypes.get_default_dtype()
    return widest.to_complex() if reference.dtype.kind == "c" else widest


def bound_of(op: Op | None) -> float:
    """The ULP bound of an elementwise op."""
    return float(getattr(op, "ulp", ELEMENT_ULP))


def _errors(op: Elementwise, value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return ulps(value, reference, 1.0 if op.name in CANCELLING else 0.0)


def near(actual: np.ndarray, expected: Sequence[np.ndarray], roundings: float) -> bool:
    """Whether `actual` is within the tolerance of one of the expected arrays."""
    eps = float(np.finfo(actual.dtype).eps)
    for e in expected:
        finite = np.abs(e[np.isfinite(e)])
        scale = float(finite.max()) if finite.size else 0.0
        if np.allclose(
            actual, e, rtol=roundings * eps, atol=roundings * eps * min(scale, 1e30), equal_nan=True
        ):
            return True
    return False


def check_value(subject: Subject, number: int, floating: DType) -> None:
    """Value, shape and dtype of one sample against the reference."""
    drawn = draw(subject, number, floating)
    outputs = call(subject, drawn, nodes(drawn.arrays))
    wide = truth(subject, drawn, wide=True)
    assert len(outputs) == len(wide), f"{len(outputs)} results, reference has {len(wide)}"
    values = run(outputs)
    own: list[np.ndarray] = wide
    if not isinstance(subject.op, Elementwise) and floating is dtypes.float32:
        own = truth(subject, drawn, wide=False)
    for node, value, reference, alike in zip(outputs, values, wide, own, strict=True):
        assert value.shape == node.shape, f"value {value.shape}, node {node.shape}"
        assert value.dtype == node.dtype.numpy, f"value {value.dtype}, node {node.dtype}"
        assert node.shape == reference.shape, f"shape {node.shape}, reference {reference.shape}"
        dtype = expected_dtype(reference, drawn)
        assert node.dtype is dtype, f"dtype {node.dtype}, promotion gives {dtype}"
        if value.dtype.kind not in "fc":
            np.testing.assert_array_equal(value, reference.astype(value.dtype))
        elif isinstance(subject.op, Elementwise) and value.dtype.kind == "f":
            off = _errors(subject.op, value, reference)
            worst = float(off.max()) if off.size else 0.0
            assert worst <= bound_of(subject.op), f"{worst} ULP (bound {bound_of(subject.op)})"
        else:
            roundings = float(getattr(subject.op, "roundings", ROUNDINGS))
            assert near(value, [reference, alike], roundings), f"got {value}, expected {reference}"


def special_numbers(floating: DType) -> np.ndarray:
    """Zeros, units, denormals, the largest, infinities, NaN, and numbers at which ranges end."""
    info = np.finfo(floating.numpy)
    positive = [
        0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 0.3, 10.0, 89.0, 710.0, 2.5e4, 1e10,
        float(info.tiny), float(info.smallest_subnormal), float(info.smallest_subnormal) * 1000,
        float(info.eps), float(info.max), float(info.max) / 2, 1.0 + float(info.eps),
        1.0 - float(info.epsneg), np.pi / 2, 2.0**24 + 2, np.inf,
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        return np.array([*positive, *[-p for p in positive], np.nan], floating.numpy)


def special_arguments(op: Elementwise, floating: DType) -> list[np.ndarray]:
    """All combinations of special numbers (of both booleans, for conditions)."""
    numbers = special_numbers(floating)
    if op.arity - op.conditions > 2:
        numbers = numbers[[0, 1, 4, 13, 16, 22, 23, 24, 39, 45, 46]]
    truth_values = np.array([False, True])
    axes = [truth_values] * op.conditions + [numbers] * (op.arity - op.conditions)
    return [np.ascontiguousarray(a.ravel()) for a in np.meshgrid(*axes, indexing="ij")]


def check_special(
    subject: Subject,
    number: int,
    floating: DType,
    reference: Callable[..., Any] | None = None,
    signs: bool = True,
) -> None:
    """An elementwise op at special values: NaN, infinity and sign of zero as the reference.

    In float32 the reference computed in float64 or the one computed in float32 will do: what
    jumps may jump elsewhere.

    Parameters
    ----------
    reference : callable, optional
        In place of the op's own.
    signs : bool
        Whether the sign of zero counts.
    """
    op = subject.op
    assert isinstance(op, Elementwise)
    drawn = draw(subject, number, floating)
    attrs = drawn.arguments(drawn.arrays)[1]
    arrays = special_arguments(op, floating)
    (value,) = run([op(*nodes(arrays, grad=False), **attrs)])
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    ref = op.ref if reference is None else reference
    wrong = np.ones(value.shape, bool)
    for given in (wide, arrays):
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            exact = np.asarray(ref(*given, **attrs))
            expected = exact.astype(value.dtype)
        if value.dtype.kind != "f":
            wrong &= value != expected
        else:
            turned = (value == 0) & (expected == 0) & (np.signbit(value) != np.signbit(expected))
            wrong &= (_errors(op, value, exact) > bound_of(op)) | (turned & signs)
    if wrong.any():
        shown = [
            f"{op.name}({', '.join(repr(a[k].item()) for a in arrays)}) = {value[k]!r}, "
            f"expected {expected[k]!r}"
            for k in np.flatnonzero(wrong)[:8]
        ]
        raise AssertionError(f"{int(wrong.sum())} special values differ:\n" + "\n".join(shown))


def check_error(subject: Subject, number: int) -> None:
    """An error sample raises its class with its words, at the call or when it is computed."""
    case = subject.errors[number]
    drawn = Drawn(case, subject.seed(), dtypes.float64)
    try:
        result = run(call(subject, drawn, nodes(drawn.arrays)))
    except case.error as error:
        assert case.match is None or re.search(case.match, str(error)), f"words: {error}"
        return
    raise AssertionError(f"no error (gave {result}); expected {case.error.__name__}")

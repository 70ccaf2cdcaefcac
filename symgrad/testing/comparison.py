"""torch.testing's comparison of values, which may be nested. Start reading at `assert_close`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.tensor import Tensor

_TOLERANCES = {
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""Relative and absolute tolerance by dtype, torch's; anything else has to be equal."""

_SCALARS = bool | int | float | complex


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Any = None,
) -> None:
    """Check that values are close: ``|actual - expected| <= atol + rtol * |expected|``.

    Parameters
    ----------
    actual, expected : Tensor, array, number, or sequences and mappings of them
    rtol, atol : float, optional
        Both or neither; by default they depend on the dtype.
    equal_nan : bool
        Whether NaN equals NaN.
    check_dtype : bool
    msg : str or callable, optional
        The message of a failure, or a function of it.

    Raises
    ------
    AssertionError
        On mismatch of values, dtype or shape.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.testing.assert_close(sg.tensor([1., 2.]), sg.tensor([1., 2.00001]), rtol=1e-4, atol=0.)
    """
    if (rtol is None) != (atol is None):
        missing = "atol" if atol is None else "rtol"
        raise ValueError(
            f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}."
        )
    pending: list[tuple[Any, Any, tuple[Any, ...]]] = [(actual, expected, ())]
    while pending:
        a, b, place = pending.pop()
        wrong = _nested(a, b, place, pending)
        if wrong is None and not isinstance(a, Mapping) and not _is_sequence(a):
            wrong = _difference(a, b, rtol, atol, equal_nan, check_dtype)
        if not wrong:
            continue
        if place:
            wrong += f"\n\nThe failure occurred for item {''.join(f'[{p!r}]' for p in place)}"
        if callable(msg):
            wrong = msg(wrong)
        raise AssertionError(msg if isinstance(msg, str) else wrong)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _nested(a: Any, b: Any, place: tuple[Any, ...], pending: list[Any]) -> str | None:
    """Take containers apart; returns what is wrong with them."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return (
                "The keys of the mappings do not match:\n"
                f"Missing keys in the actual mapping: {sorted(b.keys() - a.keys())}\n"
                f"Additional keys in the actual mapping: {sorted(a.keys() - b.keys())}"
            )
        pending += [(a[k], b[k], (*place, k)) for k in reversed(list(a))]
    elif _is_sequence(a) and _is_sequence(b):
        if len(a) != len(b):
            return f"The length of the sequences mismatch: {len(a)} != {len(b)}"
        pending += [(a[k], b[k], (*place, k)) for k in reversed(range(len(a)))]
    elif isinstance(a, Mapping) or isinstance(b, Mapping) or _is_sequence(a) or _is_sequence(b):
        raise TypeError(_no_pair(a, b))
    return None


def _no_pair(a: Any, b: Any) -> str:
    return f"No comparison pair was able to handle inputs of type {type(a)} and {type(b)}."


def _array(value: Any) -> np.ndarray:
    return value.look() if isinstance(value, Tensor) else np.asarray(value)


def _difference(
    a: Any, b: Any, rtol: float | None, atol: float | None, equal_nan: bool, check_dtype: bool
) -> str | None:
    """What is wrong with two values that are no containers."""
    if a is None or b is None:
        return None if a is b else f"None mismatch: {a} is not {b}"
    tensors = Tensor | np.ndarray | np.generic
    scalars = isinstance(a, _SCALARS) and isinstance(b, _SCALARS)
    if not scalars and not (isinstance(a, tensors) and isinstance(b, tensors)):
        raise TypeError(_no_pair(a, b))
    x, y = _array(a), _array(b)
    if x.shape != y.shape:
        return f"The values for attribute 'shape' do not match: {_shown(a, x)} != {_shown(b, y)}."
    if check_dtype and not scalars and x.dtype != y.dtype:
        kinds = [v.dtype if isinstance(v, Tensor) else dtypes.from_numpy(v.dtype) for v in (a, b)]
        return f"The values for attribute 'dtype' do not match: {kinds[0]!r} != {kinds[1]!r}."
    if rtol is None or atol is None:
        found = [_TOLERANCES.get(v.dtype.name, (0.0, 0.0)) for v in (x, y)]
        rtol, atol = max(f[0] for f in found), max(f[1] for f in found)
    common = np.result_type(x, y)
    if common.kind == "b":
        common = np.dtype(np.int64)
    x, y = x.astype(common), y.astype(common)
    close = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if close.all():
        return None
    how = "close" if rtol or atol else "equal"
    with np.errstate(all="ignore"):
        absolute = np.abs(x - y)
        relative = absolute / np.abs(y)
    if x.ndim == 0:
        return (
            f"Scalars are not {how}!\n\nExpected {y.item()} but got {x.item()}.\n"
            f"Absolute difference: {absolute.item()}{_allowed(atol, how)}\n"
            f"Relative difference: {relative.item()}{_allowed(rtol, how)}"
        )
    count = int(np.sum(~close))
    lines = [
        f"Tensor-likes are not {how}!\n",
        f"Mismatched elements: {count} / {x.size} ({100 * count / x.size:.1f}%)",
    ]
    for word, values, bound in (("absolute", absolute, atol), ("relative", relative, rtol)):
        # Only elements that differ too much compete; NaN among them is the greatest.
        ranked = np.where(close, -1.0, np.where(np.isnan(values), np.inf, values))
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ranked)), x.shape))
        lines.append(
            f"Greatest {word} difference: {values[at].item()} at index {at}{_allowed(bound, how)}"
        )
    return "\n".join(lines)


def _shown(value: Any, array: np.ndarray) -> str:
    return repr(value.shape) if isinstance(value, Tensor) else repr(array.shape)


def _allowed(bound: float, how: str) -> str:
    return f" (up to {bound} allowed)" if how == "close" else ""

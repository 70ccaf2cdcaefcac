"""Random tensors: torch's functions over the counter-based generator of `symgrad.random`.

A draw is made when the function is called; inside a compiled function, at each of its calls.
Start reading at `rand`.
"""

from __future__ import annotations

import math
from typing import Any

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.interface import unwrap, wrap
from symgrad.op import cast_to
from symgrad.ops.arithmetic import lt
from symgrad.ops.complex_numbers import view_as_complex
from symgrad.ops.random import draw
from symgrad.ops.rounding import remainder
from symgrad.random import Generator
from symgrad.tensor import Tensor

__all__ = [
    "bernoulli", "normal", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "randperm",
]  # fmt: skip


def _shape(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    if len(size) == 1 and isinstance(size[0], list | tuple):
        size = tuple(size[0])
    shape = tuple(int(s) for s in size)
    if any(s < 0 for s in shape):
        raise RuntimeError(f"{name}: sizes must not be negative (got {list(shape)})")
    return shape


def _floating(name: str, dtype: Any, parts: bool = False) -> DType:
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if not kind.is_floating_point and not (parts and kind.is_complex):
        raise RuntimeError(
            f"{name}: needs a floating dtype (got {kind!r}); use randint for integers"
        )
    return kind


def _drawn(kind: str, shape: tuple[int, ...], dtype: DType, generator: Generator | None) -> Expr:
    """Random numbers; complex ones have both parts drawn alike."""
    if dtype.is_complex:
        return view_as_complex(draw(kind, (*shape, 2), dtype.to_real(), generator))  # type: ignore[no-any-return]
    return draw(kind, shape, dtype, generator)


def _finish(node: Expr, requires_grad: bool) -> Tensor:
    made = wrap(node)
    return made.requires_grad_() if requires_grad else made


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers uniform on [0, 1).

    Examples
    --------
    >>> import symgrad as sg
    >>> _ = sg.manual_seed(0)
    >>> sg.rand(2, 3).shape
    symgrad.Size([2, 3])
    """
    node = _drawn("uniform", _shape("rand", size), _floating("rand", dtype, True), generator)
    return _finish(node, requires_grad)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers; complex ones have parts of variance 1/2."""
    kind, shape = _floating("randn", dtype, True), _shape("randn", size)
    node = _drawn("normal", shape, kind, generator)
    return _finish(node * math.sqrt(0.5) if kind.is_complex else node, requires_grad)


def _integers(
    low: int, high: int, shape: tuple[int, ...], dtype: DType, generator: Generator | None
) -> Expr:
    if low >= high:
        raise RuntimeError(
            f"randint: random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    bits = draw("bits", shape, dtypes.int64, generator)
    return cast_to(remainder(bits, high - low) + low, dtype)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers uniform on [low, high), or on [0, low) when only one bound is given."""
    if size is None:
        low, high, size = 0, low, high
    if size is None:
        raise TypeError(
            "randint: missing size; call randint(high, size) or randint(low, high, size)"
        )
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    node = _integers(int(low), int(high), _shape("randint", (size,)), kind, generator)
    return _finish(node, requires_grad)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: Any = None, device: Any = None
) -> Tensor:
    """The numbers 0, ..., n-1 in random order."""
    if n < 0:
        raise RuntimeError(f"randperm: n must be non-negative, got {n}")
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    return wrap(cast_to(draw("permutation", (n,), dtypes.int64, generator), kind))


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers with the given mean and standard deviation, numbers or tensors."""
    if isinstance(std, int | float) and std < 0:
        raise RuntimeError(f"normal: normal expects std >= 0.0, but found std {std}")
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if size is None and not tensors:
        raise TypeError("normal: missing size; give it, or a tensor as mean or std")
    shape = _shape("normal", (size,)) if size is not None else (unwrap(mean) + unwrap(std)).shape
    kind = tensors[0].dtype if tensors and dtype is None else _floating("normal", dtype)
    node = draw("normal", shape, kind, generator) * unwrap(std) + unwrap(mean)
    return _finish(node, requires_grad)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """1 with the probabilities that `input` holds (or with probability `p`), else 0."""
    x = unwrap(input)
    unit = draw("uniform", x.shape, dtypes.float64, generator)
    hit = lt(unit, cast_to(x, dtypes.float64) if p is None else p)
    return wrap(cast_to(hit, x.dtype))


def rand_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Numbers uniform on [0, 1), shaped as another tensor."""
    return rand(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def randn_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal numbers, shaped as another tensor."""
    return randn(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: Any = None) -> Tensor:
    """Integers uniform on [low, high), shaped as another tensor."""
    if high is None:
        low, high = 0, low
    return randint(low, high, tuple(input.shape), dtype=dtype or input.dtype)


# -- in place -----------------------------------------------------------------------------------


def _uniform(
    self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with numbers uniform on [low, high)."""
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    kind = _floating("uniform_", self.dtype)
    unit = draw("uniform", tuple(self.shape), kind, generator)
    return self.write(unit * (high - low) + low)


def _normal(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with normal numbers."""
    kind = _floating("normal_", self.dtype)
    return self.write(draw("normal", tuple(self.shape), kind, generator) * std + mean)


def _bernoulli(self: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability `p`, else 0."""
    hit = lt(draw("uniform", tuple(self.shape), dtypes.float64, generator), p)
    return self.write(cast_to(hit, self.dtype))


def _random(
    self: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Fill with integers uniform on [low, high)."""
    if high is None:
        low, high = 0, low or 2**24
    return self.write(_integers(low, high, tuple(self.shape), self.dtype, generator))


def attach() -> None:
    """Give `Tensor` the methods that fill it with random numbers."""
    table = {
        "uniform_": _uniform, "normal_": _normal, "bernoulli_": _bernoulli, "random_": _random,
        "bernoulli": bernoulli,
    }  # fmt: skip
    for name, method in table.items():
        setattr(Tensor, name, method)


attach()

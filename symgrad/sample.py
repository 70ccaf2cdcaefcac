"""Samples of ops, from which the tests are written.

Structures: `T`, a tensor argument by description; `Case`, a call. Start reading at `Case`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.dtypes import DType


class T:
    """A tensor argument of a sample: shape, value range, dtype.

    Parameters
    ----------
    *shape : int
    lo, hi : float
        Values are drawn uniformly from [lo, hi].
    dtype : {"float", "int", "bool"} or DType
        "float" stands for each floating dtype in turn.
    make : callable, optional
        Function of (rng, shape) that returns the array, for structured samples such as positive
        definite matrices.
    """

    def __init__(
        self,
        *shape: int,
        lo: float = -2.0,
        hi: float = 2.0,
        dtype: str | DType = "float",
        make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None,
    ) -> None:
        self.shape = shape
        self.lo = lo
        self.hi = hi
        self.dtype = dtype
        self.make = make

    def draw(self, rng: np.random.Generator, floating: np.dtype) -> np.ndarray:
        """An array of this description; `floating` is what "float" stands for."""
        if self.make is not None:
            array = self.make(rng, self.shape)
            if array.dtype.kind == "c":
                return array.astype(np.complex64 if floating == np.float32 else np.complex128)
            return array.astype(floating) if array.dtype.kind == "f" else array
        if self.dtype == "bool":
            return np.asarray(rng.random(self.shape) < 0.5)
        if self.dtype == "int":
            return np.asarray(rng.integers(int(self.lo), int(self.hi) + 1, self.shape))
        numpy_type = floating if self.dtype == "float" else self.dtype.numpy  # type: ignore[union-attr]
        return np.asarray(rng.uniform(self.lo, self.hi, self.shape)).astype(numpy_type)

    def __repr__(self) -> str:
        name = self.dtype if isinstance(self.dtype, str) else self.dtype.name
        return f"{name}{list(self.shape)}"


class Case:
    """One sample call: arguments (`T`, lists of `T`, numbers, arrays) and keywords.

    Parameters
    ----------
    *args
    match : str, optional
        For an error sample: a regular expression that the message must contain.
    error : exception type
        The class of that error.
    smooth : bool
        Whether derivatives may be checked by differences at this sample.
    **attrs
        Keyword arguments of the call.
    """

    def __init__(
        self,
        *args: Any,
        match: str | None = None,
        error: type[Exception] = RuntimeError,
        smooth: bool = True,
        **attrs: Any,
    ) -> None:
        self.args = args
        self.attrs = attrs
        self.match = match
        self.error = error
        self.smooth = smooth

    def __repr__(self) -> str:
        parts = [repr(a) for a in self.args]
        parts += [f"{k}={v!r}" for k, v in self.attrs.items()]
        return ", ".join(parts)

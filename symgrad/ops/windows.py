"""Windows over the last axes of an array, for convolutions and pooling.

`Frame` holds kernel, step, padding and dilation per axis, and makes the windows. Start reading at
`Frame.windows`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from symgrad.expr import Expr
from symgrad.ops.layout import sliced
from symgrad.ops.movement import join_axis, narrow_step, permute, reshape, unfold
from symgrad.ops.padding import pad as padded

Sizes = int | Sequence[int]

SHIFTED = 49
"""Places of a kernel up to which its windows are made of shifted copies."""


def each_axis(name: str, what: str, value: Any, count: int) -> tuple[int, ...]:
    """One number per axis, from one for all or a sequence."""
    given = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    if len(given) == 1:
        given = given * count
    if len(given) != count:
        raise RuntimeError(
            f"{name}: expected {what} to be a single integer value or a list of {count} values to match "
            f"the convolution dimensions, but got {what}={list(given)}"
        )
    return given


class Frame:
    """How windows lie over the last axes of an input.

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
    padding : tuple of (before, after)
    """

    def __init__(
        self,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        padding: Sequence[tuple[int, int]],
        dilation: tuple[int, ...],
    ) -> None:
        self.kernel = kernel
        self.stride = stride
        self.padding = tuple(padding)
        self.dilation = dilation

    def reach(self, axis: int) -> int:
        """How many elements a window spans along an axis."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def counts(self, size: Sequence[int]) -> tuple[int, ...]:
        """How many windows there are along each axis."""
        found = []
        for axis, (s, (before, after)) in enumerate(zip(size, self.padding, strict=True)):
            found.append((s + before + after - self.reach(axis)) // self.stride[axis] + 1)
        return tuple(found)

    def grown(self, x: Expr, filler: float) -> Expr:
        """The input with its padding."""
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return padded(x, amounts, "constant", filler) if any(amounts) else x

    def windows(self, x: Expr, filler: float = 0.0) -> Expr:
        """The windows: the kernel's axes come last."""
        x = self.grown(x, filler)
        count = len(self.kernel)
        first = x.ndim - count
        for axis in range(count):
            x = unfold(x, first + axis, self.reach(axis), self.stride[axis])
            if self.dilation[axis] > 1:
                x = sliced(x, x.ndim - 1, 0, self.kernel[axis], self.dilation[axis])
        return x

    def columns(self, x: Expr, counts: tuple[int, ...]) -> Expr:
        """The windows, with one axis for the kernel's places after the first axis.

        Shifted copies of the input, one per place: their adjoint is one sum of shifted copies,
        which the compiler fuses. Large kernels are left to `windows`.
        """
        axes = len(self.kernel)
        if math.prod(self.kernel) > SHIFTED:
            made = self.windows(x)
            order = (0, *range(made.ndim - axes, made.ndim), *range(1, made.ndim - axes))
            made = permute(made, order)
            return reshape(made, (made.shape[0], math.prod(self.kernel), *made.shape[1 + axes :]))  # type: ignore[no-any-return]
        x = self.grown(x, 0.0)
        lead = x.ndim - axes
        steps = (1,) * lead + self.stride
        parts = []
        for place in itertools.product(*(range(k) for k in self.kernel)):
            starts = (0,) * lead + tuple(k * d for k, d in zip(place, self.dilation, strict=True))
            part = narrow_step(x, starts=starts, steps=steps, counts=(*x.shape[:lead], *counts))
            parts.append(reshape(part, (part.shape[0], 1, *part.shape[1:])))
        return parts[0] if len(parts) == 1 else join_axis(*parts, dim=1)  # type: ignore[no-any-return]

"""Padding, and adding up overlapping windows.

`pad` takes torch's pairs, last axis first. A constant is an embedding; the other modes join
slices of the tensor itself, so their derivatives are those of slices. Start reading at `pad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.op import cast_to, filling
from symgrad.ops.arithmetic import add, where
from symgrad.ops.create import iota
from symgrad.ops.layout import moved_axis, sliced
from symgrad.ops.movement import embed, expand, flip, full, join_axis, reshape
from symgrad.ops.positions import put_sum
from symgrad.sample import Case, T

MODES = ("constant", "reflect", "replicate", "circular")


def _ref_pad(x: np.ndarray, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2)
    pairs += [(pad[k], pad[k + 1]) for k in range(len(pad) - 2, -1, -2)]
    cut = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs, strict=True))
    ]
    grown = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode == "constant":
        return np.pad(cut, grown, constant_values=0 if value is None else value)
    return np.pad(cut, grown, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


@composite(
    ref=_ref_pad,
    samples=(
        Case(T(2, 3), (1, 2)),
        Case(T(2, 3), (1, 0, 0, 2), "constant", 1.5),
        Case(T(2, 4), (-1, 1)),
        Case(T(2, 4), (2, 3), "reflect"),
        Case(T(2, 3), (2, 1), "replicate"),
        Case(T(1, 3, 4), (1, 1, 2, 0), "circular"),
    ),
    errors=(
        Case(T(3), (1,), match="Padding length must be divisible by 2"),
        Case(T(3), (1, 1, 1, 1), match="Padding length should be less than or equal to two times"),
        Case(
            T(2, 3),
            (3, 0),
            "reflect",
            match="Padding size should be less than the corresponding input",
        ),
        Case(
            T(2, 3),
            (1, 0),
            "mirror",
            match="Unrecognised padding mode mirror",
            error=NotImplementedError,
        ),
    ),
)
def pad(
    input: Expr, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Expr:
    """`input` grown at both ends of its last axes, as torch.nn.functional.pad.

    Parameters
    ----------
    pad : sequence of int
        Pairs (before, after), the last axis first. Negative numbers cut with mode "constant".
    mode : {"constant", "reflect", "replicate", "circular"}
    value : number, optional
        The constant, 0 if not given.
    """
    amounts = [int(p) for p in pad]
    if len(amounts) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2 (got {amounts})")
    if len(amounts) > 2 * input.ndim:
        raise RuntimeError(
            "pad: Padding length should be less than or equal to two times the input dimension but got "
            f"padding length {len(amounts)} and input of dimension {input.ndim}"
        )
    if mode not in MODES:
        raise NotImplementedError(
            f"pad: Unrecognised padding mode {mode}; use one of {', '.join(MODES)}"
        )
    pairs = {
        input.ndim - 1 - k // 2: (amounts[k], amounts[k + 1]) for k in range(0, len(amounts), 2)
    }
    if mode == "constant":
        return _constant_pad(input, pairs, 0 if value is None else value)
    if value is not None and value != 0:
        raise RuntimeError(f'pad: Padding mode "{mode}" doesn\'t take in value argument')
    result = input
    for dim, (before, after) in sorted(pairs.items()):
        result = _edge_pad(result, dim, before, after, mode)
    return result


def _constant_pad(x: Expr, pairs: dict[int, tuple[int, int]], value: Any) -> Expr:
    cut = x
    for dim, (before, after) in pairs.items():
        low, high = max(-before, 0), max(-after, 0)
        count = x.shape[dim] - low - high
        if count < 0:
            raise RuntimeError(
                f"pad: the padding {(before, after)} resulted in a negative output size for dimension {dim}"
            )
        cut = sliced(cut, dim, low, count)
    grown = [tuple(max(p, 0) for p in pairs.get(d, (0, 0))) for d in range(x.ndim)]
    place: dict[str, Any] = {
        "size": tuple(s + a + b for s, (a, b) in zip(cut.shape, grown, strict=True)),
        "starts": tuple(a for a, _ in grown),
        "steps": (1,) * x.ndim,
    }
    if not isinstance(value, Expr) and value == 0 and np.copysign(1.0, value) > 0:
        return embed(cut, **place)  # type: ignore[no-any-return]
    filler = cast_to(value, x.dtype) if isinstance(value, Expr) else filling(value, x.dtype)
    inside = embed(full(True, cut.shape, dtypes.bool_), **place)
    return where(inside, embed(cut, **place), filler)  # type: ignore[no-any-return]


def _edge_pad(x: Expr, dim: int, before: int, after: int, mode: str) -> Expr:
    size = x.shape[dim]
    if before < 0 or after < 0:
        raise RuntimeError(f'pad: mode "{mode}" needs non-negative padding (got {before}, {after})')
    least = {"reflect": max(before, after) + 1, "circular": max(before, after)}.get(mode, 1)
    if size < least and (before or after):
        raise RuntimeError(
            "pad: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {dim} of input {list(x.shape)}"
        )

    def edge(first: int, count: int, at: int) -> Expr:
        if mode == "reflect":
            return flip(sliced(x, dim, first, count), (dim,))  # type: ignore[no-any-return]
        if mode == "circular":
            return sliced(x, dim, first, count)
        end = sliced(x, dim, at, 1)
        return expand(end, tuple(count if d == dim else s for d, s in enumerate(x.shape)))  # type: ignore[no-any-return]

    parts = [x]
    if before:
        parts.insert(0, edge(1 if mode == "reflect" else size - before, before, 0))
    if after:
        parts.append(edge(size - 1 - after if mode == "reflect" else 0, after, size - 1))
    return x if len(parts) == 1 else join_axis(*parts, dim=dim)  # type: ignore[no-any-return]


MANY_ROUNDS = 64
"""Overlap of windows above which they are added by position rather than round by round."""


def overlap_add(g: Expr, shape: tuple[int, ...], dim: int, step: int) -> Expr:
    """Windows added up where they overlap: the adjoint of `unfold`.

    Windows that are `size / step` apart (rounded up) do not overlap; each such set is one
    embedding, and the sets are added.
    """
    size, count = g.shape[-1], g.shape[dim]
    if size == 0 or g.size == 0:
        return full(0.0, shape, g.dtype)
    rounds = min(-(-size // step), count)
    windows = moved_axis(g, g.ndim - 1, dim + 1)
    if rounds > MANY_ROUNDS:
        starts = reshape(iota(count=count) * step, (count, 1))
        rows = moved_axis(moved_axis(windows, dim, 0), dim + 1, 1)
        return moved_axis(put_sum(rows, starts + iota(count=size), size=(shape[dim],)), 0, dim)
    total: Expr | None = None
    for r in range(rounds):
        part = _laid_out(
            sliced(windows, dim, r, -(-(count - r) // rounds), rounds),
            shape,
            dim,
            r * step,
            rounds * step,
        )
        total = part if total is None else add(total, part)
    assert total is not None
    return total


def _laid_out(windows: Expr, shape: tuple[int, ...], dim: int, start: int, apart: int) -> Expr:
    """Windows that do not overlap, `apart` elements from one to the next, in zeros of `shape`."""
    rest = windows.ndim
    spaced = embed(
        windows,
        size=tuple(max(apart, s) if d == dim + 1 else s for d, s in enumerate(windows.shape)),
        starts=(0,) * rest,
        steps=(1,) * rest,
    )
    length = spaced.shape[dim] * spaced.shape[dim + 1]
    line = reshape(spaced, (*shape[:dim], length, *shape[dim + 1 :]))
    kept = sliced(line, dim, 0, min(length, shape[dim] - start))
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    return embed(kept, size=shape, starts=starts, steps=(1,) * len(shape))  # type: ignore[no-any-return]

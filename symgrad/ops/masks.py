"""torch's functions with a mask: filling, selecting and overwriting where it holds.

Start reading at `masked_fill`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite
from symgrad.op import cast_to, filling, value_of
from symgrad.ops.arithmetic import where
from symgrad.ops.cumulative import cumsum
from symgrad.ops.index import getitem
from symgrad.ops.movement import expand, line, reshape
from symgrad.ops.positions import bounded_positions, known, read
from symgrad.sample import Case, T


def _condition(name: str, mask: Expr) -> Expr:
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"{name}: expected BoolTensor for mask; only supports boolean masks, but got mask with "
            f"dtype {mask.dtype!r}; compare to make one"
        )
    return mask


@composite(
    ref=lambda x, mask, value: np.where(mask, np.asarray(value, x.dtype), x),
    samples=(
        Case(T(2, 3), T(2, 3, dtype="bool"), 1.5),
        Case(T(2, 3), T(3, dtype="bool"), T()),
        Case(T(0), T(0, dtype="bool"), 0.0),
    ),
    errors=(
        Case(T(3), T(3), 0.0, match="only supports boolean masks"),
        Case(T(3), T(3, dtype="bool"), T(3), match="only supports a 0-dimensional value tensor"),
    ),
)
def masked_fill(input: Expr, mask: Expr, value: Any) -> Expr:
    """One value where the mask holds, `input` elsewhere."""
    if isinstance(value, Expr) and value.ndim:
        raise RuntimeError(
            "masked_fill: masked_fill only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s); use where"
        )
    filler = cast_to(value, input.dtype) if isinstance(value, Expr) else filling(value, input.dtype)
    return where(_condition("masked_fill", mask), filler, input)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, mask: np.broadcast_arrays(x, mask)[0][np.broadcast_arrays(x, mask)[1]],
    samples=(Case(T(2, 3), T(2, 3, dtype="bool")), Case(T(2, 3), T(3, dtype="bool"))),
    errors=(Case(T(3), T(3), match="expected BoolTensor for mask"),),
)
def masked_select(input: Expr, mask: Expr) -> Expr:
    """The elements where the mask holds, in a vector; the mask's values must be known."""
    shape = broadcast_shapes(
        "masked_select", [input.shape, _condition("masked_select", mask).shape]
    )
    return getitem(expand(input, shape), expand(mask, shape))


def _ref_masked_scatter(x: np.ndarray, mask: np.ndarray, source: np.ndarray) -> Any:
    out, chosen = (np.array(a) for a in np.broadcast_arrays(x, mask))
    out[chosen] = source.reshape(-1)[: int(chosen.sum())]
    return out


@composite(
    ref=_ref_masked_scatter,
    samples=(
        Case(T(2, 3), T(2, 3, dtype="bool"), T(6)),
        Case(T(2, 3), T(3, dtype="bool"), T(2, 4)),
    ),
    errors=(
        Case(
            T(3),
            np.ones(3, bool),
            T(2),
            match="number of elements of source < number of ones in mask",
        ),
    ),
)
def masked_scatter(input: Expr, mask: Expr, source: Expr) -> Expr:
    """Elements of `source`, in order, where the mask holds; `input` elsewhere."""
    condition = mask if isinstance(mask, Expr) else known(np.asarray(mask))
    shape = broadcast_shapes(
        "masked_scatter", [input.shape, _condition("masked_scatter", condition).shape]
    )
    chosen = line(expand(condition, shape))
    if not chosen.size:
        return expand(input, shape)  # type: ignore[no-any-return]
    count = value_of(chosen)
    if count is not None and int(count.sum()) > source.size:
        raise RuntimeError(
            "masked_scatter: expected self and source to have enough elements: number of elements of source < "
            f"number of ones in mask (got {source.size} and {int(count.sum())})"
        )
    if not source.size:
        return expand(input, shape)  # type: ignore[no-any-return]
    number = where(chosen, cumsum(cast_to(chosen, dtypes.int64), 0) - 1, 0)
    taken = read(line(source), bounded_positions("masked_scatter", number, source.size, 0))
    made = where(chosen, cast_to(taken, input.dtype), line(expand(input, shape)))
    return reshape(made, shape)  # type: ignore[no-any-return]

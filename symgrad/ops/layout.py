"""torch's rearranging functions, written with the movement primitives.

Start reading at `transpose`.
"""

from __future__ import annotations

from symgrad.expr import Expr
from symgrad.op import cast_to
from symgrad.ops.arithmetic import eq, keep
from symgrad.ops.create import iota
from symgrad.ops.movement import embed, expand, permute, reshape


def axis_index(shape: tuple[int, ...], dim: int) -> Expr:
    """The position along `dim`, broadcastable against `shape`."""
    sizes = tuple(s if d == dim else 1 for d, s in enumerate(shape))
    return reshape(iota(count=shape[dim]), sizes)  # type: ignore[no-any-return]


def diagonal_embed(g: Expr, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Expr:
    """Zeros of `shape` with `g`'s last axis on a diagonal: the adjoint of `diagonal`."""
    rows = shape[dim1]
    start = max(-offset, 0)
    padded = embed(
        g,
        size=(*g.shape[:-1], rows),
        starts=(0,) * (g.ndim - 1) + (start,),
        steps=(1,) * g.ndim,
    )
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    spread = reshape(padded, (*padded.shape, 1))
    order = [0] * len(shape)
    for place, d in enumerate([*rest, dim1, dim2]):
        order[d] = place
    placed = expand(permute(spread, tuple(order)), shape)
    hit = eq(axis_index(shape, dim1) + offset, axis_index(shape, dim2))
    return keep(cast_to(hit, hit.dtype), placed)  # type: ignore[no-any-return]

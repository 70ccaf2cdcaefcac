"""The same program run in different ways must give the same bits.

`variants` lists the ways to compute a sample's results: alone, inside larger graphs, from views
instead of contiguous arrays, with inlined vector maths, cut into many chunks, in several
threads. Start reading at `check_bits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import input_node
from symgrad.ops.arithmetic import add, mul, where
from symgrad.ops.movement import flip, narrow_step, permute
from symgrad.ops.reduce import sum as total
from symgrad.testing.evaluator import cut_finely, in_segments, run, same_bits, threaded
from symgrad.testing.samples import Subject, call, draw, nodes

Way = Callable[[], list[np.ndarray]]


def _leaf(like: Expr, array: np.ndarray) -> Expr:
    return input_node(array.shape, like.dtype, array, like.requires_grad)


def reversed_view(leaf: Expr) -> Expr:
    """The same elements read backwards from an array that holds them in reverse."""
    dims = tuple(range(leaf.ndim))
    backwards = np.ascontiguousarray(np.flip(leaf.value, dims)).reshape(leaf.shape)
    return flip(_leaf(leaf, backwards), dims)


def transposed_view(leaf: Expr) -> Expr:
    """The same elements read along columns."""
    dims = tuple(range(leaf.ndim))[::-1]
    columns = np.ascontiguousarray(np.transpose(leaf.value)).reshape(leaf.shape[::-1])
    return permute(_leaf(leaf, columns), dims)


def strided_view(leaf: Expr) -> Expr:
    """The same elements as every second one, from the second on, of a larger array."""
    room = np.zeros(tuple(2 * s + 1 for s in leaf.shape), leaf.value.dtype)
    room[tuple(slice(1, 2 * s, 2) for s in leaf.shape)] = leaf.value
    return narrow_step(
        _leaf(leaf, room), starts=(1,) * leaf.ndim, steps=(2,) * leaf.ndim, counts=leaf.shape
    )


VIEWS = {"reversed": reversed_view, "transposed": transposed_view, "strided": strided_view}


def consumers(outputs: Sequence[Expr]) -> list[Expr]:
    """Elementwise and reducing users of some results."""
    made: list[Expr] = []
    for o in outputs:
        if o.dtype.category == 2:
            made.append(add(mul(o, o), o))
            made.append(total(mul(o, 0.7)))
            if o.ndim > 1:
                made.append(total(o, 0))
        elif o.dtype.category == 0:
            made.append(where(o, 1.5, -0.25))
        else:
            made.append(add(o, o))
    return made


def ways(
    subject: Subject, number: int, floating: DType, thorough: bool
) -> Iterator[tuple[str, Way]]:
    """Names and thunks; each thunk computes the sample's results in its way."""
    drawn = draw(subject, number, floating)

    def outputs(change: Callable[[Expr], Expr] | None = None) -> list[Expr]:
        leaves = nodes(drawn.arrays)
        if change is not None:
            leaves = [change(n) if n.ndim and n.size else n for n in leaves]
        return call(subject, drawn, leaves)

    def with_users() -> list[np.ndarray]:
        made = outputs()
        return run([*made, *consumers(made)])[: len(made)]

    def in_chunks() -> list[np.ndarray]:
        with cut_finely():
            return run(outputs())

    def segmented() -> list[np.ndarray]:
        with in_segments(3):
            made = outputs()
            return run([*made, *consumers(made)])[: len(made)]

    def in_threads() -> list[np.ndarray]:
        with cut_finely(), threaded(2):
            return run(outputs())

    yield "with users", with_users
    yield "chunks", in_chunks
    yield "threads", in_threads
    yield "segments", segmented
    if thorough:
        yield "inline", lambda: run(outputs(), inline=True)
        for name, view in VIEWS.items():
            yield name, lambda view=view: run(outputs(view))  # type: ignore[misc]


def check_bits(subject: Subject, number: int, floating: DType, thorough: bool = True) -> None:
    """Every way to compute a sample gives the bits of the plain one.

    Parameters
    ----------
    thorough : bool
        Also inlined maths and views, which cost more to compile.
    """
    drawn = draw(subject, number, floating)
    made = call(subject, drawn, nodes(drawn.arrays))
    plain = run(made)
    again = run(call(subject, drawn, nodes(drawn.arrays)))
    if not all(map(same_bits, plain, again)):
        raise AssertionError("two runs differ: the call draws numbers; give it a fixed seed")
    for name, way in ways(subject, number, floating, thorough):
        for k, (x, y) in enumerate(zip(plain, way(), strict=True)):
            assert same_bits(x, y), f"{name}: result {k} differs: {x} against {y}"
    leaves = [input_node(p.shape, o.dtype, p) for p, o in zip(plain, made, strict=True)]
    fused, apart = run(consumers(made)), run(consumers(leaves))
    for k, (x, y) in enumerate(zip(fused, apart, strict=True)):
        assert same_bits(x, y), f"fused into user {k}: {x} against {y}"

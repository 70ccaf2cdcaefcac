"""Ops that only place elements elsewhere: views, padding, concatenation.

The primitives are few: `reshape`, `permute`, `expand`, `narrow_step` (strided slicing), `flip`,
`diagonal`, `embed` (the adjoint of slicing), `join_axis`. ``index(i, x, **attrs)`` maps the
index of a result element to that of the argument's element; the index components are affine
forms, and the schedule folds them into addresses. Everything torch has beside them is a
composite in `symgrad.ops.layout`. ``batched(count, x, **attrs)`` is the op under a leading axis of
that size which the arguments have gained. Start reading at `permute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import Movement, op
from symgrad.op import filling, record
from symgrad.sample import Case, T


def wrap_dim(name: str, dim: int, ndim: int) -> int:
    """A dimension counted from the front.

    Raises
    ------
    IndexError
        In torch's words, when `dim` is out of range.
    """
    limit = max(ndim, 1)
    if not isinstance(dim, int | np.integer) or isinstance(dim, bool):
        raise TypeError(f"{name}: dim must be an int (got {type(dim).__name__})")
    if not -limit <= dim < limit:
        raise IndexError(
            f"{name}: Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], "
            f"but got {dim})"
        )
    return int(dim) % limit


def shape_of(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence."""
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    for s in sizes:
        if type(s) is not int:
            return tuple([int(s) for s in sizes])
    return sizes


@op
class reshape(Movement):
    """The same elements in row-major order under another shape."""

    attributes = ("shape",)
    injective = True
    keeps_order = True
    samples = (Case(T(2, 6), (3, 4)), Case(T(2, 3), (-1,)), Case(T(), (1, 1)), Case(T(0, 3), (0,)))
    errors = (
        Case(T(2, 3), (4,), match="is invalid for input of size 6"),
        Case(T(2, 3), (-1, -1), match="only one dimension can be inferred"),
        Case(T(2, 3), (-2, 3), match="invalid shape dimension -2"),
    )

    def __call__(self, input: Expr, *sizes: Any, shape: Any = None) -> Expr:
        wanted = list(shape_of(sizes if shape is None else (shape,)))
        for s in wanted:
            if s < -1:
                raise RuntimeError(f"reshape: invalid shape dimension {s} (got {wanted})")
        if wanted.count(-1) > 1:
            raise RuntimeError("reshape: only one dimension can be inferred (got several -1)")
        if -1 in wanted:
            known = 1
            for s in wanted:
                known *= s if s != -1 else 1
            if known == 0 or input.size % known:
                raise RuntimeError(
                    f"reshape: shape '{wanted}' is invalid for input of size {input.size}"
                )
            wanted[wanted.index(-1)] = input.size // known
        total = 1
        for s in wanted:
            total *= s
        if total != input.size:
            raise RuntimeError(
                f"reshape: shape '{wanted}' is invalid for input of size {input.size}"
            )
        target = tuple(wanted)
        if target == input.shape:
            return input
        return record(self, (input,), (target,), target, input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, shape: tuple[int, ...]) -> Any:
        return np.reshape(x, shape)

    def sympy(sp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
        return sp.Function("reshape")(x)

    def batched(count: int, x: Expr, *, shape: tuple[int, ...]) -> Any:
        return reshape(x, (count, *shape))

    def adjoint(g: Expr, x: Expr, *, shape: tuple[int, ...]) -> Any:
        return (reshape(g, x.shape),)


@op
class permute(Movement):
    """The axes in another order."""

    attributes = ("dims",)
    injective = True
    samples = (Case(T(2, 3, 4), (2, 0, 1)), Case(T(2, 3), (-1, 0)), Case(T(), ()))
    errors = (Case(T(2, 3), (0, 0), match="repeated"),)

    def __call__(self, input: Expr, *axes: Any, dims: Any = None) -> Expr:
        given = shape_of(axes if dims is None else (dims,))
        if given == tuple(range(input.ndim)):
            return input
        if len(given) != input.ndim:
            raise RuntimeError(
                f"permute: number of dimensions {input.ndim} does not match dims {given}; name each once"
            )
        order = tuple(wrap_dim("permute", d, input.ndim) for d in given)
        if len(set(order)) != input.ndim:
            raise RuntimeError(f"permute: repeated dim in {given}; name each dimension once")
        if order == tuple(range(input.ndim)):
            return input
        return record(self, (input,), (order,), tuple(input.shape[d] for d in order), input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, dims: tuple[int, ...]) -> Any:
        return np.transpose(x, dims)

    def sympy(sp: Any, x: Any, *, dims: tuple[int, ...]) -> Any:
        return sp.Function("permute")(x)

    def batched(count: int, x: Expr, *, dims: tuple[int, ...]) -> Any:
        return permute(x, (0, *(d + 1 for d in dims)))

    def adjoint(g: Expr, x: Expr, *, dims: tuple[int, ...]) -> Any:
        return (permute(g, tuple(int(d) for d in np.argsort(dims))),)

    def index(i: Sequence[Any], x: Expr, *, dims: tuple[int, ...]) -> list[Any]:
        result: list[Any] = [None] * len(dims)
        for place, d in enumerate(dims):
            result[d] = i[place]
        return result


@op
class expand(Movement):
    """Axes of size 1 repeated, new axes in front; no element is copied."""

    attributes = ("size",)
    samples = (Case(T(3, 1), (3, 4)), Case(T(3), (2, 3)), Case(T(), (2, 2)), Case(T(2, 1), (-1, 3)))
    errors = (
        Case(T(2, 3), (2, 4), match="must match the existing size"),
        Case(T(3), (-1, 3), match="isn't allowed in a leading, non-existing dimension 0"),
    )

    def __call__(self, input: Expr, *sizes: Any, size: Any = None) -> Expr:
        wanted = list(shape_of(sizes if size is None else (size,)))
        extra = len(wanted) - input.ndim
        if extra < 0:
            raise RuntimeError(
                f"expand: the number of sizes provided ({len(wanted)}) must be greater or equal to "
                f"the number of dimensions in the tensor ({input.ndim})"
            )
        for place, have in enumerate(input.shape):
            want = wanted[extra + place]
            if want == -1:
                wanted[extra + place] = have
            elif have not in (1, want):
                raise RuntimeError(
                    f"expand: The expanded size of the tensor ({want}) must match the existing size "
                    f"({have}) at non-singleton dimension {extra + place}. Target sizes: {wanted}. "
                    f"Tensor sizes: {list(input.shape)}"
                )
        for place, want in enumerate(wanted):
            if want < 0:
                raise RuntimeError(
                    f"expand: The expanded size of the tensor ({want}) isn't allowed in a leading, "
                    f"non-existing dimension {place}"
                )
        target = tuple(wanted)
        if target == input.shape:
            return input
        return record(self, (input,), (target,), target, input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, size: tuple[int, ...]) -> Any:
        filled = list(size)
        for place in range(x.ndim):
            if filled[-1 - place] == -1:
                filled[-1 - place] = x.shape[-1 - place]
        return np.broadcast_to(x, filled)

    def sympy(sp: Any, x: Any, *, size: tuple[int, ...]) -> Any:
        return x

    def batched(count: int, x: Expr, *, size: tuple[int, ...]) -> Any:
        rest = x.shape[1:]
        aligned = reshape(x, (count, *(1,) * (len(size) - len(rest)), *rest))
        return expand(aligned, (count, *size))

    def adjoint(g: Expr, x: Expr, *, size: tuple[int, ...]) -> Any:
        from symgrad.ops.reduce import sum_to

        return (sum_to(g, x.shape),)

    def index(i: Sequence[Any], x: Expr, *, size: tuple[int, ...]) -> list[Any]:
        extra = len(i) - x.ndim
        return [0 if x.shape[d] == 1 else i[extra + d] for d in range(x.ndim)]


@op
class narrow_step(Movement):
    """Every `step`-th element from `start`, `count` of them, along each axis; steps positive."""

    public = False
    shifts = True
    attributes = ("starts", "steps", "counts")
    injective = True
    samples = (
        Case(T(5, 6), starts=(1, 0), steps=(2, 1), counts=(2, 6)),
        Case(T(5), starts=(2,), steps=(1,), counts=(0,)),
    )

    def __call__(
        self, x: Expr, *, starts: tuple[int, ...], steps: tuple[int, ...], counts: tuple[int, ...]
    ) -> Expr:
        if counts == x.shape and not any(starts) and all(s == 1 for s in steps):
            return x
        return record(self, (x,), (starts, steps, counts), counts, x.dtype)  # type: ignore[arg-type]

    def ref(
        x: np.ndarray, *, starts: tuple[int, ...], steps: tuple[int, ...], counts: tuple[int, ...]
    ) -> Any:
        parts = zip(starts, steps, counts, strict=True)
        return x[tuple(slice(a, a + s * n, s) for a, s, n in parts)]

    def sympy(sp: Any, x: Any, **attrs: Any) -> Any:
        return sp.Function("slice")(x)

    def batched(count: int, x: Expr, *, starts: Any, steps: Any, counts: Any) -> Any:
        return narrow_step(x, starts=(0, *starts), steps=(1, *steps), counts=(count, *counts))

    def adjoint(g: Expr, x: Expr, *, starts: Any, steps: Any, counts: Any) -> Any:
        return (embed(g, size=x.shape, starts=starts, steps=steps),)

    def index(i: Sequence[Any], x: Expr, *, starts: Any, steps: Any, counts: Any) -> list[Any]:
        return [i[d] * steps[d] + starts[d] for d in range(x.ndim)]

    def stacked(x: Expr, every: Sequence[tuple[Any, ...]]) -> Expr | None:
        """The results for each of these attributes along a new first axis, if it is one slice."""
        starts, steps, counts = every[0]
        if any(e[1:] != every[0][1:] for e in every):
            return None
        table = np.array([e[0] for e in every]).reshape(len(every), x.ndim)
        moved = np.diff(table, axis=0)
        along = np.flatnonzero(moved[0])
        if len(along) != 1 or (moved != moved[0]).any() or moved[0, along[0]] < 0:
            return None
        d = int(along[0])
        if counts[d] != 1:
            return None
        several = narrow_step(
            x,
            starts=starts,
            steps=tuple(int(moved[0, d]) if k == d else s for k, s in enumerate(steps)),
            counts=tuple(len(every) if k == d else n for k, n in enumerate(counts)),
        )
        front = permute(several, (d, *[k for k in range(x.ndim) if k != d]))
        return reshape(front, (len(every), *counts))


@op
class embed(Movement):
    """Zeros of a larger shape with the argument placed in them: the adjoint of `narrow_step`."""

    public = False
    shifts = True
    attributes = ("size", "starts", "steps")
    injective = True
    bounded = True
    samples = (
        Case(T(2, 3), size=(5, 6), starts=(1, 0), steps=(2, 2)),
        Case(T(2, 3), size=(3, 5), starts=(0, 2), steps=(1, 1)),
    )

    def __call__(
        self, x: Expr, *, size: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]
    ) -> Expr:
        if size == x.shape:
            return x
        return record(self, (x,), (size, starts, steps), size, x.dtype)  # type: ignore[arg-type]

    def ref(
        x: np.ndarray, *, size: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]
    ) -> Any:
        out = np.zeros(size, x.dtype)
        parts = zip(starts, steps, x.shape, strict=True)
        out[tuple(slice(a, a + s * n, s) for a, s, n in parts)] = x
        return out

    def sympy(sp: Any, x: Any, **attrs: Any) -> Any:
        return sp.Function("embed")(x)

    def batched(count: int, x: Expr, *, size: Any, starts: Any, steps: Any) -> Any:
        return embed(x, size=(count, *size), starts=(0, *starts), steps=(1, *steps))

    def adjoint(g: Expr, x: Expr, *, size: Any, starts: Any, steps: Any) -> Any:
        return (narrow_step(g, starts=starts, steps=steps, counts=x.shape),)

    def index(i: Sequence[Any], x: Expr, *, size: Any, starts: Any, steps: Any) -> list[Any]:
        return [i[d] - starts[d] for d in range(x.ndim)]


@op
class flip(Movement):
    """The elements in reverse order along the given axes."""

    shifts = True
    attributes = ("dims",)
    injective = True
    samples = (Case(T(2, 3), (0,)), Case(T(2, 3), (0, -1)), Case(T(0), (0,)))
    errors = (Case(T(2), (1,), match="Dimension out of range", error=IndexError),)

    def __call__(self, input: Expr, *axes: Any, dims: Any = None) -> Expr:
        given = shape_of(axes if dims is None else (dims,))
        order = tuple(sorted(wrap_dim("flip", d, input.ndim) for d in given))
        if len(set(order)) != len(order):
            raise RuntimeError(f"flip: dim {given} appears multiple times in the list of dims")
        if not input.ndim:
            return input
        return record(self, (input,), (order,), input.shape, input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, dims: tuple[int, ...]) -> Any:
        return np.flip(x, dims)

    def sympy(sp: Any, x: Any, *, dims: tuple[int, ...]) -> Any:
        return sp.Function("flip")(x)

    def batched(count: int, x: Expr, *, dims: tuple[int, ...]) -> Any:
        return flip(x, tuple(d + 1 for d in dims))

    def adjoint(g: Expr, x: Expr, *, dims: tuple[int, ...]) -> Any:
        return (flip(g, dims),)

    def index(i: Sequence[Any], x: Expr, *, dims: tuple[int, ...]) -> list[Any]:
        return [i[d] * -1 + (x.shape[d] - 1) if d in dims else i[d] for d in range(x.ndim)]


@op
class diagonal(Movement):
    """A view of a diagonal of two axes, as a new last axis."""

    attributes = ("offset", "dim1", "dim2")
    samples = (Case(T(3, 4)), Case(T(3, 4), 1), Case(T(2, 3, 3), -1, 1, 2), Case(T(3, 3), 3))
    errors = (Case(T(3), match="Dimension out of range", error=IndexError),)

    def __call__(self, input: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
        a, c = wrap_dim("diagonal", dim1, input.ndim), wrap_dim("diagonal", dim2, input.ndim)
        if a == c:
            raise RuntimeError(f"diagonal: dimensions cannot be identical (got {dim1}, {dim2})")
        rows, columns = input.shape[a], input.shape[c]
        count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
        rest = tuple(s for d, s in enumerate(input.shape) if d not in (a, c))
        shape = (*rest, max(count, 0))
        return record(self, (input,), (offset, a, c), shape, input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
        return np.diagonal(x, offset, dim1, dim2)

    def sympy(sp: Any, x: Any, **attrs: Any) -> Any:
        return sp.Function("diagonal")(x)

    def batched(count: int, x: Expr, *, offset: int, dim1: int, dim2: int) -> Any:
        return diagonal(x, offset, dim1 + 1, dim2 + 1)

    def adjoint(g: Expr, x: Expr, *, offset: int, dim1: int, dim2: int) -> Any:
        from symgrad.ops.diagonals import diagonal_embed

        return (diagonal_embed(g, x.shape, offset, dim1, dim2),)

    def index(i: Sequence[Any], x: Expr, *, offset: int, dim1: int, dim2: int) -> list[Any]:
        rest = iter(i[:-1])
        along = i[-1]
        result: list[Any] = []
        for d in range(x.ndim):
            if d == dim1:
                result.append(along + max(-offset, 0))
            elif d == dim2:
                result.append(along + max(offset, 0))
            else:
                result.append(next(rest))
        return result


@op
class join_axis(Movement):
    """Arrays of equal dtype joined along an existing axis."""

    public = False
    attributes = ("dim",)
    pieces = True
    samples = (
        Case(T(2, 3), T(1, 3), dim=0),
        Case(T(2, 3), T(2, 0), T(2, 2), dim=1),
    )

    def __call__(self, *xs: Expr, dim: int) -> Expr:
        first = xs[0]
        total = 0
        for x in xs:
            total += x.shape[dim]
        shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
        return record(self, xs, (dim,), shape, first.dtype)  # type: ignore[arg-type]

    def ref(*xs: np.ndarray, dim: int) -> Any:
        return np.concatenate(xs, dim)

    def sympy(sp: Any, *xs: Any, dim: int) -> Any:
        return sp.Function("cat")(*xs)

    def batched(count: int, *xs: Expr, dim: int) -> Any:
        return join_axis(*xs, dim=dim + 1)

    def place(number: int, i: Sequence[Any], xs: Sequence[Expr], *, dim: int) -> list[Any]:
        start = sum(x.shape[dim] for x in xs[:number])
        return [f + start if d == dim else f for d, f in enumerate(i)]

    def adjoint(g: Expr, *xs: Expr, dim: int) -> Any:
        parts = []
        start = 0
        for x in xs:
            starts = tuple(start if d == dim else 0 for d in range(x.ndim))
            parts.append(narrow_step(g, starts=starts, steps=(1,) * x.ndim, counts=x.shape))
            start += x.shape[dim]
        return tuple(parts)


@op
class unfold(Movement):
    """All windows of `size` elements, `step` apart, along one axis; a window is a new last axis."""

    shifts = True
    attributes = ("dimension", "size", "step")
    samples = (
        Case(T(7), 0, 3, 1),
        Case(T(2, 8), -1, 3, 2),
        Case(T(7, 2), 0, 2, 3),
        Case(T(), 0, 1, 1),
    )
    errors = (
        Case(T(3), 0, 4, 1, match="maximum size for tensor at dimension 0 is 3 but size is 4"),
        Case(T(3), 0, 2, 0, match="step is 0 but must be > 0"),
    )

    def __call__(self, input: Expr, dimension: int, size: int, step: int) -> Expr:
        at = wrap_dim("unfold", dimension, input.ndim)
        length = input.shape[at] if input.ndim else 1
        if not 0 <= size <= length:
            raise RuntimeError(
                f"unfold: maximum size for tensor at dimension {at} is {length} but size is {size}"
            )
        if step <= 0:
            raise RuntimeError(f"unfold: step is {step} but must be > 0")
        if not input.ndim:
            return reshape(input, (1,))  # type: ignore[no-any-return]
        count = (length - size) // step + 1
        shape = (*input.shape[:at], count, *input.shape[at + 1 :], size)
        return record(self, (input,), (at, size, step), shape, input.dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, dimension: int, size: int, step: int) -> Any:
        if not x.ndim:
            return np.reshape(x, (1,))
        at = dimension % x.ndim
        windows = np.lib.stride_tricks.sliding_window_view(x, size, at)
        return np.moveaxis(np.moveaxis(windows, at, 0)[::step], 0, at)

    def sympy(sp: Any, x: Any, **attrs: Any) -> Any:
        return sp.Function("unfold")(x)

    def batched(count: int, x: Expr, *, dimension: int, size: int, step: int) -> Any:
        return unfold(x, dimension + 1, size, step)

    def adjoint(g: Expr, x: Expr, *, dimension: int, size: int, step: int) -> Any:
        from symgrad.ops.padding import overlap_add

        return (overlap_add(g, x.shape, dimension, step),)

    def index(i: Sequence[Any], x: Expr, *, dimension: int, size: int, step: int) -> list[Any]:
        place = list(i[:-1])
        place[dimension] = place[dimension] * step + i[-1]
        return place


def line(x: Expr) -> Expr:
    """The elements in a vector."""
    return reshape(x, (x.size,))  # type: ignore[no-any-return]


def full(value: float, shape: tuple[int, ...], dtype: dtypes.DType) -> Expr:
    """A constant under a shape."""
    return expand(filling(value, dtype), shape)  # type: ignore[no-any-return]

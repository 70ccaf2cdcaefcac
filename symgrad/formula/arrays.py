"""Terms that place, reduce or contract elements, in their shortest equivalent form.

Each function builds one kind of term from its argument and the *logical* shape of that argument,
the shape the expression has; the term itself may be smaller where it is broadcast (`Term.shape`).
What broadcasting makes silent disappears here: a sum over a repeated axis is a multiple, a
reshape that only adds leading ones is nothing, products of matrices and vectors lose the batch
axes that the contraction kernel asks for.

Heads and their data::

    reduce     (combine, dims, logical shape, keepdim)
    index      items, one per axis of the argument (start, step, count) or int, and None
    reshape    (source, target)          permute    order of the argument's own axes
    expand     shape                     matmul     -
    embed      (size, starts, steps)     flip       dims counted from the last axis
    gather     -                         opaque     (name, attributes as text, argument shapes, shape)

`rebuild` makes a term of any of these heads anew from simplified arguments. Start reading at
`singleton` and `reduce`; the largest is `matmul`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from symgrad.formula.tree import Shape, Table, Term, broadcast, minimal, padded

Item = tuple[int, int, int] | int | None
ELEMENTWISE = frozenset({"sum", "product", "power", "call", "compare", "logic", "piecewise"})
NESTING = frozenset({"add", "mul", "max", "min", "or", "and"})
"""Reductions that may run over several axes at once."""


def whole(table: Table, x: Term, shape: Shape) -> Term:
    """`x` with its repetition written out, where an op needs the whole array."""
    if x.shape == minimal(shape):
        return x
    return table.make("expand", (x,), tuple(shape), minimal(shape))


def _repeated(x: Term) -> Term:
    """The number that `x` repeats along all axes, if it does; else `x`."""
    return x.args[0] if x.head == "expand" and not x.args[0].shape else x


def _on_reductions(x: Term, depth: int = 4) -> bool:
    """Whether all that varies in `x` are reductions: these can keep the axes they reduce."""
    if not x.shape or x.head == "reduce":
        return True
    if depth == 0 or x.head not in ELEMENTWISE or len(x.args) > 4:
        return False
    return all(a.shape in ((), x.shape) and _on_reductions(a, depth - 1) for a in x.args)


def items_of(x: Term) -> tuple[Term, list[Item]]:
    """What `x` selects from: its base and one item per axis of it."""
    x = _repeated(x)
    if x.head == "index":
        return x.args[0], list(x.data)
    return x, [(0, 1, n) for n in x.shape]


def indexed(table: Table, base: Term, items: list[Item]) -> Term:
    """The elements of `base` that `items` select."""
    # Leading axes of size 1 are silent.
    lead: list[Item] = []
    rest = list(items)
    while rest and (rest[0] is None or isinstance(rest[0], int) or rest[0][2] == 1):
        item = rest.pop(0)
        if item is not None:
            lead.append(item if isinstance(item, int) else item[0])
    items = lead + rest
    if items == [(0, 1, n) for n in base.shape]:
        return base
    shape = [1 if i is None else i[2] for i in items if not isinstance(i, int)]
    return table.make("index", (base,), tuple(items), minimal(shape))


def singleton(table: Table, x: Term, shape: Shape) -> Term:
    """`x` with axes of size 1 put or taken away so as to have `shape`."""
    want = minimal(shape)
    if want == x.shape or not x.shape or not _repeated(x).shape:
        return _repeated(x)
    if x.head == "reduce":
        combine, dims, full, _ = x.data
        kept = minimal([1 if d in dims else n for d, n in enumerate(full)])
        removed = minimal([n for d, n in enumerate(full) if d not in dims])
        if want in (kept, removed):
            data = (combine, dims, full, want == kept and kept != removed)
            return table.make("reduce", x.args, data, want)
    elif x.head != "index" and len(want) > len(x.shape) and _on_reductions(x):
        args = [singleton(table, a, want) for a in x.args]
        return table.elementwise(x.head, args, x.data)
    base, items = items_of(x)
    entries: list[Item] = [
        i if isinstance(i, int) or i[2] != 1 else i[0] for i in items if i is not None
    ]
    result: list[Item] = []
    for size in want:
        if size == 1:
            if entries and isinstance(entries[0], int):
                result.append((entries.pop(0), 1, 1))  # type: ignore[arg-type]
            else:
                result.append(None)
            continue
        while isinstance(entries[0], int):
            result.append(entries.pop(0))
        result.append(entries.pop(0))
    return indexed(table, base, result + entries)


def _rearranged(table: Table, x: Term) -> tuple[Term, Shape]:
    """`x` before it was given another shape with the same elements, and the shape it had."""
    if x.head == "reshape":
        return x.args[0], x.data[0]
    if x.head == "index" and not any(isinstance(i, int) for i in x.data):
        if [i for i in x.data if i is not None] == [(0, 1, n) for n in x.args[0].shape]:
            return x.args[0], x.args[0].shape
    if x.shape and x.head in ELEMENTWISE:
        sources = {a.data[0] if a.head == "reshape" else a.shape for a in x.args if a.shape}
        (source, *others) = sources
        same = all(a.head == "reshape" and a.shape == x.shape for a in x.args if a.shape)
        if same and not others:
            args = [a.args[0] if a.shape else a for a in x.args]
            return table.elementwise(x.head, args, x.data), source
    return x, x.shape


def reshape(table: Table, x: Term, source: Shape, target: Shape) -> Term:
    """`x`, of logical shape `source`, in row-major order under `target`."""
    target = minimal(target)
    x = x.args[0] if x.head == "expand" else x
    if x.head in ELEMENTWISE and x.shape and x.shape == minimal(source):
        x, source = _rearranged(table, x)
    rank = len(x.shape)
    if rank == 0 or source[len(source) - rank :] == target[max(len(target) - rank, 0) :]:
        return x
    own = padded(x.shape, len(source))
    if [n for n in source if n != 1] == [n for n in target if n != 1]:
        left = iter([n for n, size in zip(own, source, strict=True) if size != 1])
        return singleton(table, x, tuple(1 if n == 1 else next(left) for n in target))
    if own != source:
        x = whole(table, x, source)
    if x.head == "reshape":
        return reshape(table, x.args[0], x.data[0], target)
    return table.make("reshape", (x,), (source, target), minimal(target))


def reduce(
    table: Table, x: Term, combine: str, dims: tuple[int, ...], shape: Shape, keepdim: bool = False
) -> Term:
    """`x`, of logical shape `shape`, combined along `dims`."""
    if x.head == "expand":
        return reduce(table, x.args[0], combine, dims, shape, keepdim)
    if x.head == "permute" and combine in NESTING and len(x.data) == len(x.shape):
        return _reduce_permuted(table, x, combine, dims, shape, keepdim)
    own = padded(x.shape, len(shape))
    live = tuple(d for d in dims if own[d] != 1)
    times = prod(shape[d] for d in dims if own[d] == 1)
    left = tuple(1 if d in dims else n for d, n in enumerate(own) if keepdim or d not in dims)
    base, source = _rearranged(table, x) if live else (x, shape)
    if base is not x and all(n == 1 or d in live for d, n in enumerate(own)):
        result = reduce(table, base, combine, tuple(range(len(source))), source)
    elif not live:
        result = singleton(table, x, left) if combine in NESTING else table.number(0)
    elif x.head == "reduce" and x.data[0] == combine and combine in NESTING and not x.data[3]:
        _, inner, full, _ = x.data
        rest = [d for d in range(len(full)) if d not in inner]
        outer = [rest[d + len(rest) - len(own)] for d in live]
        merged = tuple(sorted([*inner, *outer]))
        removed = minimal([n for d, n in enumerate(full) if d not in merged])
        made = table.make("reduce", x.args, (combine, merged, full, False), removed)
        result = singleton(table, made, left)
    else:
        kept = minimal([n for d, n in enumerate(own) if d not in live])
        hidden = len(own) - (x.data[1] if x.head == "symbol" else len(x.shape))
        data = (combine, tuple(d - hidden for d in live), own[hidden:], False)
        made = table.make("reduce", (x,), data if hidden > 0 else (combine, live, own, False), kept)
        result = singleton(table, made, left)
    if times != 1 and combine == "add":
        return table.product((times, result), (1, 1))
    if times != 1 and combine == "mul":
        return table.product((result,), (times,))
    return result


def _reduce_permuted(
    table: Table, x: Term, combine: str, dims: tuple[int, ...], shape: Shape, keepdim: bool
) -> Term:
    """Reduce first, then permute what is left."""
    lead = len(shape) - len(x.data)
    order = (*range(lead), *(d + lead for d in x.data))
    places = sorted(range(len(order)), key=lambda k: order[k])
    before = tuple(shape[k] for k in places)
    inner = tuple(sorted(order[d] for d in dims))
    rest = [order[d] for d in range(len(order)) if d not in dims]
    made = reduce(table, x.args[0], combine, inner, before)
    moved = permute(table, made, tuple(sorted(rest).index(d) for d in rest))
    own = padded(x.shape, len(shape))
    left = tuple(1 if d in dims else n for d, n in enumerate(own) if keepdim or d not in dims)
    return singleton(table, moved, left)


def permute(table: Table, x: Term, dims: tuple[int, ...]) -> Term:
    """`x` with its logical axes in the order `dims`."""
    x = x.args[0] if x.head == "expand" else x
    own = padded(x.shape, len(dims))
    moved = tuple(own[d] for d in dims)
    offset = len(dims) - len(x.shape)
    order = tuple(d - offset for d in dims if d >= offset)
    varying = [d for d in order if x.shape[d] != 1]
    if varying == sorted(varying):
        return singleton(table, x, moved)
    if x.head == "permute" and len(x.data) == len(order):
        return singleton(table, permute(table, x.args[0], tuple(x.data[d] for d in order)), moved)
    if x.head == "index" and None in x.data and not any(isinstance(i, int) for i in x.data):
        # Axes of size 1 are put back after the permutation, so that transposes stay visible.
        bare = singleton(table, x, tuple(n for n in x.shape if n != 1))
        rank = [d for d in range(len(x.shape)) if x.shape[d] != 1]
        if bare.shape != x.shape:
            inner = permute(table, bare, tuple(rank.index(d) for d in order if d in rank))
            return singleton(table, inner, moved)
    made = table.make("permute", (x,), order, minimal([x.shape[d] for d in order]))
    return singleton(table, made, moved)


def select(table: Table, x: Term, chosen: list[Item]) -> Term:
    """The elements of `x` that `chosen` names, one item per axis of `x`, and None."""
    if not _repeated(x).shape:
        return _repeated(x)
    base, items = items_of(x)
    inner = iter(items)
    result: list[Item] = []
    for choice in chosen:
        if choice is None:
            result.append(None)
            continue
        item = next(inner)
        while isinstance(item, int):
            result.append(item)
            item = next(inner)
        if item is None:
            result += [None] if not isinstance(choice, int) else []
            continue
        start, step, _ = item
        if isinstance(choice, int):
            result.append(start + step * choice)
        else:
            result.append((start + step * choice[0], step * choice[1], choice[2]))
    return indexed(table, base, [*result, *inner])


def narrow(table: Table, x: Term, starts: Shape, steps: Shape, counts: Shape) -> Term:
    """Every step-th element of `x` along each logical axis."""
    first = len(counts) - len(x.shape)
    chosen: list[Item] = [
        (0, 1, 1) if n == 1 else (starts[d], steps[d], counts[d])
        for d, n in enumerate(x.shape, first)
    ]
    return select(table, x, chosen)


def flip(table: Table, x: Term, dims: tuple[int, ...]) -> Term:
    """`x` reversed along axes counted from the last."""
    live = tuple(d for d in dims if -d <= len(x.shape) and x.shape[d] != 1)
    if not live:
        return x
    return table.make("flip", (x,), live, x.shape)


def embed(table: Table, x: Term, size: Shape, starts: Shape, steps: Shape, shape: Shape) -> Term:
    """Zeros of `size` with `x`, of logical shape `shape`, placed in them."""
    first = 0
    while first < len(size) - len(x.shape) and size[first] == shape[first]:
        first += 1
    inner = whole(table, x, shape[first:])
    data = (size[first:], starts[first:], steps[first:], shape[first:])
    return table.make("embed", (inner,), data, minimal(size[first:]))


def gather(table: Table, args: tuple[Term, ...], shape: Shape, index_shape: Shape) -> Term:
    """Elements of the first term, of logical shape `shape`, at positions given by the others."""
    data = whole(table, args[0], shape)
    places = [whole(table, i, index_shape) for i in args[1:]]
    left = minimal(index_shape + shape[len(places) :])
    return table.make("gather", (data, *places), (shape, index_shape), left)


def opaque(
    table: Table,
    args: tuple[Term, ...],
    name: str,
    attributes: tuple[str, ...],
    shapes: tuple[Shape, ...],
    shape: Shape,
) -> Term:
    """An op known by its name, on whole arrays."""
    wholes = tuple(whole(table, a, s) for a, s in zip(args, shapes, strict=True))
    return table.make("opaque", wholes, (name, attributes, shapes, shape), minimal(shape))


def matmul(table: Table, a: Term, left: Shape, b: Term, right: Shape) -> Term:
    """Batched product of logical shapes (..., M, K) and (..., K, N)."""
    k = left[-1]
    own_a, own_b = padded(a.shape, len(left)), padded(b.shape, len(right))
    if k == 1:
        return table.product((a, b), (1, 1))
    if own_a[-1] == 1:
        return table.product((a, reduce(table, b, "add", (len(right) - 2,), right, True)), (1, 1))
    if own_b[-2] == 1:
        return table.product((b, reduce(table, a, "add", (len(left) - 1,), left, True)), (1, 1))
    folded = _unfolded(table, a, left, b, right)
    if folded is not None:
        return folded
    rows = own_a[:-1]
    if len(b.shape) == 2 and own_b[-1] == 1:
        vector = singleton(table, b, (k,))
        return singleton(table, _product(table, a, vector, rows), (*rows, 1))
    columns = (*own_b[:-2], own_b[-1])
    if len(a.shape) == 1:
        made = _product(table, a, b, columns)
        return singleton(table, made, (*own_b[:-2], 1, own_b[-1]))
    lead = broadcast([own_a[:-2], own_b[:-2]])
    return _product(table, a, b, (*lead, own_a[-2], own_b[-1]))


def _product(table: Table, a: Term, b: Term, shape: Shape) -> Term:
    return table.make("matmul", (a, b), None, minimal(shape))


def _unfolded(table: Table, a: Term, left: Shape, b: Term, right: Shape) -> Term | None:
    """The product over the axes that were folded into one batch or row axis for the kernel."""
    m, k = left[-2:]
    n = right[-1]
    source_a = a.data[0] if a.head == "reshape" and minimal(a.data[1]) == minimal(left) else None
    source_b = b.data[0] if b.head == "reshape" and minimal(b.data[1]) == minimal(right) else None
    if source_a is not None and len(source_a) > 1 and source_a[-1] == k:
        first = a.args[0]
        if len(b.shape) == 2 and b.shape[-1] != 1 and left[:-2] in ((), (1,)):
            made = _product(table, first, b, (*source_a[:-1], n))
            return reshape(table, made, (*source_a[:-1], n), (*left[:-1], n))
        if source_a[-2] == m:
            lead = source_a[:-2]
            if len(b.shape) <= 2:
                made = matmul(table, first, source_a, b, (*lead, k, n))
            elif source_b is not None and source_b[:-2] == lead and source_b[-2:] == (k, n):
                made = matmul(table, first, source_a, b.args[0], source_b)
            else:
                return None
            return reshape(table, made, (*lead, m, n), (*left[:-1], n))
        return None
    if source_b is not None and source_b[-2:] == (k, n) and len(a.shape) <= 2:
        lead = source_b[:-2]
        made = matmul(table, a, (*lead, m, k), b.args[0], source_b)
        return reshape(table, made, (*lead, m, n), (*left[:-1], n))
    return None


Rebuild = Callable[[Table, tuple[Term, ...], Any], Term]

_REBUILD: dict[str, Rebuild] = {
    "reduce": lambda t, a, d: reduce(t, a[0], d[0], d[1], d[2], d[3]),
    "reshape": lambda t, a, d: reshape(t, a[0], d[0], d[1]),
    "permute": lambda t, a, d: permute(t, a[0], d),
    "embed": lambda t, a, d: embed(t, a[0], *d),
    "gather": lambda t, a, d: gather(t, a, *d),
    "opaque": lambda t, a, d: opaque(t, a, *d),
    "expand": lambda t, a, d: whole(t, a[0], d),
    "flip": lambda t, a, d: flip(t, a[0], d),
}


def rebuild(table: Table, old: Term, args: tuple[Term, ...]) -> Term:
    """The term of the same meaning as `old` on other arguments."""
    if args == old.args:
        return old
    if old.head == "index":
        return _reindexed(table, old, args[0])
    if old.head == "matmul":
        return _rematmul(table, old, *args)
    return _REBUILD[old.head](table, args, old.data)


def _reindexed(table: Table, old: Term, base: Term) -> Term:
    before = old.args[0].shape
    whole_axes = [
        i is None or (n == 1 if isinstance(i, int) else i == (0, 1, n)) for i, n in _by_axis(old)
    ]
    if all(whole_axes) and base.shape == before:
        return singleton(table, base, old.shape)
    return select(table, whole(table, base, before), list(old.data))


def _by_axis(x: Term) -> list[tuple[Item, int]]:
    """The items of an index term, each with the size of the axis it selects from."""
    sizes = iter(x.args[0].shape)
    return [(i, 1 if i is None else next(sizes)) for i in x.data]


def _rematmul(table: Table, old: Term, a: Term, b: Term) -> Term:
    left, right = (whole(table, x, y.shape) for x, y in zip((a, b), old.args, strict=True))
    return table.make("matmul", (left, right), None, old.shape)

"""Graphs rebuilt: under a leading batch axis, or with some nodes replaced by others.

`batched` takes a graph recorded on unbatched inputs and gives the graph of all batch elements at
once; `replaced` records a graph again on other inputs. On the first stand the Jacobians: one
pullback (`jacobian_rows`) or pushforward (`jacobian_columns`) with a placeholder for the unit
vectors, batched over all of them. Their unit vectors are selections, strong zeros off the
diagonal, so an undefined partial derivative stays in its own entry.

How an op acts under a batch axis follows from its family, or from the op's own
``batched(count, *args, **attrs)``, which gets every argument with the leading axis. An op that is
neither is applied to each batch element. Start reading at `batched`, then `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symgrad import dtypes
from symgrad.calculus.banded import banded_columns
from symgrad.calculus.forward import pushforward
from symgrad.calculus.reverse import pullback
from symgrad.calculus.successive import restated
from symgrad.expr import Expr, ancestors
from symgrad.op import DERIVED, INPUT, STATE, grad_mode, input_node, record
from symgrad.ops.arithmetic import eq, keep
from symgrad.ops.create import iota
from symgrad.ops.movement import expand, full, join_axis, narrow_step, permute, reshape
from symgrad.ops.positions import numbered

Rule = Callable[[int, Expr, Sequence[Expr], Sequence[bool]], Expr]
Make = Callable[[Expr, Sequence[Expr]], Expr]


def _rebuilt(
    outputs: Sequence[Expr], new: dict[int, Expr], into: Callable[[Expr], bool], make: Make
) -> list[Expr]:
    """`outputs` with the nodes in `new` replaced and what depends on them made again."""
    for node in ancestors(outputs, lambda n: id(n) not in new and into(n)):
        if id(node) in new:
            continue
        args = [new.get(id(a), a) for a in node.args]
        if all(b is a for a, b in zip(node.args, args, strict=True)):
            new[id(node)] = node
            continue
        # A node that was recorded without history, though its arguments had one, stays so.
        cut = not node.requires_grad and any(a.requires_grad for a in node.args)
        with grad_mode(STATE.grad and not cut):
            made = make(node, args)
        if node.meta is DERIVED and not made.requires_grad and made.meta is None:
            made.meta = DERIVED
        new[id(node)] = made
    return [new[id(y)] for y in outputs]


def _again(node: Expr, args: Sequence[Expr]) -> Expr:
    """The node on other arguments of the same shapes."""
    if node.op is INPUT:
        leaf = Expr(INPUT, tuple(args), (), node.shape, node.dtype, node.requires_grad)
        leaf.meta = node.meta
        return leaf
    return record(node.op, tuple(args), node.attrs, node.shape, node.dtype)


def replaced(outputs: Sequence[Expr], old: Sequence[Expr], new: Sequence[Expr]) -> list[Expr]:
    """`outputs` recorded again with some nodes replaced.

    Parameters
    ----------
    outputs : sequence of Expr
    old, new : sequences of Expr
        Pairs of equal shape and dtype. Where an old node has a value, the new one has the same.

    Returns
    -------
    list of Expr
        What does not depend on an old node is the same node; computed values are kept.
    """

    def make(node: Expr, args: Sequence[Expr]) -> Expr:
        made = restated(node, args, table)
        if made is None:
            made = _again(node, args)
        if made.value is None:
            made.value = node.value
        return made

    table = {id(a): b for a, b in zip(old, new, strict=True)}
    return _rebuilt(outputs, {**table}, lambda n: True, make)


def batched(
    outputs: Sequence[Expr], inputs: Sequence[Expr], batched_inputs: Sequence[Expr]
) -> list[Expr]:
    """The graph of all batch elements, from the graph of one.

    Parameters
    ----------
    outputs : sequence of Expr
    inputs : sequence of Expr
        Placeholders of the graph: nodes without a value.
    batched_inputs : sequence of Expr
        What replaces them: with one leading axis more, of a size common to all; or of the same
        shape, for an input that all batch elements share.

    Returns
    -------
    list of Expr
        Outputs with the leading axis; without it where they depend on no batched input.
    """
    count = 0
    for x, b in zip(inputs, batched_inputs, strict=True):
        if b.ndim > x.ndim:
            count = b.shape[0]

    def make(node: Expr, args: Sequence[Expr]) -> Expr:
        flags = [b.ndim > a.ndim for a, b in zip(node.args, args, strict=True)]
        if not any(flags):
            return _again(node, args)
        return _apply(count, node, args, flags)

    table = {id(a): b for a, b in zip(inputs, batched_inputs, strict=True)}
    return _rebuilt(outputs, table, lambda n: n.value is None, make)


WIDE = 64
"""Columns of a product, from which the products of a batch are made one by one."""

# -- families ---------------------------------------------------------------------------


def with_batch(x: Expr, count: int) -> Expr:
    """`x` repeated along a new leading axis."""
    return expand(x, (count, *x.shape))


def _full(count: int, args: Sequence[Expr], flags: Sequence[bool]) -> list[Expr]:
    """All arguments with the batch axis."""
    return [a if f else with_batch(a, count) for a, f in zip(args, flags, strict=True)]


def _elementwise(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """Batched operands of fewer axes get axes of size 1 behind the batch axis."""
    operands = []
    for x, flag in zip(args, flags, strict=True):
        missing = node.ndim + 1 - x.ndim
        if flag and missing:
            x = reshape(x, (count, *(1,) * missing, *x.shape[1:]))
        operands.append(x)
    return node.op(*operands, **node.attributes())


def _along_axis(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """Reductions and running results: the axis is one further back."""
    attrs = node.attributes()
    attrs["dim"] += 1
    return node.op(*_full(count, args, flags), **attrs)


def _contract(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """The batch joins the products' own batch, or the free axis of the one batched operand."""
    a, b = args
    products, m, n = node.shape
    k = node.args[0].shape[2]
    if all(flags):
        left = reshape(a, (count * products, m, k))
        right = reshape(b, (count * products, k, n))
        return reshape(node.op(left, right), (count, *node.shape))
    if flags[0]:
        rows = reshape(permute(a, (1, 0, 2, 3)), (products, count * m, k))
        made = reshape(node.op(rows, b), (products, count, m, n))
        return permute(made, (1, 0, 2, 3))
    if products == 1 and m > 1 and n >= WIDE:
        # Columns enough for a product each, and no copy to put them next to each other.
        return reshape(
            node.op(expand(a, (count, m, k)), reshape(b, (count, k, n))), (count, 1, m, n)
        )
    columns = reshape(permute(b, (1, 2, 0, 3)), (products, k, count * n))
    made = reshape(node.op(a, columns), (products, m, count, n))
    return permute(made, (2, 0, 1, 3))


def _index(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """A gather: the batch is one more indexed axis, or one that no position refers to."""
    if not node.op.reads:
        return _each(count, node, args, flags)
    data, *positions = args
    if not any(flags[1:]):
        # Move the batch behind all other axes: the positions serve all its elements, and a Jacobian,
        # whose batch are its columns, finds its rows in order.
        order = (*range(1, data.ndim), 0)
        found = node.op(permute(data, order), *positions)
        last = found.ndim - 1
        return permute(found, (last, *range(last)))
    full_positions = _full(count, positions, flags[1:])
    if flags[0]:
        full_positions.insert(0, numbered(full_positions[0]))
    return node.op(data, *full_positions)


def _library(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """Routines along an axis, and on matrices under any leading axes; others element by element."""
    attrs = node.attributes()
    if "dim" in attrs:
        return _along_axis(count, node, args, flags)
    if all(a.ndim >= 2 for a in node.args):
        operands = _full(count, args, flags)
        if node.op.shape(*operands, **attrs) == (count, *node.shape):
            return node.op(*operands, **attrs)
    return _each(count, node, args, flags)


def _alias(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    if node.attrs:
        # A note on the value of one element says nothing of the batch.
        return args[0] if flags[0] else with_batch(args[0], count)
    return node.op(*_full(count, args, flags))


def _leaf(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """A leaf that was rebound to a traced value."""
    (value,) = args
    return Expr(INPUT, (value,), (), value.shape, node.dtype, node.requires_grad)


def element(x: Expr, number: int) -> Expr:
    """One batch element."""
    rest = x.shape[1:]
    row = narrow_step(x, starts=(number, *(0,) * len(rest)), steps=(1,) * x.ndim, counts=(1, *rest))
    return reshape(row, rest)


def rows_of(x: Expr, start: int, stop: int) -> Expr:
    """Some neighbouring batch elements."""
    rest = x.shape[1:]
    return narrow_step(
        x, starts=(start, *(0,) * len(rest)), steps=(1,) * x.ndim, counts=(stop - start, *rest)
    )


def _each(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """The op applied to each batch element, for routines on whole arrays."""
    if count == 0:
        return full(0.0, (0, *node.shape), node.dtype)
    rows = []
    for number in range(count):
        own = tuple(element(a, number) if f else a for a, f in zip(args, flags, strict=True))
        made = record(node.op, own, node.attrs, node.shape, node.dtype)
        rows.append(reshape(made, (1, *node.shape)))
    return rows[0] if count == 1 else join_axis(*rows, dim=0)


RULES: dict[str, Rule] = {
    "elementwise": _elementwise,
    "reduce": _along_axis,
    "cumulative": _along_axis,
    "contract": _contract,
    "index": _index,
    "library": _library,
    "alias": _alias,
    "leaf": _leaf,
}


def _apply(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """The node on arguments some of which have the batch axis."""
    own = getattr(node.op, "batched", None)
    if own is not None:
        made = own(count, *_full(count, args, flags), **node.attributes())
    else:
        made = RULES.get(node.op.family, _each)(count, node, args, flags)
    shape = (count, *node.shape)
    if made.shape != shape or made.dtype is not node.dtype:
        raise RuntimeError(
            f"{node.op.name}: its batched form has shape {made.shape} (got {made.dtype!r}; needs {shape}, "
            f"{node.dtype!r}); state `batched` in the op"
        )
    return made


def applied(count: int, node: Expr, args: Sequence[Expr]) -> Expr:
    """The op of a node on arguments that have gained a leading axis of size `count`."""
    return _apply(count, node, args, [True] * len(args))


# -- Jacobians --------------------------------------------------------------------------


def unit_mask(size: int) -> Expr:
    """Where the unit vectors of a space of `size` elements are 1, one vector a row."""
    return eq(reshape(iota(count=size), (size, 1)), iota(count=size))


class UnitVectors:
    """A placeholder that stands for any unit vector in the shape of a node.

    Attributes
    ----------
    vector : Expr
        1 where `mask` holds, else a strong zero.
    mask : Expr
        The placeholder.
    """

    def __init__(self, like: Expr) -> None:
        self.shape = like.shape
        self.size = like.size
        self.mask = input_node(like.shape, dtypes.bool_)
        self.vector: Expr = keep(self.mask, full(1.0, like.shape, like.dtype))

    def rows(self, start: int, stop: int) -> Expr:
        """The masks of some unit vectors, stacked."""
        if (start, stop) == (0, self.size):
            return reshape(unit_mask(self.size), (self.size, *self.shape))
        number = iota(count=stop - start) + start
        mask = eq(reshape(number, (stop - start, 1)), iota(count=self.size))
        return reshape(mask, (stop - start, *self.shape))

    def batch(self, results: Sequence[Expr | None], chunk: int | None) -> list[Expr | None]:
        """`results` for all unit vectors, along a new leading axis; at most `chunk` at a time."""
        present = [r for r in results if r is not None]
        step = max(self.size, 1) if chunk is None else chunk
        parts: list[list[Expr]] = []
        for start in range(0, max(self.size, 1), step):
            stop = min(start + step, self.size)
            made = batched(present, [self.mask], [self.rows(start, stop)])
            parts.append(
                [
                    m if m.ndim > r.ndim else with_batch(m, stop - start)
                    for m, r in zip(made, present, strict=True)
                ]
            )
        columns = iter(zip(*parts, strict=True))
        found: list[Expr | None] = []
        for r in results:
            pieces = None if r is None else next(columns)
            if pieces is None:
                found.append(None)
            else:
                found.append(pieces[0] if len(pieces) == 1 else join_axis(*pieces, dim=0))
        return found


def jacobian_rows(
    output: Expr, inputs: Sequence[Expr], chunk: int | None = None
) -> list[Expr | None]:
    """Jacobians of one output with respect to inputs, by reverse mode.

    Parameters
    ----------
    output : Expr
    inputs : sequence of Expr
        Leaves or intermediate nodes that require grad.
    chunk : int, optional
        How many rows are computed together; all by default.

    Returns
    -------
    list of Expr or None
        Of shape ``output.shape + input.shape``; None where the output does not depend on the input.
    """
    if output.size == 1:
        found = pullback([output], [full(1.0, output.shape, output.dtype)], inputs)
    else:
        units = UnitVectors(output)
        found = units.batch(pullback([output], [units.vector], inputs), chunk)
    return [
        None if j is None else reshape(j, output.shape + x.shape)
        for j, x in zip(found, inputs, strict=True)
    ]


def jacobian_columns(
    outputs: Sequence[Expr], source: Expr, chunk: int | None = None
) -> list[Expr | None]:
    """Jacobians of outputs with respect to one input, by forward mode.

    Parameters
    ----------
    outputs : sequence of Expr
    source : Expr
    chunk : int, optional
        How many columns are computed together; all by default.

    Returns
    -------
    list of Expr or None
        Of shape ``output.shape + source.shape``; None where the output does not depend on it.
    """
    if source.size == 1:
        found = pushforward(outputs, [source], [full(1.0, source.shape, source.dtype)])
        return [None if j is None else reshape(j, j.shape + source.shape) for j in found]
    banded = banded_columns(outputs, source) if chunk is None else None
    if banded is not None:
        return banded
    units = UnitVectors(source)
    columns = units.batch(pushforward(outputs, [source], [units.vector]), chunk)
    result: list[Expr | None] = []
    for j in columns:
        if j is not None:
            j = reshape(permute(j, (*range(1, j.ndim), 0)), j.shape[1:] + source.shape)
        result.append(j)
    return result

"""What a matrix product need not multiply: zeros at both ends of the rows of its left operand.

Jacobians in forward mode are full of zeros that nobody knows when a program is recorded: tangents of
one finger's bones with respect to the angles of another. Where all rows of a tile are zero up to
some k, and again from another k on, its chains run between the two only. The bits stay those of
whole chains:

* A chain starts at +0.0, and stays there while zeros times finite numbers are added. So the right
  operand must be finite; its block is looked at when the first tile has such zeros (`JOB_FINITE`).
* Zeros added behind change nothing, unless the chain is at -0.0, which products that underflow can
  leave. Then the tile goes on to the end (`JOB_TAIL`).

Looking costs about as much as one row of the result, so blocks of few rows are left alone, and so are
tiles that would be shorter by less than an eighth. Tiles without zeros cost a look at their first and
last elements. Start reading at `Zeros`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.codegen.gemm_tile import (
    JOB_A_K,
    JOB_A_ROW,
    JOB_B_K,
    JOB_FINITE,
    JOB_LENGTH,
    JOB_TAIL,
    Shape,
    counted,
    element,
    lane_mask,
    none_of,
    panels_of,
    pieces_of,
    place,
    vectors_of,
    when,
)
from symgrad.codegen.ir import INT_OF_FLOAT, Function, Module, Val, constant, i64

SHORTEST = 64
"""Length of a chain from which on zeros are looked for."""

LEAST_ROWS, MOST_ROWS = 8, 64
"""Rows of a block in which zeros are looked for."""

SPARED = 8
"""One of so many elements of a chain, at least, must be left out."""

UNKNOWN, FINITE, NOT_FINITE = range(3)
"""What `JOB_FINITE` says of the right operand's block."""


class Zeros:
    """Code that leaves zeros out, in the function that goes over the tiles of a block.

    Parameters
    ----------
    f : Function
        Its first argument is the job.
    b, columns, packed : Val
        The right operand's block, its columns, and whether it was packed (not 0).
    """

    def __init__(
        self, f: Function, module: Module, kind: str, shape: Shape, block: tuple[Val, Val, Val]
    ) -> None:
        self.f = f
        self.kind = kind
        self._span = _define_span(module, kind, shape)
        self._settle = _define_settle(module, kind, _define_is_finite(module, kind, shape))
        self._block = block
        self.job = f.arguments[0]
        self.length = f.load(place(f, self.job, JOB_LENGTH), "i64")
        self.a_k = f.load(place(f, self.job, JOB_A_K), "i64")
        self._spans = f.alloca("i64", 1, 2 * MOST_ROWS)
        # The most rows of the tiles whose spans are known.
        self._rows = f.alloca("i64")
        f.store(i64(0), self._rows)
        self._some = f.alloca("i1")
        f.store(constant("i1", False), self._some)

    def _own(self, row: Val) -> Val:
        """Where the span of the tile is kept that begins at a row."""
        return place(self.f, self._spans, self.f.shl(row, i64(1)))

    def look(self, a: Val, a_row: Val, m: Val, most: Val) -> None:
        """Find the zeros in the rows of all tiles of a block, if they have other rows than before."""
        f = self.f
        with when(f, f.icmp("ne", most, f.load(self._rows, "i64")), "renewed"):
            self.end()
            f.store(most, self._rows)
            with pieces_of(f, m, most, "span") as (row, rows):
                own = self._own(row)
                at = element(f, a, f.mul(row, a_row), self.kind)
                f.call(self._span, None, [self.job, at, rows, own])
                first, end = (f.load(place(f, own, number), "i64") for number in (0, 1))
                cut = f.or_(f.icmp("ne", first, i64(0)), f.icmp("ne", end, self.length))
                f.store(f.or_(f.load(self._some, "i1"), cut), self._some)

    def absent(self) -> Val:
        """Whether no tile that was looked at has any."""
        return self.f.xor(self.f.load(self._some, "i1"), constant("i1", True))

    def cut(self, a: Val, b: Val, row: Val) -> tuple[Val, Val]:
        """Set a tile's length; where its chains start in A and B."""
        f = self.f
        own = self._own(row)
        starts = f.icmp("eq", f.load(place(f, own, 0), "i64"), i64(0))
        ends = f.icmp("eq", f.load(place(f, own, 1), "i64"), self.length)
        f.store(self.length, place(f, self.job, JOB_LENGTH))
        f.store(i64(0), place(f, self.job, JOB_TAIL))
        before = f.block
        some, whole = f.label("some"), f.label("whole")
        f.branch_if(f.and_(starts, ends), whole, some)
        f.start(some)
        settled = f.call(self._settle, ("i64", 1), [self.job, own, *self._block])
        assert settled is not None
        f.branch(whole)
        f.start(whole)
        first = f.phi("i64")
        f.set_phi(first, [(i64(0), before), (settled, some)])
        b_k = f.load(place(f, self.job, JOB_B_K), "i64")
        at_a = element(f, a, f.mul(first[0], self.a_k), self.kind)
        return at_a, element(f, b, f.mul(first[0], b_k), self.kind)

    def end(self) -> None:
        """Leave the job as it was."""
        f = self.f
        f.store(self.length, place(f, self.job, JOB_LENGTH))
        f.store(i64(0), place(f, self.job, JOB_TAIL))


def _define_span(module: Module, kind: str, shape: Shape) -> str:
    """Define ``void span(ptr job, ptr a, i64 rows, ptr found)``.

    All `rows` rows of `a` are zero, of either sign, but for found[0] <= k < found[1]; the whole length
    is found where that would leave out too little.
    """
    name = f"gemm_span_{kind}"
    arguments = [("job", "ptr", 1), ("a", "ptr", 1), ("rows", "i64", 1), ("found", "ptr", 1)]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    job, a, rows, found = f.arguments
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    a_row, a_k = (f.load(place(f, job, number), "i64") for number in (JOB_A_ROW, JOB_A_K))
    bits = INT_OF_FLOAT[kind]

    def zeros(width: int) -> Callable[[Val], Val]:
        """Whether `width` elements from k on are zero in all rows."""

        def test(k: Val) -> Val:
            at = element(f, a, f.mul(k, a_k), kind)
            met = constant(bits, 0, width)
            row, met, close = _loop(f, rows, met, "row")
            value = f.load(element(f, at, f.mul(row, a_row), kind), bits, width)
            met = close(f.or_(met, value))
            size = f.shl(met, constant(bits, 1, width))
            return none_of(f, f.icmp("ne", size, constant(bits, 0, width)))

        return test

    # Where elements follow one another, a vector of them at a time first.
    step = shape.width
    beside = f.icmp("eq", a_k, i64(1))
    reach = f.select(beside, f.sub(length, i64(step)), i64(-1))
    first = _walked(f, i64(0), step, lambda k: f.icmp("sle", k, reach), zeros(step), "leading")
    first = _walked(f, first, 1, lambda k: f.icmp("slt", k, length), zeros(1), "first")
    low = f.select(beside, f.add(first, i64(step)), f.add(length, i64(1)))

    def before(test: Callable[[Val], Val], width: int) -> Callable[[Val], Val]:
        return lambda k: test(f.sub(k, i64(width)))

    end = _walked(
        f, length, -step, lambda k: f.icmp("sge", k, low), before(zeros(step), step), "trailing"
    )
    end = _walked(f, end, -1, lambda k: f.icmp("sgt", k, first), before(zeros(1), 1), "last")
    spared = f.sub(length, f.sub(end, first))
    enough = f.icmp("sge", f.mul(spared, i64(SPARED)), length)
    f.store(f.select(enough, first, i64(0)), place(f, found, 0))
    f.store(f.select(enough, end, length), place(f, found, 1))
    f.ret()
    f.finish()
    return name


def _define_is_finite(module: Module, kind: str, shape: Shape) -> str:
    """Define ``i1 finite(ptr job, ptr b, i64 columns, i64 packed)``: whether all of a block is."""
    name = f"gemm_finite_{kind}"
    arguments = [("job", "ptr", 1), ("b", "ptr", 1), ("columns", "i64", 1), ("packed", "i64", 1)]
    f = Function(
        module, name, arguments, ("i1", 1), attributes="noinline nounwind", linkage="internal"
    )
    job, b, columns, packed = f.arguments
    width = shape.width
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    apart = f.load(place(f, job, JOB_B_K), "i64")
    panels = f.icmp("ne", packed, i64(0))
    zero = constant(kind, 0.0, width)
    result = f.alloca(kind, width)
    f.store(zero, result)
    fours = f.sub(length, f.urem(length, i64(4)))
    with panels_of(f, vectors_of(f, columns, width), shape) as (first, vectors):
        column = f.mul(first, i64(width))
        panel = element(f, b, f.select(panels, f.mul(column, length), column), kind)
        row = f.select(panels, f.mul(vectors, i64(width)), apart)
        with counted(f, i64(0), vectors, i64(1), "vector") as number:
            lane = f.mul(number, i64(width))
            mask = lane_mask(f, f.sub(f.sub(columns, column), lane), kind, width)
            at = element(f, panel, lane, kind)

            def product(k: Val, at: Val = at, row: Val = row, mask: Val = mask) -> Val:
                value = f.masked_load(element(f, at, f.mul(k, row), kind), mask, zero)
                # Zero times what is not finite is not a number.
                return f.fmul(value, zero)

            with counted(f, i64(0), fours, i64(4), "four") as k:
                terms = [product(f.add(k, i64(n))) for n in range(4)]
                sums = f.fadd(f.fadd(terms[0], terms[1]), f.fadd(terms[2], terms[3]))
                f.store(f.fadd(f.load(result, kind, width), sums), result)
            with counted(f, fours, length, i64(1), "one") as k:
                f.store(f.fadd(f.load(result, kind, width), product(k)), result)
    total = f.load(result, kind, width)
    f.ret(none_of(f, f.fcmp("uno", total, total)))
    f.finish()
    return name


def _define_settle(module: Module, kind: str, is_finite: str) -> str:
    """Define ``i64 settle(ptr job, ptr span, ptr b, i64 columns, i64 packed)``.

    Sets the length of a tile's chains by the span of its rows of A, and gives their start.
    """
    name = f"gemm_settle_{kind}"
    arguments = [("job", "ptr", 1), ("span", "ptr", 1), ("b", "ptr", 1)]
    arguments += [("columns", "i64", 1), ("packed", "i64", 1)]
    f = Function(
        module, name, arguments, ("i64", 1), attributes="noinline nounwind", linkage="internal"
    )
    job, span, *block = f.arguments
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    known = place(f, job, JOB_FINITE)
    with when(f, f.icmp("eq", f.load(known, "i64"), i64(UNKNOWN)), "unknown"):
        finite = f.call(is_finite, ("i1", 1), [job, *block])
        assert finite is not None
        f.store(f.select(finite, i64(FINITE), i64(NOT_FINITE)), known)
    finite = f.icmp("eq", f.load(known, "i64"), i64(FINITE))
    first, end = (f.load(place(f, span, number), "i64") for number in (0, 1))
    first, end = f.select(finite, first, i64(0)), f.select(finite, end, length)
    f.store(f.sub(end, first), place(f, job, JOB_LENGTH))
    f.store(f.sub(length, end), place(f, job, JOB_TAIL))
    f.ret(first)
    f.finish()
    return name


def _walked(
    f: Function,
    start: Val,
    step: int,
    inside: Callable[[Val], Val],
    holds: Callable[[Val], Val],
    hint: str,
) -> Val:
    """The first position from `start` on, step by step, that is not inside or where nothing holds."""
    before = f.block
    head, look, done = f.label(hint), f.label(f"{hint}.look"), f.label(f"{hint}.done")
    f.branch(head)
    f.start(head)
    position = f.phi("i64")
    f.branch_if(inside(position[0]), look, done)
    f.start(look)
    held = holds(position[0])
    following = f.add(position[0], i64(step))
    f.set_phi(position, [(start, before), (following, f.block)])
    f.branch_if(held, head, done)
    f.start(done)
    return position[0]


def _loop(f: Function, trips: Val, first: Val, hint: str) -> tuple[Val, Val, Callable[[Val], Val]]:
    """Begin a loop of one turn at least: its number, the value it carries, and what ends it."""
    before = f.block
    body, done = f.label(hint), f.label(f"{hint}.done")
    f.branch(body)
    f.start(body)
    number = f.phi("i64")
    carried = f.phi(first.kind, first.width)

    def close(later: Val) -> Val:
        following = f.add(number[0], i64(1))
        f.set_phi(number, [(i64(0), before), (following, f.block)])
        f.set_phi(carried, [(first, before), (later, f.block)])
        f.branch_if(f.icmp("slt", following, trips), body, done)
        f.start(done)
        return later

    return number[0], carried[0], close

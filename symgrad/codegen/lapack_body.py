"""The builder that kernels around LAPACK are written with.

Two structures:

* the words of a launch: `HEAD` of them say where status and scratch memory are and how the batch
  is split, then come slot numbers and sizes, in the order in which a kernel asks for them;
* `Kernel`: a kernel under construction.

A chunk is a strip: a part of the batch with a piece of scratch memory of its own, which comes from
the heap, for as long as the kernel runs, if the slot number of scratch memory is negative. Where
LAPACK reports a failure the launch's mark goes to the status word, unless one is there already;
the matrix leaves its result undefined.
Start reading at `Kernel.each`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.codegen.entry_body import NULL, ONE, ZERO, Body
from symgrad.codegen.ir import Module, Val, constant
from symgrad.codegen.library_threads import BEGIN, END

HEAD = 7
STATUS, MARK, SCRATCH, STRIP_BYTES, BATCH, STRIPS, ALONE = range(HEAD)

TILE = 16
"""Rows turned at once: as many lines of memory as stay in the first cache with ease."""

_LETTER = {"double": "d", "float": "s"}


class Kernel(Body):
    """A kernel under construction: its words, Fortran's arguments, the loop over matrices.

    Parameters
    ----------
    module : Module
    name : str
    element : str
        The kind of element that it computes with.
    outside : str
        That of its operands and results.
    """

    def __init__(self, module: Module, name: str, element: str, outside: str) -> None:
        super().__init__(module, name, ["ptr", "ptr", "i64", "i64"], None, 0, "nounwind", "")
        self.element = element
        self.outside = outside
        self.slots, self.words, self.low, self.high = self.arguments
        self._next = HEAD
        self.info = self.alloca("i32", align=4)

    # -- the launch's words -----------------------------------------------------------

    def size(self) -> Val:
        """The next word."""
        self._next += 1
        return self.word(self.words, self._next - 1)

    def buffer(self) -> Val:
        """The memory whose slot number is the next word."""
        return self._memory(self.size())

    def _memory(self, slot: Val) -> Val:
        return self.word(self.slots, slot, "ptr")

    def each(self, body: Callable[[Val, Val], None], library: bool = True) -> None:
        """Run ``body(matrix number, scratch memory)`` for all matrices of the strips asked for.

        Where it calls the `library` and the launch says so, the library uses one thread.
        """
        batch, strips = self.word(self.words, BATCH), self.word(self.words, STRIPS)
        bytes_each, slot = self.word(self.words, STRIP_BYTES), self.word(self.words, SCRATCH)
        borrowed = self.icmp("slt", slot, ZERO)
        cell = self.alloca("ptr", align=8)
        self.either(
            borrowed,
            lambda: self.store(self.invoke("malloc", "ptr", [bytes_each]), cell),
            lambda: self.store(self._memory(slot), cell),
        )
        base = self.load(cell, "ptr")
        missing = self.icmp("eq", base, NULL)
        self.report(missing)
        # One piece of borrowed memory serves strip after strip.
        step = self.select(borrowed, ZERO, bytes_each)

        def strip(number: Val) -> None:
            here = self.add(self.low, number)
            first = self.udiv(self.mul(here, batch), strips)
            end = self.udiv(self.mul(self.add(here, ONE), batch), strips)
            scratch = self.gep(base, self.mul(here, step), "i8")
            self.repeat(self.sub(end, first), lambda i: body(self.add(first, i), scratch))

        alone = self.icmp("ne", self.word(self.words, ALONE), ZERO)
        if library:
            self.when(alone, lambda: self.call(BEGIN, None, []))
        self.repeat(self.select(missing, ZERO, self.sub(self.high, self.low)), strip)
        if library:
            self.when(alone, lambda: self.call(END, None, []))
        self.when(borrowed, lambda: self.call("free", None, [base]))
        self.ret()
        self.finish()

    # -- Fortran's arguments ----------------------------------------------------------

    def integer(self, value: Val | int) -> Val:
        """The address of a number of 32 bits."""
        cell = self.alloca("i32", align=4)
        wide = self.index(value) if isinstance(value, int) else value
        self.store(self.cast("trunc", wide, "i32"), cell)
        return cell

    def letter(self, value: Val | str) -> Val:
        """The address of a character."""
        cell = self.alloca("i8", align=1)
        wide = self.index(ord(value)) if isinstance(value, str) else value
        self.store(self.cast("trunc", wide, "i8"), cell)
        return cell

    def one(self) -> Val:
        """The address of the number 1."""
        cell = self.alloca(self.element, align=8)
        self.store(constant(self.element, 1.0), cell)
        return cell

    def fortran(self, routine: str, *arguments: Val) -> None:
        """Call a routine, by its name without the letter of the element kind."""
        self.call(symbol(routine, self.element), None, arguments)

    def failed(self) -> Val:
        """Whether the routine called last reported anything."""
        return self.icmp("ne", self.load(self.info, "i32"), constant("i32", 0))

    def report(self, condition: Val) -> None:
        """Mark a failure if the condition holds; several threads may do so at once."""

        def mark() -> None:
            status = self._memory(self.word(self.words, STATUS))
            own = self.word(self.words, MARK)
            self.emit(f"cmpxchg {status}, {ZERO}, {own} monotonic monotonic, align 8", "i64")

        self.when(condition, mark)

    # -- memory -----------------------------------------------------------------------

    def element_at(self, base: Val, index: Val) -> Val:
        return self.gep(base, index, self.element)

    def outside_at(self, base: Val, index: Val) -> Val:
        return self.gep(base, index, self.outside)

    def write(self, value: Val, target: Val) -> None:
        """Store an element of a result."""
        same = self.element == self.outside
        self.store(value if same else self.cast("fptrunc", value, self.outside), target)

    def copy(self, target: Val, source: Val, count: Val) -> None:
        """Copy elements."""
        self.module.declare("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
        size = self.mul(count, self.index(8 if self.element == "double" else 4))
        self.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, {size}, i1 false)")

    def fill(self, target: Val, value: Val, count: Val) -> None:
        """Set elements."""
        self.repeat(count, lambda i: self.store(value, self.element_at(target, i)))

    def turn(self, source: Val, target: Val, rows: Val, columns: Val) -> None:
        """Write the transposed matrix of a row-major one, rows by columns, to other memory."""
        self._turn(self.element, source, target, rows, columns)

    def turn_in(self, source: Val, target: Val, rows: Val, columns: Val) -> None:
        """The same for an operand."""
        self._turn(self.outside, source, target, rows, columns)

    def _turn(self, element: str, *arguments: Val) -> None:
        self.call(_define_turn(self.module, element, self.element), None, arguments)

    def finite(self, source: Val, count: Val) -> Val:
        """Whether all elements are finite."""
        zero = constant(self.element, 0.0)
        cell = self.alloca(self.element, align=8)
        self.store(zero, cell)

        def step(i: Val) -> None:
            # Infinities and NaNs times 0 are NaN, and stay so in the sum.
            term = self.fmul(self.load(self.element_at(source, i), self.element), zero)
            self.store(self.fadd(self.load(cell, self.element), term), cell)

        self.repeat(count, step)
        return self.fcmp("oeq", self.load(cell, self.element), zero)

    def either(self, condition: Val, yes: Callable[[], object], no: Callable[[], object]) -> None:
        """Run one of two bodies."""
        self.when(condition, yes)
        self.when(self.xor(condition, constant("i1", True)), no)


def symbol(routine: str, element: str) -> str:
    """The name under which kernels know a routine."""
    return f"lapack_{_LETTER[element]}{routine}"


def _define_turn(module: Module, element: str, into: str) -> str:
    name = f"turn_{element}_{into}"
    if name in module.functions:
        return name
    f = Body(module, name, ["ptr", "ptr", "i64", "i64"], None, 0, "nounwind noinline")
    source, target, rows, columns = f.arguments
    tile = f.index(TILE)
    tiles = f.udiv(f.add(rows, f.index(TILE - 1)), tile)

    def band(number: Val) -> None:
        first = f.mul(number, tile)
        left = f.sub(rows, first)
        count = f.select(f.icmp("ult", left, tile), left, tile)
        corner = f.gep(source, f.mul(first, columns), element)

        def column(j: Val) -> None:
            row = f.gep(target, f.add(f.mul(j, rows), first), into)
            start = f.gep(corner, j, element)

            def cell(i: Val) -> None:
                value = f.load(f.gep(start, f.mul(i, columns), element), element)
                made = value if into == element else f.cast("fpext", value, into)
                f.store(made, f.gep(row, i, into))

            f.repeat(count, cell)

        f.repeat(columns, column)

    f.repeat(tiles, band)
    f.ret()
    f.finish()
    return name

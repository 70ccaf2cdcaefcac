"""Descriptor layout of the native entry, and the builder its functions are written with.

Two structures:

* the layout: words of a descriptor (``D_...``), of a record (``R_...``), and the codes of
  input (``IN_...``), output (``OUT_...``) and build (``BUILD_...``) records. All words have
  64 bits; `symgrad.codegen.entry` writes them, `symgrad.codegen.entry_ir` reads them.
* `Body`: an LLVM function with loops and tests written as Python callables.

Start reading at the layout.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.codegen.ir import Function, Module, Val, constant

D_FALLBACK, D_NARGS, D_NIN, D_IN = range(4)
D_FRAME_WORDS, D_VALUES, D_RESULTS, D_NRESULTS = range(4, 8)
D_NFIXED, D_FIXED, D_NARENA, D_ARENA, D_ARENA_CLASS, D_ARENA_BYTES = range(8, 14)
D_NOUT, D_OUT, D_NBUILD, D_BUILD, D_PLAN, D_RUN, D_RELEASE = range(14, 21)
D_NWRITTEN, D_NRANGE, D_RANGE, D_STATUS = range(21, 25)
D_WORDS = 25

R_CODE, R_TYPE, R_OBJECT, R_SLOT, R_A, R_B, R_C, R_D = range(8)
R_WORDS = 8

IN_FLOAT, IN_ARRAY, IN_ANY_ARRAY, IN_STATIC, IN_TUPLE, IN_LIST, IN_DICT = range(7)
OUT_ARRAY, OUT_LARGE, OUT_CELL = range(3)
BUILD_FLOAT64, BUILD_FLOAT32, BUILD_INT64, BUILD_BOOL = range(4)
BUILD_INPUT, BUILD_SAME, BUILD_OBJECT, BUILD_TUPLE, BUILD_LIST, BUILD_DICT = range(4, 10)

STACK_WORDS = 128
ARENA_CLASSES = 128
NO_STATUS = -1

NULL = Val("null", "ptr")
ZERO = constant("i64", 0)
ONE = constant("i64", 1)
YES = constant("i1", True)
NO = constant("i1", False)


class Body(Function):
    """A function with loops and tests written as Python blocks.

    Parameters
    ----------
    head_bytes : int
        Size of a bare Python object, from which array fields are counted.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        arguments: list[str],
        result: str | None,
        head_bytes: int,
        attributes: str = "alwaysinline nounwind",
        linkage: str = "internal",
    ) -> None:
        typed = [(f"x{i}", kind, 1) for i, kind in enumerate(arguments)]
        kind = None if result is None else (result, 1)
        super().__init__(module, name, typed, kind, attributes, linkage)
        self.head_bytes = head_bytes

    def index(self, value: int) -> Val:
        return constant("i64", value)

    def at(self, base: Val, index: Val | int) -> Val:
        """The address of a word."""
        return self.gep(base, self.index(index) if isinstance(index, int) else index, "i64")

    def word(self, base: Val, index: Val | int, kind: str = "i64") -> Val:
        return self.load(self.at(base, index), kind)

    def type_of(self, thing: Val) -> Val:
        return self.load(self.gep(thing, self.index(self.head_bytes - 8), "i8"), "ptr")

    def array_field(self, array: Val, offset: int, kind: str) -> Val:
        return self.load(self.gep(array, self.index(self.head_bytes + offset), "i8"), kind)

    def invoke(self, name: str, result: str, arguments: list[Val]) -> Val:
        value = self.call(name, (result, 1), arguments)
        assert value is not None
        return value

    def invoke_at(self, address: Val, arguments: list[Val]) -> None:
        self.do(f"call void {address.ref}({', '.join(str(a) for a in arguments)})")

    def repeat(self, count: Val, body: Callable[[Val], object]) -> None:
        """Run `body(i)` for i from 0 to `count` - 1."""
        head, inside, done = self.label("head"), self.label("inside"), self.label("done")
        before = self.block
        self.branch(head)
        self.start(head)
        phi = self.phi("i64")
        self.branch_if(self.icmp("ult", phi[0], count), inside, done)
        self.start(inside)
        body(phi[0])
        following = self.add(phi[0], ONE)
        self.set_phi(phi, [(ZERO, before), (following, self.block)])
        self.branch(head)
        self.start(done)

    def records(
        self, descriptor: Val, count: int, table: int, body: Callable[[Val], object]
    ) -> None:
        """Run `body(record)` for each record of a table of the descriptor."""
        first = self.word(descriptor, table, "ptr")
        size = self.index(R_WORDS)
        self.repeat(self.word(descriptor, count), lambda i: body(self.at(first, self.mul(i, size))))

    def pairs(
        self, descriptor: Val, count: int, table: int, body: Callable[[Val, Val], object]
    ) -> None:
        """Run `body(first, second)` for each pair of words of a table of the descriptor."""
        start = self.word(descriptor, table, "ptr")

        def step(i: Val) -> None:
            place = self.at(start, self.shl(i, ONE))
            body(self.word(place, 0), self.word(place, 1))

        self.repeat(self.word(descriptor, count), step)

    def jump_if(self, condition: Val, label: str) -> None:
        """Go to `label` if the condition holds."""
        stay = self.label("stay")
        self.branch_if(condition, label, stay)
        self.start(stay)

    def when(self, condition: Val, body: Callable[[], object]) -> None:
        """Run `body` if the condition holds; it must not leave the function."""
        inside, after = self.label("then"), self.label("after")
        self.branch_if(condition, inside, after)
        self.start(inside)
        body()
        self.branch(after)
        self.start(after)

    def leave_if(self, condition: Val, value: Val) -> None:
        """Return `value` if the condition holds."""
        leave, stay = self.label("leave"), self.label("stay")
        self.branch_if(condition, leave, stay)
        self.start(leave)
        self.ret(value)
        self.start(stay)

    def choose(self, code: Val, cases: dict[int, Callable[[], object]]) -> None:
        """Run the case of that number; the numbers given are all there are."""
        labels = {number: self.label(f"case{number}") for number in cases}
        impossible, after = self.label("impossible"), self.label("after")
        arms = " ".join(f"i64 {number}, label %{label}" for number, label in labels.items())
        self.do(f"switch {code}, label %{impossible} [ {arms} ]")
        self.start(impossible)
        self.do("unreachable")
        for number, body in cases.items():
            self.start(labels[number])
            body()
            self.branch(after)
        self.start(after)

"""LLVM IR as text, one instruction per method call.

Two structures:

* `Val`: an SSA value: its spelling (``%v3`` or a constant) and its `kind` and `width`.
  A `kind` is a scalar LLVM type (``double``, ``float``, ``i64``, ``i32``, ``i16``, ``i8``,
  ``i1``, ``ptr``); a `width` of 1 is the scalar itself, any other a vector of so many lanes.
* `Function`: the text of one function under construction: arguments, blocks, instructions.
  `Module` collects functions, the intrinsics and externals they declare, and constants.

Every floating point instruction is emitted without fast-math flags: an expression means
what IEEE 754 says. Start reading at `Function.emit`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

FLOAT_BITS = {"double": 64, "float": 32}
INT_BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
MANTISSA_BITS = {"double": 52, "float": 23}
EXPONENT_BIAS = {"double": 1023, "float": 127}
INT_OF_FLOAT = {"double": "i64", "float": "i32"}
_MARK = re.compile(r"here\.\d+")


def type_text(kind: str, width: int) -> str:
    """The LLVM spelling of a scalar or vector type."""
    return kind if width == 1 else f"<{width} x {kind}>"


class Val(NamedTuple):
    """An SSA value: spelling, scalar kind, lane count."""

    ref: str
    kind: str
    width: int = 1

    @property
    def type(self) -> str:
        return type_text(self.kind, self.width)

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


def scalar_constant(kind: str, value: float | int | bool) -> str:
    """The spelling of a scalar constant; floats are written as their exact bits."""
    if kind == "ptr":
        return "null"
    if kind in FLOAT_BITS:
        number = float(value)
        if kind == "float":
            with_rounding = struct.unpack("<f", struct.pack("<f", _clip_float(number)))[0]
            number = with_rounding
        return "0x" + struct.pack(">d", number).hex().upper()
    if kind == "i1":
        return "true" if value else "false"
    bits = INT_BITS[kind]
    number_int = int(value) & ((1 << bits) - 1)
    if number_int >> (bits - 1):
        number_int -= 1 << bits
    return str(number_int)


def _clip_float(number: float) -> float:
    try:
        struct.pack("<f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return number


def constant(kind: str, value: float | int | bool, width: int = 1) -> Val:
    """A constant, splat over `width` lanes."""
    text = scalar_constant(kind, value)
    return Val(text if width == 1 else f"splat ({kind} {text})", kind, width)


def i64(value: int) -> Val:
    """An i64 constant."""
    return constant("i64", value)


def lanes(kind: str, values: Sequence[float | int | bool]) -> Val:
    """A constant vector with one value per lane."""
    body = ", ".join(f"{kind} {scalar_constant(kind, v)}" for v in values)
    return Val(f"<{body}>", kind, len(values))


class Section(list[Any]):
    """Instructions in order, with sections among them; `block` is where its end lies."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self.block = block


class Module:
    """A module under construction: functions, declarations, constant tables."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.globals: dict[str, str] = {}

    def declare(self, name: str, result: str, arguments: Iterable[str], tail: str = "") -> None:
        if name not in self.functions:
            text = f"declare {result} @{name}({', '.join(arguments)}) {tail}".rstrip()
            self.declarations[name] = text

    def add_function(self, name: str, text: str) -> None:
        self.declarations.pop(name, None)
        self.functions[name] = text

    def add_table(self, name: str, kind: str, values: Sequence[float | int]) -> str:
        """A constant array in memory; returns the spelling of its address."""
        body = ", ".join(f"{kind} {scalar_constant(kind, v)}" for v in values)
        self.globals[name] = (
            f"@{name} = private unnamed_addr constant [{len(values)} x {kind}] [{body}], align 64"
        )
        return f"@{name}"

    def externals(self) -> list[str]:
        """Symbols the module uses and does not define (intrinsics left out)."""
        return [
            n for n in self.declarations if n not in self.functions and not n.startswith("llvm.")
        ]

    def text(self) -> str:
        names = self.functions
        declared = [t for n, t in self.declarations.items() if n not in names]
        return "\n".join([*self.globals.values(), *declared, *names.values()]) + "\n"


def written(emit: Callable[[Module], object]) -> Module:
    """A new module with what `emit` adds to it."""
    module = Module()
    emit(module)
    return module


class Function:
    """The body of one LLVM function, built block by block.

    Parameters
    ----------
    module : Module
        Receives the declarations that the body needs, and the text at `finish`.
    name : str
    arguments : sequence of (name, kind, width)
    result : Val type as (kind, width), or None for void
    attributes : str
        Function attributes, e.g. ``noinline nounwind``.
    linkage : str
        ``internal``, ``linkonce_odr`` or empty for an external symbol.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        arguments: Sequence[tuple[str, str, int]],
        result: tuple[str, int] | None = None,
        attributes: str = "nounwind",
        linkage: str = "",
    ) -> None:
        self.module = module
        self.name = name
        self.arguments = [Val(f"%{n}", k, w) for n, k, w in arguments]
        self.result = result
        self.attributes = attributes
        self.linkage = linkage
        self._lines = Section("entry")
        self._entry: list[str] = []
        self._count = 0
        self.block = "entry"

    # -- the one place where text is made ---------------------------------------------

    def emit(self, text: str, kind: str, width: int = 1) -> Val:
        """Append ``%vN = text`` and return the value."""
        self._count += 1
        ref = f"%v{self._count}"
        self._lines.append(f"  {ref} = {text}")
        return Val(ref, kind, width)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def section(self) -> Section:
        """A list at the current place that takes instructions later, through `redirect`."""
        part = Section(self.block)
        self._lines.append(part)
        return part

    def redirect(self, lines: Section) -> Section:
        """Emit into another section from now on; returns the one in use so far."""
        before = self._lines
        before.block = self.block
        self._lines = lines
        self.block = lines.block
        return before

    def here(self) -> str:
        """A name, for phi nodes, of the block that this place will lie in.

        Code that is put into an earlier section later may open blocks, so the block at this
        place is known only when the function is finished.
        """
        self._count += 1
        mark = f"here.{self._count}"
        self._lines.append(f"; {mark}")
        return mark

    def finish(self) -> None:
        """Close the function and hand it to the module."""
        result = "void" if self.result is None else type_text(*self.result)
        arguments = ", ".join(str(a) for a in self.arguments)
        head = f"define {self.linkage} {result} @{self.name}({arguments}) {self.attributes} {{"
        body = ["entry:", *self._entry, *_placed(_flattened(self._lines)), "}"]
        self.module.add_function(self.name, "\n".join([head, *body]))

    # -- control flow -----------------------------------------------------------------

    def label(self, hint: str) -> str:
        """A fresh block name."""
        self._count += 1
        return f"{hint}.{self._count}"

    def start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch_if(self, condition: Val, yes: str, no: str) -> None:
        self.do(f"br i1 {condition.ref}, label %{yes}, label %{no}")

    def phi(self, kind: str, width: int = 1) -> tuple[Val, Section, int]:
        """An empty phi node and its place, to be filled with `set_phi`."""
        value = self.emit("phi", kind, width)
        return value, self._lines, len(self._lines) - 1

    def set_phi(self, phi: tuple[Val, Section, int], incoming: Sequence[tuple[Val, str]]) -> None:
        value, lines, place = phi
        pairs = ", ".join(f"[ {v.ref}, %{block} ]" for v, block in incoming)
        lines[place] = f"  {value.ref} = phi {value.type} {pairs}"

    def ret(self, value: Val | None = None) -> None:
        self.do("ret void" if value is None else f"ret {value}")

    # -- memory -----------------------------------------------------------------------

    def alloca(self, kind: str, width: int = 1, count: int = 1, align: int = 64) -> Val:
        """Stack memory, allocated once at function entry."""
        self._count += 1
        ref = f"%a{self._count}"
        self._entry.append(f"  {ref} = alloca {type_text(kind, width)}, i64 {count}, align {align}")
        return Val(ref, "ptr")

    def gep(self, base: Val, index: Val, kind: str, width: int = 1) -> Val:
        """The address of element `index` (vector of addresses if `index` is a vector)."""
        text = f"getelementptr {type_text(kind, width)}, {base}, {index}"
        return self.emit(text, "ptr", index.width)

    def load(self, address: Val, kind: str, width: int = 1, align: int | None = None) -> Val:
        size = align or _align_of(kind)
        return self.emit(f"load {type_text(kind, width)}, {address}, align {size}", kind, width)

    def store(self, value: Val, address: Val, align: int | None = None) -> None:
        self.do(f"store {value}, {address}, align {align or _align_of(value.kind)}")

    def masked_load(self, address: Val, mask: Val, other: Val) -> Val:
        """Contiguous lanes from `address` where `mask` is set, `other` elsewhere."""
        align = _align_of(other.kind)
        return self.intrinsic(
            "masked.load",
            other.kind,
            other.width,
            [address, mask, other],
            suffix=f"{_mangled(other)}.p0",
            align_first=align,
        )

    def masked_store(self, value: Val, address: Val, mask: Val) -> None:
        name = f"llvm.masked.store.{_mangled(value)}.p0"
        align = _align_of(value.kind)
        self.module.declare(name, "void", [value.type, "ptr", mask.type])
        self.do(f"call void @{name}({value}, ptr align {align} {address.ref}, {mask})")

    def masked_gather(self, addresses: Val, mask: Val, other: Val) -> Val:
        """One lane from each address where `mask` is set, `other` elsewhere."""
        name = f"llvm.masked.gather.{_mangled(other)}.v{other.width}p0"
        align = _align_of(other.kind)
        self.module.declare(name, other.type, [addresses.type, mask.type, other.type])
        return self.emit(
            f"call {other.type} @{name}({addresses.type} align {align} {addresses.ref}, {mask}, {other})",
            other.kind,
            other.width,
        )

    def masked_scatter(self, value: Val, addresses: Val, mask: Val) -> None:
        name = f"llvm.masked.scatter.{_mangled(value)}.v{value.width}p0"
        align = _align_of(value.kind)
        self.module.declare(name, "void", [value.type, addresses.type, mask.type])
        self.do(
            f"call void @{name}({value}, {addresses.type} align {align} {addresses.ref}, {mask})"
        )

    # -- arithmetic -------------------------------------------------------------------

    def const(self, value: float | int | bool, like: Val) -> Val:
        """A constant of the kind and width of `like`."""
        return constant(like.kind, value, like.width)

    def _two(self, name: str, x: Val, y: Val) -> Val:
        return self.emit(f"{name} {x.type} {x.ref}, {y.ref}", x.kind, x.width)

    def fadd(self, x: Val, y: Val) -> Val:
        return self._two("fadd", x, y)

    def fsub(self, x: Val, y: Val) -> Val:
        return self._two("fsub", x, y)

    def fmul(self, x: Val, y: Val) -> Val:
        return self._two("fmul", x, y)

    def fdiv(self, x: Val, y: Val) -> Val:
        return self._two("fdiv", x, y)

    def fneg(self, x: Val) -> Val:
        return self.emit(f"fneg {x}", x.kind, x.width)

    def add(self, x: Val, y: Val) -> Val:
        return self._two("add", x, y)

    def sub(self, x: Val, y: Val) -> Val:
        return self._two("sub", x, y)

    def mul(self, x: Val, y: Val) -> Val:
        return self._two("mul", x, y)

    def sdiv(self, x: Val, y: Val) -> Val:
        return self._two("sdiv", x, y)

    def srem(self, x: Val, y: Val) -> Val:
        return self._two("srem", x, y)

    def udiv(self, x: Val, y: Val) -> Val:
        return self._two("udiv", x, y)

    def urem(self, x: Val, y: Val) -> Val:
        return self._two("urem", x, y)

    def and_(self, x: Val, y: Val) -> Val:
        return self._two("and", x, y)

    def or_(self, x: Val, y: Val) -> Val:
        return self._two("or", x, y)

    def xor(self, x: Val, y: Val) -> Val:
        return self._two("xor", x, y)

    def shl(self, x: Val, y: Val) -> Val:
        return self._two("shl", x, y)

    def lshr(self, x: Val, y: Val) -> Val:
        return self._two("lshr", x, y)

    def ashr(self, x: Val, y: Val) -> Val:
        return self._two("ashr", x, y)

    def fcmp(self, predicate: str, x: Val, y: Val) -> Val:
        """`predicate` is LLVM's: oeq, ogt, oge, olt, ole, one, ord, uno, une, ..."""
        return self.emit(f"fcmp {predicate} {x}, {y.ref}", "i1", x.width)

    def icmp(self, predicate: str, x: Val, y: Val) -> Val:
        return self.emit(f"icmp {predicate} {x}, {y.ref}", "i1", x.width)

    def select(self, condition: Val, x: Val, y: Val) -> Val:
        return self.emit(f"select {condition}, {x}, {y}", x.kind, x.width)

    def cast(self, name: str, x: Val, kind: str) -> Val:
        """LLVM's conversions: bitcast, sext, zext, trunc, sitofp, uitofp, fptosi, fpext, fptrunc."""
        return self.emit(f"{name} {x} to {type_text(kind, x.width)}", kind, x.width)

    def bits(self, x: Val) -> Val:
        """A float's bits as an integer of the same width."""
        return self.cast("bitcast", x, INT_OF_FLOAT[x.kind])

    def floats(self, x: Val) -> Val:
        """The float whose bits are the integer `x` (i64 or i32)."""
        return self.cast("bitcast", x, {"i64": "double", "i32": "float"}[x.kind])

    # -- lanes ------------------------------------------------------------------------

    def splat(self, x: Val, width: int) -> Val:
        """A scalar repeated over `width` lanes."""
        if width == 1:
            return x
        one = self.emit(
            f"insertelement {type_text(x.kind, width)} poison, {x}, i64 0", x.kind, width
        )
        zeros = f"<{width} x i32> zeroinitializer"
        return self.emit(f"shufflevector {one}, {one.type} poison, {zeros}", x.kind, width)

    def extract(self, x: Val, lane: int) -> Val:
        return self.emit(f"extractelement {x}, i64 {lane}", x.kind)

    def insert(self, x: Val, value: Val, lane: int) -> Val:
        return self.emit(f"insertelement {x}, {value}, i64 {lane}", x.kind, x.width)

    def shuffle(self, x: Val, y: Val | None, picks: Sequence[int]) -> Val:
        other = f"{x.type} poison" if y is None else str(y)
        index = ", ".join(f"i32 {i}" for i in picks)
        return self.emit(
            f"shufflevector {x}, {other}, <{len(picks)} x i32> <{index}>", x.kind, len(picks)
        )

    def repeated(self, x: Val, each: int) -> Val:
        """Every lane `each` times, one after the other."""
        if each == 1:
            return x
        return self.shuffle(x, None, [k for k in range(x.width) for _ in range(each)])

    def lanes_of_bits(self, bits: Val, width: int) -> Val:
        """A mask whose lanes are the low bits of an integer."""
        low = bits
        if width < INT_BITS[bits.kind]:
            low = self.emit(f"trunc {bits} to i{width}", f"i{width}")
        return self.emit(f"bitcast {low} to <{width} x i1>", "i1", width)

    # -- intrinsics and calls ---------------------------------------------------------

    def intrinsic(
        self,
        name: str,
        kind: str,
        width: int,
        arguments: Sequence[Val],
        suffix: str | None = None,
        align_first: int | None = None,
    ) -> Val:
        """Call ``llvm.<name>.<suffix>``; the suffix defaults to the result type."""
        full = f"llvm.{name}.{suffix or _mangled(Val('', kind, width))}"
        self.module.declare(full, type_text(kind, width), [a.type for a in arguments])
        texts = [str(a) for a in arguments]
        if align_first is not None:
            first = arguments[0]
            texts[0] = f"{first.type} align {align_first} {first.ref}"
        return self.emit(f"call {type_text(kind, width)} @{full}({', '.join(texts)})", kind, width)

    def fma(self, x: Val, y: Val, z: Val) -> Val:
        """x*y + z, rounded once."""
        return self.intrinsic("fma", x.kind, x.width, [x, y, z])

    def fabs(self, x: Val) -> Val:
        return self.intrinsic("fabs", x.kind, x.width, [x])

    def sqrt(self, x: Val) -> Val:
        return self.intrinsic("sqrt", x.kind, x.width, [x])

    def floor(self, x: Val) -> Val:
        return self.intrinsic("floor", x.kind, x.width, [x])

    def ceil(self, x: Val) -> Val:
        return self.intrinsic("ceil", x.kind, x.width, [x])

    def truncate(self, x: Val) -> Val:
        return self.intrinsic("trunc", x.kind, x.width, [x])

    def rint(self, x: Val) -> Val:
        """Nearest integer, ties to even."""
        return self.intrinsic("roundeven", x.kind, x.width, [x])

    def copysign(self, x: Val, sign: Val) -> Val:
        return self.intrinsic("copysign", x.kind, x.width, [x, sign])

    def call(
        self, name: str, result: tuple[str, int] | None, arguments: Sequence[Val], tail: str = ""
    ) -> Val | None:
        """Call a function by name, declaring it if the module does not define it."""
        text = "void" if result is None else type_text(*result)
        self.module.declare(name, text, [a.type for a in arguments], tail)
        instruction = f"call {text} @{name}({', '.join(str(a) for a in arguments)})"
        if result is None:
            self.do(instruction)
            return None
        return self.emit(instruction, *result)


def _flattened(lines: Section) -> list[str]:
    """The text of nested sections, in order."""
    flat: list[str] = []
    stack: list[Any] = [iter(lines)]
    while stack:
        for line in stack[-1]:
            if isinstance(line, list):
                stack.append(iter(line))
                break
            flat.append(line)
        else:
            stack.pop()
    return flat


def _placed(lines: list[str]) -> list[str]:
    """Lines with the marks of `Function.here` replaced by the blocks they lie in."""
    block = "entry"
    blocks: dict[str, str] = {}
    kept = []
    for line in lines:
        if line.startswith("; here."):
            blocks[line[2:]] = block
            continue
        if line.endswith(":"):
            block = line[:-1]
        kept.append(line)
    return [_MARK.sub(lambda m: blocks[m.group()], x) if "here." in x else x for x in kept]


def _align_of(kind: str) -> int:
    return 8 if kind == "ptr" else max(1, {**FLOAT_BITS, **INT_BITS}[kind] // 8)


def _mangled(value: Val) -> str:
    scalar = {"double": "f64", "float": "f32", "ptr": "p0"}.get(value.kind, value.kind)
    return scalar if value.width == 1 else f"v{value.width}{scalar}"

"""AVX-512 instructions that no portable IR comes to: tables in registers, scaling, exponents.

A form built on them is chosen when code is generated, for all widths alike: lanes that do not
fill a register ride in a padded one, so that a scalar has the bits of a lane of a vector. Where
the host lacks the instructions, or `forced` says so, callers emit their portable forms.

One structure, `_Shape`: how a kind fills a 512-bit register. Start at `enabled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from symgrad.codegen import emission, ir
from symgrad.codegen.vmath.notation import Value, fma

if TYPE_CHECKING:
    from symgrad.codegen.vmath.nodetables import NodeTable

forced: bool | None = None
"""Set to False (or True) to choose the forms whatever the host is."""

CURRENT_ROUNDING = ir.constant("i32", 4)
# Normalised to [1, 2), NaN for negatives, +1 for either zero.
MANTISSA_FROM_ONE = ir.constant("i32", 12)
NO_EXCEPTIONS = ir.constant("i32", 0)
# The result's replacement by the class of the argument, four bits each from the lowest: quiet
# and signalling NaN, zero, one, -inf, inf, negative, positive. 0 keeps, 2 is the argument's NaN,
# 3 NaN, 4 and 5 are -inf and inf.
LOGARITHM_CLASSES = 0x03530422


class _Shape(NamedTuple):
    lanes: int
    suffix: str
    mask: ir.Val


_OF_64 = _Shape(8, "pd.512", ir.constant("i8", -1))
_OF_32 = _Shape(16, "ps.512", ir.constant("i16", -1))
SHAPES = {"double": _OF_64, "i64": _OF_64, "float": _OF_32, "i32": _OF_32}


@cache
def _host_has_it() -> bool:
    features = emission.host_features()
    return all(features.get(name, False) for name in ("avx512f", "avx512vl", "avx512dq"))


def enabled() -> bool:
    """Whether code generated now uses the forms of this module."""
    return _host_has_it() if forced is None else forced


def _part(x: Value, first: int, lanes: int) -> Value:
    """Lanes from `first` on as a full register, padded when `x` is narrower."""
    f = x.f
    if x.width == lanes:
        return x
    if x.width == 1:
        poison = ir.Val("poison", x.kind, lanes)
        return Value(f, f.insert(poison, x.val, 0))
    picks = [i if i < x.width else 0 for i in range(first, first + lanes)]
    return Value(f, f.shuffle(x.val, None, picks))


def _by_registers(operation: Callable[..., Value], *operands: Value) -> Value:
    """Apply an operation on full registers to operands of any width."""
    f, width = operands[0].f, operands[0].width
    lanes = SHAPES[operands[0].kind].lanes
    parts = [
        operation(*[_part(x, first, lanes) for x in operands]).val
        for first in range(0, width, lanes)
    ]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [f.shuffle(a, b, range(2 * a.width)) for a, b in pairs]
    whole = parts[0]
    if whole.width == width:
        return Value(f, whole)
    if width == 1:
        return Value(f, f.extract(whole, 0))
    return Value(f, f.shuffle(whole, None, range(width)))


def _masked(name: str, x: Value, others: Sequence[ir.Val]) -> Value:
    """Call an intrinsic on full registers, all lanes set; `others` follow the first operand."""
    shape = SHAPES[x.kind]
    full = f"llvm.x86.avx512.mask.{name}.{shape.suffix}"
    arguments = [x.val, *others, shape.mask, CURRENT_ROUNDING]
    x.f.module.declare(full, x.val.type, [a.type for a in arguments])
    text = f"call {x.val.type} @{full}({', '.join(str(a) for a in arguments)})"
    return Value(x.f, x.f.emit(text, x.kind, x.width))


def scale(y: Value, n: Value) -> Value:
    """y * 2^floor(n), rounded once, subnormal and overflowing results included."""

    def operation(y: Value, n: Value) -> Value:
        return _masked("scalef", y, [n.val, y.const(0.0).val])

    return _by_registers(operation, y, n)


def exponent(x: Value) -> Value:
    """floor(log2 |x|) as a float; -inf for zero, inf for infinity."""
    return _by_registers(lambda part: _masked("getexp", part, [part.const(0.0).val]), x)


def mantissa(x: Value) -> Value:
    """x / 2^exponent in [1, 2), NaN for negative x; subnormals are normalised as well."""

    def operation(x: Value) -> Value:
        return _masked("getmant", x, [MANTISSA_FROM_ONE, x.const(0.0).val])

    return _by_registers(operation, x)


def with_special_logarithms(x: Value, result: Value) -> Value:
    """`result`, but NaN for negative x, -inf for zero, and infinity and NaN as they are."""

    def operation(result: Value, x: Value) -> Value:
        classes = x.bits().const(LOGARITHM_CLASSES).val
        return _masked("fixupimm", result, [x.val, classes, NO_EXCEPTIONS])

    return _by_registers(operation, result, x)


def look_up(index: Value, kind: str, table: Sequence[float]) -> Value:
    """table[index], of 16 doubles or 32 floats; only the low 4 or 5 bits of `index` count."""
    lanes = SHAPES[kind].lanes

    def operation(index: Value) -> Value:
        low, high = ir.lanes(kind, table[:lanes]), ir.lanes(kind, table[lanes:])
        full = f"llvm.x86.avx512.vpermi2var.{SHAPES[kind].suffix}"
        index.f.module.declare(full, low.type, [low.type, index.val.type, low.type])
        text = f"call {low.type} @{full}({low}, {index.val}, {high})"
        return Value(index.f, index.f.emit(text, kind, index.width))

    return _by_registers(operation, index)


def by_nodes(a: Value, table: NodeTable) -> Value:
    """A tabled function of `a`, 0 <= a <= table.last: its expansion at the nearest node."""
    shift = 1.5 * 2.0**a.mantissa_bits
    index = fma(a, 1.0 / table.step, shift).bits()
    t = a - look_up(index, a.kind, table.nodes)
    # Each row is looked up where it is used: all at once they would not fit the registers.
    total = look_up(index, a.kind, table.rows[-1])
    for row in table.rows[-2:0:-1]:
        total = fma(total, t, look_up(index, a.kind, row))
    return look_up(index, a.kind, table.rows[0]) + fma(total, t, t)

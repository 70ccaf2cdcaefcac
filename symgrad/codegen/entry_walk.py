"""How a compiled call looks at its arguments, as LLVM IR.

Two structures, both laid out in `symgrad.codegen.entry_body`:

* input records, met in an order that reads a container before its children;
* ranges of memory: those that the call writes come first.

No step here runs code of the user: only exact built-in types are compared, so the borrowed
objects that a walk has met stay alive until it ends. Start reading at `build_walk`.
"""

from __future__ import annotations

from symgrad.codegen import entry_body as lay
from symgrad.codegen.entry_body import NO, NULL, ONE, YES, ZERO, Body
from symgrad.codegen.ir import Module, Val, constant

EQUIV_TYPES = "sg_PyArray_EquivTypes"


def build_walk(module: Module, head_bytes: int) -> None:
    """`i1 sg_walk(d, frame, values)`: match the arguments, fill slots and cells."""
    f = Body(module, "sg_walk", ["ptr", "ptr", "ptr"], "i1", head_bytes)
    descriptor, frame, values = f.arguments

    def one(record: Val) -> None:
        thing = f.word(values, f.word(record, lay.R_OBJECT), "ptr")
        f.leave_if(f.icmp("ne", f.type_of(thing), f.word(record, lay.R_TYPE, "ptr")), NO)
        slot = f.at(frame, f.word(record, lay.R_SLOT))
        f.choose(
            f.word(record, lay.R_CODE),
            {
                lay.IN_FLOAT: lambda: _match_float(f, record, thing, frame, slot),
                lay.IN_ARRAY: lambda: _match_array(f, record, thing, slot),
                lay.IN_ANY_ARRAY: lambda: f.store(f.array_field(thing, 0, "ptr"), slot),
                lay.IN_STATIC: lambda: _match_static(f, record, thing),
                lay.IN_TUPLE: lambda: _open_sequence(f, record, thing, values, "PyTuple"),
                lay.IN_LIST: lambda: _open_sequence(f, record, thing, values, "PyList"),
                lay.IN_DICT: lambda: _open_dict(f, record, thing, values),
            },
        )

    f.records(descriptor, lay.D_NIN, lay.D_IN, one)
    f.ret(YES)
    f.finish()


def _match_float(f: Body, record: Val, thing: Val, frame: Val, slot: Val) -> None:
    cell = f.at(frame, f.word(record, lay.R_A))
    f.store(f.invoke("PyFloat_AsDouble", "double", [thing]), cell)
    f.store(cell, slot)


def _match_array(f: Body, record: Val, thing: Val, slot: Val) -> None:
    flags = f.array_field(thing, 48, "i32")
    wanted = f.cast("trunc", f.word(record, lay.R_D), "i32")
    f.leave_if(f.icmp("ne", f.and_(flags, wanted), wanted), NO)
    rank = f.word(record, lay.R_B)
    own_rank = f.cast("zext", f.array_field(thing, 8, "i32"), "i64")
    f.leave_if(f.icmp("ne", own_rank, rank), NO)
    dims, own_dims = f.word(record, lay.R_C, "ptr"), f.array_field(thing, 16, "ptr")
    f.repeat(
        rank,
        lambda i: f.leave_if(f.icmp("ne", f.word(dims, i), f.word(own_dims, i)), NO),
    )
    descr, own_descr = f.word(record, lay.R_A, "ptr"), f.array_field(thing, 40, "ptr")

    def compare() -> None:
        same = f.invoke(EQUIV_TYPES, "i8", [descr, own_descr])
        f.leave_if(f.icmp("eq", same, constant("i8", 0)), NO)

    f.when(f.icmp("ne", descr, own_descr), compare)
    f.store(f.array_field(thing, 0, "ptr"), slot)


def _match_static(f: Body, record: Val, thing: Val) -> None:
    expected = f.word(record, lay.R_A, "ptr")

    def compare() -> None:
        f.leave_if(f.icmp("eq", f.word(record, lay.R_B), ZERO), NO)
        # The types are equal and built in, so no code of the user runs.
        equal_op = constant("i32", 2)
        same = f.invoke("PyObject_RichCompareBool", "i32", [thing, expected, equal_op])
        f.when(f.icmp("slt", same, constant("i32", 0)), lambda: f.call("PyErr_Clear", None, []))
        f.leave_if(f.icmp("ne", same, constant("i32", 1)), NO)

    f.when(f.icmp("ne", thing, expected), compare)


def _open_sequence(f: Body, record: Val, thing: Val, values: Val, family: str) -> None:
    count = f.word(record, lay.R_A)
    size = f.invoke(f"{family}_Size", "i64", [thing])
    f.leave_if(f.icmp("ne", size, count), NO)
    place = f.at(values, f.word(record, lay.R_B))
    f.repeat(
        count,
        lambda i: f.store(f.invoke(f"{family}_GetItem", "ptr", [thing, i]), f.at(place, i)),
    )


def _open_dict(f: Body, record: Val, thing: Val, values: Val) -> None:
    count = f.word(record, lay.R_A)
    size = f.invoke("PyDict_Size", "i64", [thing])
    f.leave_if(f.icmp("ne", size, count), NO)
    position, key, value = (f.alloca("i64", align=8) for _ in range(3))
    types = f.word(record, lay.R_D, "ptr")
    # Keys other than plain strings and integers could run code of the user when compared,
    # which might free the objects met so far.
    f.store(ZERO, position)

    def check(_: Val) -> None:
        f.invoke("PyDict_Next", "i32", [thing, position, key, value])
        kind = f.type_of(f.load(key, "ptr"))
        other = f.and_(
            f.icmp("ne", kind, f.word(types, 0, "ptr")),
            f.icmp("ne", kind, f.word(types, 1, "ptr")),
        )
        f.leave_if(other, NO)

    f.repeat(count, check)
    keys, place = f.word(record, lay.R_C, "ptr"), f.at(values, f.word(record, lay.R_B))

    def look_up(i: Val) -> None:
        item = f.invoke("PyDict_GetItemWithError", "ptr", [thing, f.word(keys, i, "ptr")])

        def missing() -> None:
            f.call("PyErr_Clear", None, [])

        f.when(f.icmp("eq", item, NULL), missing)
        f.leave_if(f.icmp("eq", item, NULL), NO)
        f.store(item, f.at(place, i))

    f.repeat(count, look_up)


def build_apart(module: Module, head_bytes: int) -> None:
    """`i1 sg_apart(d, frame)`: no array that is written overlaps any other that is used."""
    f = Body(module, "sg_apart", ["ptr", "ptr"], "i1", head_bytes, "nounwind")
    descriptor, frame = f.arguments
    table, count = f.word(descriptor, lay.D_RANGE, "ptr"), f.word(descriptor, lay.D_NRANGE)

    def span(i: Val) -> tuple[Val, Val]:
        pair = f.at(table, f.shl(i, ONE))
        low = f.word(frame, f.word(pair, 0))
        return low, f.add(low, f.word(pair, 1))

    def one(i: Val) -> None:
        low, high = span(i)
        after = f.add(i, ONE)

        def other(j: Val) -> None:
            other_low, other_high = span(f.add(after, j))
            overlap = f.and_(f.icmp("ult", low, other_high), f.icmp("ult", other_low, high))
            f.leave_if(overlap, NO)

        f.repeat(f.sub(count, after), other)

    f.repeat(f.word(descriptor, lay.D_NWRITTEN), one)
    f.ret(YES)
    f.finish()

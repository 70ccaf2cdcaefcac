"""All tiles of one block of a matrix product, one after another.

A tile is a function of its size, found in a table (`symgrad.codegen.gemm_library`). Start reading at
`define_inner`.
"""

from __future__ import annotations

from symgrad.codegen.gemm_tile import (
    JOB_A_ROW,
    JOB_B_K,
    JOB_LENGTH,
    JOB_TILES,
    Shape,
    counted,
    define_tile,
    element,
    least,
    panels_of,
    pieces_of,
    place,
    tile_name,
    vectors_of,
    when,
)
from symgrad.codegen.gemm_zeros import Zeros
from symgrad.codegen.ir import Function, Module, Val, i64


def define_missing(module: Module, kind: str, shape: Shape) -> str:
    """A tile of any size, element by element: ``void missing(job, a, b, i, j, lanes, rows, vectors)``."""
    name = f"gemm_missing_{kind}"
    arguments = [("job", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("i", "j", "lanes", "rows", "vectors")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    job, a, b, top, column, lanes_left, rows, vectors = f.arguments
    a_row = f.load(place(f, job, JOB_A_ROW), "i64")
    # A vector of one lane is quick to compile, and gives the same bits.
    define_tile(module, kind, Shape((1,), 1, 1), 1, 1, "whole")
    columns = f.add(f.mul(f.sub(vectors, i64(1)), i64(shape.width)), lanes_left)
    with (
        counted(f, i64(0), rows, i64(1), "row") as r,
        counted(f, i64(0), columns, i64(1), "column") as c,
    ):
        at_a, at_b = element(f, a, f.mul(r, a_row), kind), element(f, b, c, kind)
        values = [job, at_a, at_b, f.add(top, r), f.add(column, c), i64(1)]
        f.call(tile_name(kind, 1, 1, "whole"), None, values)
    f.ret()
    f.finish()
    return name


def define_inner(module: Module, kind: str, shape: Shape, missing: str, looks: bool) -> str:
    """All tiles of one block: ``void inner(job, a, b, i, m, n, packed)``.

    If it `looks`, chains leave out what `symgrad.codegen.gemm_zeros` finds to be zeros.
    """
    name = f"gemm_{'looking' if looks else 'inner'}_{kind}"
    arguments = [("job", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("i", "m", "n", "packed")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    job, a, b, top, m, n, packed = f.arguments
    width = i64(shape.width)
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    a_row = f.load(place(f, job, JOB_A_ROW), "i64")
    table = f.load(place(f, job, JOB_TILES), "ptr")
    panels = f.icmp("ne", packed, i64(0))
    zeros = Zeros(f, module, kind, shape, (b, n, packed)) if looks else None
    b_step = f.select(panels, length, i64(1))
    total = vectors_of(f, n, shape.width)
    with panels_of(f, total, shape) as (first, vectors):
        most = _most_rows(f, shape, vectors)
        if zeros is not None:
            with zeros.renewed(most), pieces_of(f, m, most, "span") as (row, rows):
                zeros.look(element(f, a, f.mul(row, a_row), kind), row, rows)
        column = f.mul(first, width)
        panel = element(f, b, f.mul(column, b_step), kind)
        before_last = f.mul(f.sub(f.add(first, vectors), i64(1)), width)
        count = least(f, f.sub(n, before_last), width)
        tail = f.cast("zext", f.icmp("sgt", count, i64(shape.tails[0][1])), "i64")
        with when(f, panels, "panel"):
            f.store(f.mul(vectors, width), place(f, job, JOB_B_K))
        with pieces_of(f, m, most, "row") as (row, rows):
            at_a, at_b = element(f, a, f.mul(row, a_row), kind), panel
            if zeros is not None:
                at_a, at_b = zeros.cut(at_a, at_b, row)
            number = f.add(f.mul(f.sub(rows, i64(1)), i64(shape.most_vectors)), vectors)
            number = f.add(f.mul(f.sub(number, i64(1)), i64(2)), tail)
            tile = f.load(f.gep(table, number, "ptr"), "ptr")
            values = [job, at_a, at_b, f.add(top, row), column, count]
            ready, absent, done = f.label("ready"), f.label("absent"), f.label("tile.done")
            f.branch_if(f.icmp("ne", tile, Val("null", "ptr")), ready, absent)
            f.start(ready)
            f.do(f"call void {tile.ref}({', '.join(str(v) for v in values)})")
            f.branch(done)
            f.start(absent)
            f.call(missing, None, [*values, rows, vectors])
            f.branch(done)
            f.start(done)
    if zeros is not None:
        zeros.end()
    f.ret()
    f.finish()
    return name


def _most_rows(f: Function, shape: Shape, vectors: Val) -> Val:
    """The most rows of a tile of so many vectors."""
    most = i64(shape.rows[-1])
    for count in range(shape.most_vectors - 1, 0, -1):
        if shape.rows[count - 1] != shape.rows[count]:
            few = f.icmp("sle", vectors, i64(count))
            most = f.select(few, i64(shape.rows[count - 1]), most)
    return most

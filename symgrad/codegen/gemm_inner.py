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
    cut_into,
    define_tile,
    element,
    least,
    panels_cut,
    place,
    runs_of,
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
        values = [job, at_a, at_b, f.add(top, r), f.add(column, c), i64(1), i64(1)]
        f.call(tile_name(kind, 1, 1, "whole"), None, values)
    f.ret()
    f.finish()
    return name


def define_inner(
    module: Module, kind: str, shape: Shape, missing: str, plain: str | None = None
) -> str:
    """All tiles of one block: ``void inner(job, a, b, i, m, n, packed)``.

    Given the `plain` function, chains leave out what `symgrad.codegen.gemm_zeros` finds to be zeros;
    where it finds none, the plain one goes on.
    """
    name = f"gemm_{'looking' if plain else 'inner'}_{kind}"
    arguments = [("job", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("i", "m", "n", "packed")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    job, a, b, top, m, n, packed = f.arguments
    width = i64(shape.width)
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    a_row = f.load(place(f, job, JOB_A_ROW), "i64")
    table = f.load(place(f, job, JOB_TILES), "ptr")
    panels = f.icmp("ne", packed, i64(0))
    b_step = f.select(panels, length, i64(1))
    across = panels_cut(f, vectors_of(f, n, shape.width), shape)
    zeros = None
    if plain is not None:
        zeros = Zeros(f, module, kind, shape, (b, n, packed))
        some = f.cast("zext", f.icmp("ne", across.longer, i64(0)), "i64")
        zeros.look(a, a_row, m, _most_rows(f, shape, f.add(across.size, some)))
        none, found = f.label("none"), f.label("found")
        f.branch_if(zeros.absent(), none, found)
        f.start(none)
        f.call(plain, None, f.arguments)
        f.ret()
        f.start(found)
    with runs_of(f, across, "panels") as (start, vectors, count):
        most = _most_rows(f, shape, vectors)
        down = cut_into(f, m, most)
        if zeros is not None:
            zeros.look(a, a_row, m, most)
        with when(f, panels, "packed"):
            f.store(f.mul(vectors, width), place(f, job, JOB_B_K))
        with counted(f, i64(0), count, i64(1), "panel") as number:
            first = f.add(start, f.mul(number, vectors))
            column = f.mul(first, width)
            panel = element(f, b, f.mul(column, b_step), kind)
            before_last = f.mul(f.sub(f.add(first, vectors), i64(1)), width)
            last = least(f, f.sub(n, before_last), width)
            tail = f.cast("zext", f.icmp("sgt", last, i64(shape.tails[0][1])), "i64")
            with runs_of(f, down, "rows") as (row, rows, times):
                entry = f.add(f.mul(f.sub(rows, i64(1)), i64(shape.most_vectors)), vectors)
                entry = f.add(f.mul(f.sub(entry, i64(1)), i64(2)), tail)
                tile = f.load(f.gep(table, entry, "ptr"), "ptr")
                size = rows, vectors
                if zeros is None:
                    at_a = element(f, a, f.mul(row, a_row), kind)
                    values = [job, at_a, panel, f.add(top, row), column, last, times]
                    _call_tile(f, tile, missing, values, size)
                else:
                    # What is left out differs from tile to tile.
                    with counted(f, i64(0), times, i64(1), "tile") as below:
                        here = f.add(row, f.mul(below, rows))
                        at_a = element(f, a, f.mul(here, a_row), kind)
                        at_a, at_b = zeros.cut(at_a, panel, here)
                        values = [job, at_a, at_b, f.add(top, here), column, last, i64(1)]
                        _call_tile(f, tile, missing, values, size)
    if zeros is not None:
        zeros.end()
    f.ret()
    f.finish()
    return name


def _call_tile(
    f: Function, tile: Val, missing: str, values: list[Val], size: tuple[Val, Val]
) -> None:
    """Call a tile of so many rows and vectors, or what stands in for it, with a tile's arguments."""
    rows, vectors = size
    ready, absent, done = f.label("ready"), f.label("absent"), f.label("tile.done")
    f.branch_if(f.icmp("ne", tile, Val("null", "ptr")), ready, absent)
    f.start(ready)
    f.do(f"call void {tile.ref}({', '.join(str(v) for v in values)})")
    f.branch(done)
    f.start(absent)
    f.call(missing, None, [*values[:-1], f.mul(rows, values[-1]), vectors])
    f.branch(done)
    f.start(done)


def _most_rows(f: Function, shape: Shape, vectors: Val) -> Val:
    """The most rows of a tile of so many vectors."""
    most = i64(shape.rows[-1])
    for count in range(shape.most_vectors - 1, 0, -1):
        if shape.rows[count - 1] != shape.rows[count]:
            few = f.icmp("sle", vectors, i64(count))
            most = f.select(few, i64(shape.rows[count - 1]), most)
    return most

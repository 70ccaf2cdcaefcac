"""How the rows and columns of a matrix product are cut into blocks and tiles.

`row_blocks` is the code that does it, `row_sizes` and `column_sizes` are the sizes of tiles that follow:
what must have been compiled before a product runs. Start reading at `row_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from symgrad.codegen.gemm_tile import Shape, least, pieces_of, quotient
from symgrad.codegen.ir import Function, Val, i64


@contextmanager
def row_blocks(f: Function, m: Val, most: Val, shape: Shape) -> Iterator[tuple[Val, Val]]:
    """Emit a loop over blocks of whole tiles: first row and rows of each, `most` at most or one tile.

    Blocks of near-equal rows would have narrower tiles than a product without blocks: 78 rows are 13
    tiles of six, but 4 blocks of 20 or 19 are 16 of five.
    """
    grain = shape.rows[shape.vectors - 1]
    whole = f.icmp("sle", m, most)
    tiles = f.select(whole, i64(1), f.udiv(f.add(m, i64(grain - 1)), i64(grain)))
    base = quotient(f, m, tiles, whole, m)
    larger = f.sub(m, f.mul(base, tiles))
    step = f.intrinsic("umax", "i64", 1, [f.udiv(most, i64(grain)), i64(1)])
    with pieces_of(f, tiles, step, "rows") as (first, count):
        row, end = (
            f.add(f.mul(t, base), least(f, t, larger)) for t in (first, f.add(first, count))
        )
        yield row, f.sub(end, row)


def _piece_sizes(count: int, most: int, slack: int = 0) -> set[int]:
    """The sizes that `pieces_of` cuts a count into."""
    pieces = max(1, -(-(count - slack) // most))
    base = count // pieces
    return {base, base + 1} if count % pieces else {base}


def _block_sizes(count: int, most: int, grain: int) -> set[int]:
    """The sizes of the blocks that `row_blocks` cuts rows into."""
    if count <= most:
        return {count}
    tiles = -(-count // grain)
    blocks = -(-tiles // max(most // grain, 1))
    tile_bounds = [_bound(tiles, blocks, number) for number in range(blocks + 1)]
    row_bounds = [_bound(count, tiles, number) for number in tile_bounds]
    return {end - start for start, end in pairwise(row_bounds)}


def _bound(count: int, pieces: int, number: int) -> int:
    """Where one of near-equal pieces begins."""
    base, larger = divmod(count, pieces)
    return number * base + min(number, larger)


def row_sizes(shape: Shape, vectors: int, m: int, chunk: int, joined: int, block: int) -> set[int]:
    """Rows of the tiles of so many vectors in a product, however its chunks are joined."""
    chunks = -(-m // chunk)
    grain = shape.rows[shape.vectors - 1]
    found: set[int] = set()
    for count in range(1, min(joined, chunks) + 1):
        for rows in {count * chunk, m - (chunks - count) * chunk}:
            for part in _block_sizes(min(rows, m), block, grain):
                found |= _piece_sizes(part, shape.rows[vectors - 1])
    return found


def column_sizes(shape: Shape, n: int, chunk: int, block: int) -> Iterator[tuple[int, int]]:
    """Vectors of the tiles of a product, with the form of the last one."""
    slack = shape.most_vectors - shape.vectors
    for columns in {min(chunk, n), n % chunk or chunk}:
        total = -(-columns // shape.width)
        last = columns - (total - 1) * shape.width
        form = int(last > shape.tails[0][1])
        for part in _piece_sizes(total, block):
            for vectors in _piece_sizes(part, shape.vectors, slack):
                yield vectors, form
                if total > vectors:
                    yield vectors, 1

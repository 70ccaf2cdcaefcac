"""Small blocks transposed in registers, so that lanes which belong to lines apart are stored in rows.

`transposed` turns columns, one vector each, into rows; a row goes to memory at once, where each of
its elements would be a store of its own. What is shuffled stays within 128 bits as far as it can:
processors take one cycle for that, and three across.

Start reading at `transposed`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgrad.codegen.combine import part_of
from symgrad.codegen.ir import FLOAT_BITS, INT_BITS, Function, Val

PART = 128
"""Bits within which elements are moved in one step."""

REGISTER = 256
"""Bits of the vectors that are shuffled, at most."""

SIZES = (4, 2)
"""Columns of a block: that many elements of a row are stored together."""


def runs(positions: Sequence[int]) -> list[tuple[int, ...]]:
    """Places of positions that follow one another, cut to sizes of blocks; of others, each alone."""
    found: list[tuple[int, ...]] = []
    start = 0
    while start < len(positions):
        end = start + 1
        while end < len(positions) and positions[end] == positions[end - 1] + 1:
            end += 1
        while start < end:
            size = next((s for s in SIZES if s <= end - start), 1)
            found.append(tuple(range(start, start + size)))
            start += size
    return found


def transposed(f: Function, columns: Sequence[Val]) -> list[Val]:
    """The rows of a block of 2 or 4 columns, by lane: each row holds that lane of every column."""
    kind, width = columns[0].kind, columns[0].width
    bits = FLOAT_BITS.get(kind) or INT_BITS[kind]
    # Elements of fewer than 32 bits have no shuffles of whole registers before AVX-512.
    group = min(width, (REGISTER if bits >= 32 else PART) // bits)
    rows = []
    for start in range(0, width, group):
        parts = [part_of(f, column, start, group) for column in columns]
        rows += _rows(f, parts, min(group, PART // bits))
    return rows


def _rows(f: Function, columns: Sequence[Val], part: int) -> list[Val]:
    """`transposed` for one register of each column, which has parts of `part` lanes."""
    width, count = columns[0].width, len(columns)
    # Rows lie in these vectors in turn: of each part, the first ones in the first vector.
    vectors = [*_zipped(f, columns[0], columns[1], 1, part)]
    if count == 4:
        others = _zipped(f, columns[2], columns[3], 1, part)
        if part == 2:
            return [_joined(f, vectors[k % 2], others[k % 2], k - k % 2) for k in range(width)]
        pairs = zip(vectors, others, strict=True)
        vectors = [v for x, y in pairs for v in _zipped(f, x, y, 2, part)]
    each = part // len(vectors)
    rows = []
    for lane in range(width):
        vector, place = divmod(lane % part, each)
        start = lane - lane % part + place * count
        rows.append(part_of(f, vectors[vector], start, count))
    return rows


def _joined(f: Function, x: Val, y: Val, start: int) -> Val:
    """Two elements of either vector."""
    return f.shuffle(x, y, [start, start + 1, x.width + start, x.width + start + 1])


def _zipped(f: Function, x: Val, y: Val, each: int, part: int) -> tuple[Val, Val]:
    """`each` elements of one vector and the other in turn: the first half of every part, the second."""
    width, half = x.width, part // 2
    found = []
    for begin in (0, half):
        picks = []
        for start in range(begin, width, part):
            for k in range(start, start + half, each):
                picks += [*range(k, k + each), *range(width + k, width + k + each)]
        found.append(f.shuffle(x, y, picks))
    return found[0], found[1]

"""Where temporaries lie: room is used again as soon as no step needs it.

One function, `arranged`, for the arena of a program and for the blocks of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

ALIGN = 64
PAGE = 4096
STAGGER = 5 * ALIGN
"""Added to large temporaries: neighbours a whole number of pages apart would share cache sets, and a
loop over a dozen of them would miss on every line.
"""

MAX_SORTED = 1000
"""Pieces of memory up to which places are sought for the largest first, each among all others."""


class _Piece:
    """Room for a buffer and those that take its place later.

    Attributes
    ----------
    numbers : list of int
    first, last : int
        The steps between which it is in use, both included.
    size, offset : int
    """

    def __init__(self, number: int, first: int, last: int, size: int) -> None:
        self.numbers = [number]
        self.first = first
        self.last = last
        need = -(-max(size, 1) // ALIGN) * ALIGN
        self.size = need + STAGGER if need >= PAGE else need
        self.offset = 0


def arranged(
    uses: Sequence[AbstractSet[int]],
    sizes: Mapping[int, int],
    heirs: Sequence[Mapping[int, Sequence[int]]] = (),
) -> tuple[dict[int, int], int]:
    """Byte offsets for buffers, and the bytes that all of them take.

    Parameters
    ----------
    uses : sequence of set of int
        The numbers of the buffers that each step touches, in the order of the steps.
    sizes : mapping of int to int
        Bytes of each buffer that needs a place; others in `uses` are passed over.
    heirs : sequence of mapping of int to sequence of int, optional
        For each step, results that may lie in the very place of an operand of their size which no
        later step touches, with these operands.
    """
    pieces = _pieces(uses, sizes, heirs)
    top = _first_fit(pieces)
    if len(pieces) <= MAX_SORTED and top > _most_at_once(pieces, len(uses)):
        fitted = [piece.offset for piece in pieces]
        lower = _largest_first(pieces)
        if lower < top:
            top = lower
        else:
            for piece, offset in zip(pieces, fitted, strict=True):
                piece.offset = offset
    return {number: piece.offset for piece in pieces for number in piece.numbers}, top


def _pieces(
    uses: Sequence[AbstractSet[int]],
    sizes: Mapping[int, int],
    heirs: Sequence[Mapping[int, Sequence[int]]],
) -> list[_Piece]:
    """The pieces of memory in the order of their first use."""
    last = {number: place for place, used in enumerate(uses) for number in used}
    of: dict[int, _Piece] = {}
    found: list[_Piece] = []
    for place, used in enumerate(uses):
        old = heirs[place] if heirs else {}
        left = {
            number
            for operands in old.values()
            for number in operands
            if number in of and last[number] == place
        }
        for number in sorted(used):
            if number in of or number not in sizes:
                continue
            free = [n for n in old.get(number, ()) if n in left]
            if free:
                left.discard(free[0])
                piece = of[free[0]]
                piece.numbers.append(number)
                piece.last = last[number]
            else:
                piece = _Piece(number, place, last[number], sizes[number])
                found.append(piece)
            of[number] = piece
    return found


def _most_at_once(pieces: Sequence[_Piece], steps: int) -> int:
    """The bytes in use at the step where they are most."""
    change = [0] * (steps + 1)
    for piece in pieces:
        change[piece.first] += piece.size
        change[piece.last + 1] -= piece.size
    total = most = 0
    for step in change:
        total += step
        most = max(most, total)
    return most


def _first_fit(pieces: Sequence[_Piece]) -> int:
    """Give each piece the room of earlier ones, those that were given up first; gives all bytes."""
    free: list[tuple[int, int]] = []
    used: list[_Piece] = []
    top = 0
    for piece in pieces:
        ended = [p for p in used if p.last < piece.first]
        if ended:
            used = [p for p in used if p.last >= piece.first]
            ended.sort(key=lambda p: p.last)
            free += [(p.offset, p.size) for p in ended]
        fit = next((r for r in free if r[1] >= piece.size), None)
        if fit is None:
            piece.offset = top
            top += piece.size
        else:
            free.remove(fit)
            piece.offset = fit[0]
            if fit[1] > piece.size:
                free.append((fit[0] + piece.size, fit[1] - piece.size))
        used.append(piece)
    return top


def _largest_first(pieces: Sequence[_Piece]) -> int:
    """Give each piece the lowest place that nobody has at its time, the largest first; gives all bytes."""
    placed: list[_Piece] = []
    top = 0
    for piece in sorted(pieces, key=lambda p: (-p.size, p.first)):
        beside = [p for p in placed if p.first <= piece.last and piece.first <= p.last]
        beside.sort(key=lambda p: p.offset)
        offset = 0
        for p in beside:
            if p.offset - offset >= piece.size:
                break
            offset = max(offset, p.offset + p.size)
        piece.offset = offset
        top = max(top, offset + piece.size)
        placed.append(piece)
    return top

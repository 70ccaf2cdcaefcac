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


def arranged(
    uses: Sequence[AbstractSet[int]], sizes: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Byte offsets for buffers, and the bytes that all of them take.

    Parameters
    ----------
    uses : sequence of set of int
        The numbers of the buffers that each step touches, in the order of the steps.
    sizes : mapping of int to int
        Bytes of each buffer that needs a place; others in `uses` are passed over.
    """
    last = {number: place for place, used in enumerate(uses) for number in used}
    free: list[tuple[int, int]] = []
    owned: dict[int, tuple[int, int]] = {}
    top = 0
    for place, used in enumerate(uses):
        for number in sorted(used):
            if number in owned or number not in sizes:
                continue
            need = -(-max(sizes[number], 1) // ALIGN) * ALIGN
            if need >= PAGE:
                need += STAGGER
            fit = next((r for r in free if r[1] >= need), None)
            if fit is None:
                room = (top, need)
                top += need
            else:
                free.remove(fit)
                room = (fit[0], need)
                if fit[1] > need:
                    free.append((fit[0] + need, fit[1] - need))
            owned[number] = room
        for number in sorted(used):
            if number in owned and last[number] == place:
                free.append(owned[number])
    return {number: offset for number, (offset, _) in owned.items()}, top

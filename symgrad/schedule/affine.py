"""Affine index forms: c + k1*v1 + k2*v2 + ..., in the loop variables of a nest.

One structure, `Affine`, immutable. Variables are small integers: non-negative ones are loop axes,
negative ones stand for values computed in the kernel (an index read from memory).
"""

from __future__ import annotations


class Affine:
    """A constant plus a combination of variables.

    Attributes
    ----------
    const : int
    terms : tuple of (variable, coefficient)
        Sorted by variable, no zero coefficients.
    """

    __slots__ = ("const", "terms")

    def __init__(self, const: int = 0, terms: tuple[tuple[int, int], ...] = ()) -> None:
        self.const = const
        self.terms = terms

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        if not other.terms:
            return Affine(self.const + other.const, self.terms)
        if not self.terms:
            return Affine(self.const + other.const, other.terms)
        total = dict(self.terms)
        for v, k in other.terms:
            total[v] = total.get(v, 0) + k
        kept = tuple(sorted((v, k) for v, k in total.items() if k))
        return Affine(self.const + other.const, kept)

    def __sub__(self, other: int) -> Affine:
        return Affine(self.const - other, self.terms)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Affine(self.const * factor, tuple((v, k * factor) for v, k in self.terms))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affine) and self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        return hash((self.const, self.terms))

    def coefficient(self, variable: int) -> int:
        """What a variable is multiplied by, 0 if it does not occur."""
        for v, k in self.terms:
            if v == variable:
                return k
        return 0

    def __repr__(self) -> str:
        parts = [f"{k}*v{v}" if k != 1 else f"v{v}" for v, k in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Affine()


def variable(number: int) -> Affine:
    """The affine form of one variable."""
    return Affine(0, ((number, 1),))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a contiguous array."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def split_map(old: tuple[int, ...], new: tuple[int, ...]) -> list[list[tuple[int, int]]] | None:
    """How a reshape's old index follows from the new one, when that is affine.

    Returns
    -------
    list or None
        Per old axis the pairs (new axis, factor) whose sum is its index; None if an old axis would
        need a division.
    """
    result: list[list[tuple[int, int]]] = [[] for _ in old]
    place = len(new) - 1
    for axis in range(len(old) - 1, -1, -1):
        size = old[axis]
        if size == 1:
            continue
        step = 1
        while step < size:
            while place >= 0 and new[place] == 1:
                place -= 1
            if place < 0:
                return None
            result[axis].append((place, step))
            step *= new[place]
            place -= 1
        if step != size:
            return None
    return result

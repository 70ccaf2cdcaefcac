"""Reverse mode of loops that end themselves: how many steps there were is known after the run only.

Where few numbers go in, tangents in the original direction do (`symgrad.calculus.loops`). Otherwise
the loop runs again: once to count its steps, once to keep the carried values before every k-th step
in a fixed number of rows, where k is the least stride that suffices. Then the segments between rows
are gone through from the last to the first, and in each its steps; values before a step are computed
again from the segment's row. As long as there are rows for all steps that is once per step; beyond, a
loop of T steps with R rows makes about T^2 / 2R steps more (checkpoints at equal distances: Griewank
and Walther, "Evaluating Derivatives", 2nd ed., SIAM 2008, chapter 12).

All of this is written as loops that end themselves, so that it can be differentiated, batched and
compiled as they can. Structure: `_Pass`, one such derivative. Start reading at `pulled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symgrad.body import closed_body
from symgrad.calculus import loops
from symgrad.calculus.batching import replaced
from symgrad.calculus.loops import Call, Given, zeros
from symgrad.dtypes import bool_, int64
from symgrad.expr import Expr
from symgrad.op import constant, grad_mode, input_node
from symgrad.ops.choice import maximum, minimum
from symgrad.ops.loop import UNTIL, ends_itself, loop
from symgrad.ops.movement import reshape
from symgrad.ops.positions import read
from symgrad.ops.rounding import floor_divide

ROOM = 1 << 22
"""Bytes for rows of carried values, about; from these follows the number of rows, within limits."""

MOST_ROWS, LEAST_ROWS = 1024, 16

Step = Callable[[list[Expr]], list[Expr]]


def pulled(pairs: Sequence[tuple[Expr, Expr]]) -> Sequence[Expr | None]:
    """Cotangents of a loop's arguments.

    Parameters
    ----------
    pairs : sequence of (Expr, Expr)
        Results of one loop with their cotangents.
    """
    call, given = loops.with_cotangents(pairs)
    few = loops.by_few_tangents(call, given)
    if few is not None:
        return few
    if not ends_itself(call.length):
        return loops.pulled(call, given)
    with grad_mode(True):
        return _Pass(call, given).cotangents()


def _repeated(initial: Sequence[Expr], step: Step, rows: int = 0) -> Call:
    """A loop that goes on while its first carried value holds; it keeps a number of rows."""
    held = [input_node(x.shape, x.dtype, grad=x.dtype.category >= 2) for x in initial]
    body, outside = closed_body(held, step(held))
    return Call(body, initial, [], outside, UNTIL - rows, False)


def _row(x: Expr, number: Expr) -> Expr:
    """One row of a stack."""
    # Elements of a batch that are done stand before the first row until all of them are.
    place = reshape(maximum(number, 0), (1,))
    return reshape(read(x, place), x.shape[1:])  # type: ignore[no-any-return]


class _Pass:
    """One derivative in reverse mode.

    Attributes
    ----------
    call : Call
        The loop.
    reversed : Reversed
        A step backwards.
    total, stride : Expr
        How many steps it makes, and how many of them lie between two rows.
    """

    def __init__(self, call: Call, given: Given) -> None:
        self.call = call
        self.given = given
        self.reversed = loops.reversed_body(call, given)
        self.rows = _rows_for(call.initial)
        self.none = constant(0, int64)
        self.total = self._count()
        self.stride = maximum(self._shares(self.total, constant(self.rows, int64)), 1)

    def _shares(self, count: Expr, parts: Expr) -> Expr:
        """The least size of `parts` shares that hold a number of things."""
        return floor_divide(count + parts - 1, parts)  # type: ignore[no-any-return]

    def _advanced(self, values: Sequence[Expr]) -> list[Expr]:
        """What the loop carries after a step."""
        body = self.call.body
        return replaced(body.outputs, body.inputs, [*values, *self.call.shared])

    def _stepped(self, until: Expr) -> Step:
        """A step of the loop with a number in front, while that is below another."""

        def step(carried: list[Expr]) -> list[Expr]:
            following = carried[1] + 1
            return [following < until, following, *self._advanced(carried[2:])]

        return step

    def _count(self) -> Expr:
        """How many steps there are."""

        def step(carried: list[Expr]) -> list[Expr]:
            going, number, *rest = carried
            following = self._advanced([going, *rest])
            return [following[0], number + 1, *following[1:]]

        going, *rest = self.call.initial
        counting = _repeated([going, self.none, *rest], step)
        return counting.result(counting.results.final(1))

    def _rows(self) -> list[Expr]:
        """The carried values before every step that begins a segment."""

        def step(carried: list[Expr]) -> list[Expr]:
            _, number, *values = carried
            stop = minimum(number + self.stride, self.total)
            inner = _repeated([constant(True, bool_), number, *values], self._stepped(stop))
            _, *finals = _finals(inner)
            return [finals[0] < self.total, *finals]

        initial = [self.total > 0, self.none, *self.call.initial]
        kept = _repeated(initial, step, self.rows)
        count = len(self.call.initial)
        return [kept.result(kept.results.history(2 + k)) for k in range(count)]

    def cotangents(self) -> list[Expr | None]:
        """Those of the loop's arguments."""
        args = [*self.call.initial, *self.call.shared]
        back = self.reversed
        rows = self._rows()

        def segment(carried: list[Expr]) -> list[Expr]:
            _, number, *cotangents = carried
            start = [_row(r, number) for r in rows]
            first = number * self.stride
            count = minimum(self.stride, self.total - first)
            initial = [constant(True, bool_), count - 1, *cotangents]
            _, _, *found = _finals(_repeated(initial, self._step_back(start, first)))
            return [number > 0, number - 1, *found]

        last = self._shares(self.total, self.stride) - 1
        initial = [
            self.total > 0, last,
            *[self.given["final"].get(k, zeros(args[k])) for k in back.carries],
            *[zeros(args[k]) for k in back.shared],
        ]  # fmt: skip
        _, _, *made = _finals(_repeated(initial, segment))
        found: list[Expr | None] = [None] * len(args)
        for k, g in zip((*back.carries, *back.shared), made, strict=True):
            found[k] = g
        return found

    def _step_back(self, start: list[Expr], first: Expr) -> Step:
        """A step backwards in the segment that begins with these values at step `first`."""
        back, call = self.reversed, self.call
        args = [*call.initial, *call.shared]

        def step(carried: list[Expr]) -> list[Expr]:
            _, number, *cotangents = carried
            again = _repeated([number > 0, self.none, *start], self._stepped(number))
            _, _, *values = _finals(again)
            given = [
                *cotangents,
                *[values[k] for k in back.values],
                *[_row(self.given["history"][k], first + number) for k in back.history],
                *[args[k] for k in back.constants],
                *back.outside,
            ]
            found = replaced(back.body.outputs, back.body.inputs, given)
            return [number > 0, number - 1, *found]

        return step


def _finals(call: Call) -> list[Expr]:
    """The carried values after the last step."""
    return [call.result(call.results.final(k)) for k in range(len(call.initial))]


def _rows_for(initial: Sequence[Expr]) -> int:
    """How many rows of some values are kept."""
    size = sum(x.size * x.dtype.itemsize for x in initial)
    return min(max(ROOM // max(size, 1), LEAST_ROWS), MOST_ROWS)


type(loop).pulled = staticmethod(pulled)

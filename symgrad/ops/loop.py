"""The loop: a body run once per step, handing values on from each step to the next.

One op, `loop`. Its arguments are the initial values of what is carried, then the sequences, of
which each step gets one row, then what all steps share; the body's placeholders come in the same
order, and its outputs are the carried values for the next step, then a row of each stacked result.
A loop has many results and a node one: `result` says which. With a length of `UNTIL` the first
carried value is a truth value, and steps are made as long as it holds; with one of ``UNTIL - n``
likewise, and the carried values before the first n steps may be asked for, where only those of
steps that were made are defined. The public functions are `symgrad.scan` and `symgrad.while_loop`.
Start reading at `Results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.body import Body, closed_body
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Region, op
from symgrad.op import input_node, record
from symgrad.ops.arithmetic import add, mul
from symgrad.ops.transcendental import sin
from symgrad.sample import Case, T

UNTIL = -1
"""The length of a loop that its first carried value ends."""


def ends_itself(length: int) -> bool:
    """Whether a loop's first carried value says if another step is made."""
    return length <= UNTIL


class Results(NamedTuple):
    """The numbering of a loop's results.

    Attributes
    ----------
    carries : int
        Results 0, 1, ... are the carried values after the last step.
    stacked : int
        Then come the rows that the body gives, stacked along a new first axis; after these the
        carried values before each step, stacked likewise.
    """

    carries: int
    stacked: int

    def final(self, k: int) -> int:
        """A carried value after the last step."""
        return k

    def rows(self, k: int) -> int:
        """A stacked result."""
        return self.carries + k

    def history(self, k: int) -> int:
        """A carried value before each step."""
        return self.carries + self.stacked + k

    def kind(self, result: int) -> tuple[str, int]:
        """ "final", "rows" or "history", and the number among these."""
        for name, count in (("final", self.carries), ("rows", self.stacked)):
            if result < count:
                return name, result
            result -= count
        return "history", result


def results_of(body: Body, carries: int) -> Results:
    """How the results of a loop with this body are numbered."""
    return Results(carries, len(body.outputs) - carries)


def _example() -> Body:
    """c' = sin(c) * x + k * c, with the row c * x."""
    c, x, k = (input_node((3,), dtypes.float64, grad=True) for _ in range(3))
    return closed_body([c, x, k], [add(mul(sin(c), x), mul(k, c)), mul(c, x)])[0]


_EXAMPLE = _example()
_SHAPES = (T(3, dtype=dtypes.float64), T(4, 3, dtype=dtypes.float64), T(3, dtype=dtypes.float64))


@op
class loop(Region):
    """A result of a body that runs `length` times, from the last step to the first if `backward`."""

    public = False
    attributes = ("body", "carries", "sequences", "length", "backward", "result")
    samples = tuple(
        Case(*_SHAPES, body=_EXAMPLE, carries=1, sequences=1, length=4, backward=b, result=r)
        for b in (False, True)
        for r in (0, 1, 2)
    )

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        values = tuple([attrs[k] for k in self.attributes])
        shape, dtype = result_type(args, **attrs)
        return record(self, tuple(args), values, shape, dtype)

    def ref(
        *args: np.ndarray,
        body: Body,
        carries: int,
        sequences: int,
        length: int,
        backward: bool,
        result: int,
    ) -> Any:
        held = list(args[:carries])
        stacks = args[carries : carries + sequences]
        shared = args[carries + sequences :]
        kind, number = results_of(body, carries).kind(result)
        shape, dtype = result_type(
            body.inputs, body=body, carries=carries, sequences=sequences, length=length,
            backward=backward, result=result,
        )  # fmt: skip
        rows = np.empty(shape, dtype.numpy) if kind != "final" else np.empty(0)
        made_steps = 0
        while ends_itself(length) and held[0]:
            if kind == "history":
                rows[made_steps] = held[number]
            held = body.evaluate([*held, *shared])
            made_steps += 1
        for step in range(length - 1, -1, -1) if backward else range(length):
            made = body.evaluate([*held, *[s[step] for s in stacks], *shared])
            if kind == "history":
                rows[step] = held[number]
            elif kind == "rows":
                rows[step] = made[carries + number]
            held = made[:carries]
        return held[number] if kind == "final" else rows

    def sympy(sp: Any, *args: Any, **attrs: Any) -> Any:
        return sp.Function("loop")(*args)

    def vjp(g: Expr, out: Expr, *args: Expr, **attrs: Any) -> Any:
        return loop.pulled([(out, g)])


def result_type(
    args: Sequence[Expr],
    *,
    body: Body,
    carries: int,
    sequences: int,
    length: int,
    backward: bool,
    result: int,
) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype of a result."""
    kind, number = results_of(body, carries).kind(result)
    if ends_itself(length):
        length = UNTIL - length
    if kind == "rows":
        node = body.outputs[carries + number]
        return (length, *node.shape), node.dtype
    node = body.inputs[number]
    return (node.shape if kind == "final" else (length, *node.shape)), node.dtype

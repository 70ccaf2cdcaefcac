"""Derivatives and batches of loops: the loop of the body's derivative.

* reverse: a loop in the other direction that carries the cotangents of what was carried and of
  what all steps share. Each step computes the body's inner values again from the carried ones,
  which the loop hands out as its history. Loops that end themselves: `symgrad.calculus.until`.
* where few numbers go in and only the last values come out, the Jacobian by tangents in the
  original direction costs less: nothing is stored, and there is one loop in place of two.
* forward: a loop that carries values and tangents; under a batch axis: a loop of the batched body.

Derived bodies are kept with the body they come from. `Call` is a loop taken apart. Start reading
at `pulled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from symgrad import dtypes
from symgrad.body import Body, closed_body
from symgrad.calculus import batching
from symgrad.calculus.forward import pushforward
from symgrad.calculus.reverse import pullback
from symgrad.expr import Expr, ancestors
from symgrad.op import grad_mode, input_node
from symgrad.ops.arithmetic import add, eq, keep, logical_and, where
from symgrad.ops.create import iota
from symgrad.ops.loop import Results, ends_itself, loop, results_of
from symgrad.ops.movement import full, permute, reshape
from symgrad.ops.reduce import any_axis

FEW = 8
"""Numbers that go into a loop, up to which tangents are carried forwards: one register of lanes."""

MANY_STEPS = 8
"""Steps from which one loop of tangents is chosen over two."""


class Call(NamedTuple):
    """The arguments of a loop.

    Attributes
    ----------
    body : Body
    initial, stacks, shared : sequences of Expr
        Initial values of what is carried, sequences, what all steps share.
    length : int
    backward : bool
    """

    body: Body
    initial: Sequence[Expr]
    stacks: Sequence[Expr]
    shared: Sequence[Expr]
    length: int
    backward: bool

    @property
    def results(self) -> Results:
        return results_of(self.body, len(self.initial))

    def result(self, number: int) -> Expr:
        """The node of a result."""
        return loop(  # type: ignore[no-any-return]
            *self.initial, *self.stacks, *self.shared, body=self.body, carries=len(self.initial),
            sequences=len(self.stacks), length=self.length, backward=self.backward, result=number,
        )  # fmt: skip


def call_of(node: Expr) -> tuple[Call, int]:
    """A loop taken apart, and which of its results a node is."""
    body, carries, sequences, length, backward, result = node.attrs
    split = carries + sequences
    args = node.args
    call = Call(body, args[:carries], args[carries:split], args[split:], length, backward)
    return call, result


def zeros(x: Expr) -> Expr:
    """Zeros of a node's shape and dtype."""
    return full(0.0, x.shape, x.dtype)


def _reached(body: Body, moving: set[int], forward: bool) -> set[int]:
    """The nodes of a body that derivatives reach from the placeholders with these numbers."""
    found = {id(body.inputs[k]) for k in moving}
    for n in body.nodes:
        passes = n.op.differentiable if forward else n.requires_grad
        if passes and any(id(a) in found for a in n.args):
            found.add(id(n))
    return found


def _moving_carries(
    body: Body, carries: int, moving: Sequence[bool], forward: bool = False
) -> list[int]:
    """The carried values that have a derivative, given which arguments have one.

    Forward mode goes through what was recorded without grad as well.
    """
    active = {k for k in range(carries) if moving[k]}
    others = {k for k in range(carries, len(moving)) if moving[k]}
    while True:
        reached = _reached(body, active | others, forward)
        found = active | {k for k in range(carries) if id(body.outputs[k]) in reached}
        if found == active:
            return sorted(active)
        active = found


def _wanted_carries(body: Body, carries: int, final: set[int], rows: set[int]) -> set[int]:
    """The carried values that results depend on, given which results have a cotangent."""
    place = {id(x): k for k, x in enumerate(body.inputs[:carries])}
    live = set(final)
    while True:
        roots = [body.outputs[k] for k in live] + [body.outputs[carries + k] for k in rows]
        behind = ancestors(roots, lambda n: n.requires_grad)
        found = live | {place[id(n)] for n in behind if id(n) in place}
        if found == live:
            return live
        live = found


# -- reverse ------------------------------------------------------------------------------


Given = dict[str, dict[int, Expr]]
"""Cotangents of a loop's results, by kind of result and number among these."""


def with_cotangents(pairs: Sequence[tuple[Expr, Expr]]) -> tuple[Call, Given]:
    """A loop taken apart, from results of it and their cotangents."""
    call, _ = call_of(pairs[0][0])
    numbering = call.results
    given: Given = {"final": {}, "rows": {}, "history": {}}
    for node, g in pairs:
        kind, number = numbering.kind(node.attrs[-1])
        given[kind][number] = g
    return call, given


def _moving(call: Call) -> list[bool]:
    """Which arguments of a loop have a derivative."""
    args = (*call.initial, *call.stacks, *call.shared)
    return [a.requires_grad and a.dtype.category >= 2 for a in args]


def pulled(call: Call, given: Given) -> list[Expr | None]:
    """Cotangents of the arguments of a loop of known length."""
    return reversed_body(call, given).apply(call, given)


def reversed_body(call: Call, given: Given) -> Reversed:
    """A step backwards of a loop, made once for each choice of results."""
    moving = _moving(call)
    carried = len(call.initial)
    active = _moving_carries(call.body, carried, moving)
    live = _wanted_carries(
        call.body, carried, {*given["final"], *given["history"]}, set(given["rows"])
    )
    key = (
        "reverse", tuple(moving), tuple(k for k in active if k in live),
        tuple(sorted(given["rows"])), tuple(sorted(given["history"])),
    )  # fmt: skip
    derived = call.body.derived.get(key)
    if derived is None:
        with grad_mode(True):
            derived = call.body.derived[key] = Reversed(call, moving, key[2], key[3], key[4])
    return derived  # type: ignore[no-any-return]


class Reversed:
    """The body of the loop that carries cotangents back, and what goes in and out of it."""

    def __init__(
        self,
        call: Call,
        moving: Sequence[bool],
        carries: Sequence[int],
        rows: Sequence[int],
        history: Sequence[int],
    ) -> None:
        body, held, stacked = call.body, len(call.initial), len(call.stacks)
        inputs, outputs = body.inputs, body.outputs
        self.carries, self.rows = carries, rows
        cotangents = [_placeholder(inputs[k]) for k in carries]
        row_cotangents = [_placeholder(outputs[held + k]) for k in rows]
        self.history = [k for k in history if k in carries]
        history_cotangents = [_placeholder(inputs[k]) for k in self.history]
        wanted = [*carries, *[k for k in range(held, len(inputs)) if moving[k]]]
        found = pullback(
            [*[outputs[k] for k in carries], *[outputs[held + k] for k in rows]],
            [*cotangents, *row_cotangents],
            [inputs[k] for k in wanted],
        )
        passed = dict(zip(wanted, found, strict=True))
        self.sequences = [k for k in range(held, held + stacked) if passed.get(k) is not None]
        self.shared = [k for k in range(held + stacked, len(inputs)) if passed.get(k) is not None]
        totals = [_placeholder(inputs[k]) for k in self.shared]
        nexts = []
        for k in carries:
            g = passed[k]
            if k in self.history:
                extra = history_cotangents[self.history.index(k)]
                g = extra if g is None else add(g, extra)
            nexts.append(zeros(inputs[k]) if g is None else g)
        nexts += [add(t, passed[k]) for t, k in zip(totals, self.shared, strict=True)]
        results = [*nexts, *[passed[k] for k in self.sequences]]
        present = [r for r in results if r is not None]
        used = {id(n) for n in ancestors(present, lambda n: bool(n.args))}
        self.values = [k for k in range(held) if id(inputs[k]) in used]
        self.stacks = [k for k in range(held, held + stacked) if id(inputs[k]) in used]
        self.constants = [k for k in range(held + stacked, len(inputs)) if id(inputs[k]) in used]
        self.body, self.outside = closed_body(
            [
                *cotangents, *totals,
                *[inputs[k] for k in (*self.values, *self.stacks)], *row_cotangents,
                *history_cotangents, *[inputs[k] for k in self.constants],
            ],
            present,
        )  # fmt: skip

    def apply(self, call: Call, given: Given) -> list[Expr | None]:
        """The cotangents of the arguments of a loop with this body."""
        args = [*call.initial, *call.stacks, *call.shared]
        numbering = call.results
        initial = [
            *[given["final"].get(k, zeros(args[k])) for k in self.carries],
            *[zeros(args[k]) for k in self.shared],
        ]
        stacks = [
            *[call.result(numbering.history(k)) for k in self.values],
            *[args[k] for k in self.stacks],
            *[given["rows"][k] for k in self.rows],
            *[given["history"][k] for k in self.history],
        ]
        shared = [*[args[k] for k in self.constants], *self.outside]
        back = Call(self.body, initial, stacks, shared, call.length, not call.backward)
        found: list[Expr | None] = [None] * len(args)
        for place, k in enumerate((*self.carries, *self.shared)):
            found[k] = back.result(back.results.final(place))
        for place, k in enumerate(self.sequences):
            found[k] = back.result(back.results.rows(place))
        return found


def _placeholder(like: Expr) -> Expr:
    return input_node(like.shape, like.dtype, grad=True)


def by_few_tangents(call: Call, given: Given) -> list[Expr | None] | None:
    """Cotangents of a loop's arguments by tangents, if these are so few that it is shorter."""
    if given["rows"] or given["history"]:
        return None
    moving = _moving(call)
    few = _few(call, moving, _moving_carries(call.body, len(call.initial), moving))
    return _by_tangents(call, few, given["final"]) if few else None


def _few(call: Call, moving: Sequence[bool], active: Sequence[int]) -> list[int]:
    """The arguments with a derivative, if they are so few that tangents are the shorter way."""
    stop = len(call.initial) + len(call.stacks)
    short = 0 <= call.length < MANY_STEPS
    if short or not any(moving) or any(moving[len(call.initial) : stop]):
        return []
    args = [*call.initial, *call.stacks, *call.shared]
    places = [k for k in range(len(args)) if moving[k]]
    count = sum(args[k].size for k in places)
    scalar = all(call.initial[k].size == 1 for k in active)
    first = args[places[0]].dtype
    real = first.category == 2 and all(args[k].dtype is first for k in (*places, *active))
    return places if scalar and real and count <= FEW else []


def _by_tangents(call: Call, places: Sequence[int], final: dict[int, Expr]) -> list[Expr | None]:
    """Cotangents through the Jacobian of the last values."""
    args = [*call.initial, *call.stacks, *call.shared]
    count = sum(args[k].size for k in places)
    masks, units, tangents = [], [], []
    start = 0
    for k in places:
        a = args[k]
        mask = input_node(a.shape, dtypes.bool_)
        lanes = reshape(iota(count=count), (count, *(1,) * a.ndim))
        own = reshape(iota(count=a.size), a.shape) + start
        masks.append(mask)
        units.append(eq(lanes, own))
        tangents.append(keep(mask, full(1.0, a.shape, a.dtype)))
        start += a.size
    flags = [k in places for k in range(len(args))]
    along = dict(zip(places, tangents, strict=True))
    total: Expr | None = None
    for k, g in sorted(final.items()):
        column = _pushed_result(call, flags, along, call.results.final(k))
        if column is None:
            continue
        (jacobian,) = batching.batched([column], masks, units)
        part = reshape(jacobian, (count,)) * reshape(g, ())
        total = part if total is None else add(total, part)
    found: list[Expr | None] = [None] * len(args)
    if total is None:
        return found
    start = 0
    for k in places:
        own = batching.rows_of(total, start, start + args[k].size)
        found[k] = reshape(own, args[k].shape)
        start += args[k].size
    return found


# -- forward ------------------------------------------------------------------------------


class _Pushed:
    """The body of the loop that carries values and tangents."""

    def __init__(self, call: Call, moving: Sequence[bool]) -> None:
        body, held = call.body, len(call.initial)
        inputs = body.inputs
        self.carries = _moving_carries(body, held, moving, forward=True)
        self.stacks = [k for k in range(held, held + len(call.stacks)) if moving[k]]
        self.shared = [k for k in range(held + len(call.stacks), len(inputs)) if moving[k]]
        places = [*self.carries, *self.stacks, *self.shared]
        tangents = [_placeholder(inputs[k]) for k in places]
        found = pushforward(body.outputs, [inputs[k] for k in places], tangents)
        nexts = [found[k] if found[k] is not None else zeros(inputs[k]) for k in self.carries]
        self.rows = [k for k in range(len(body.outputs) - held) if found[held + k] is not None]
        outputs = [*body.outputs[:held], *nexts, *[found[held + k] for k in self.rows]]
        split = held + len(call.stacks)
        own, later = len(self.carries), len(self.carries) + len(self.stacks)
        self.body, self.outside = closed_body(
            [
                *inputs[:held], *tangents[:own], *inputs[held:split], *tangents[own:later],
                *inputs[split:], *tangents[later:],
            ],
            [x for x in outputs if x is not None],
        )  # fmt: skip


def _pushed_result(
    call: Call, moving: Sequence[bool], along: dict[int, Expr], number: int
) -> Expr | None:
    """The tangent of a result."""
    key = ("forward", tuple(moving))
    made = call.body.derived.get(key)
    if made is None:
        with grad_mode(True):
            made = call.body.derived[key] = _Pushed(call, moving)
    args = [*call.initial, *call.stacks, *call.shared]
    held = len(call.initial)
    kind, place = call.results.kind(number)
    if place not in (made.rows if kind == "rows" else made.carries):
        return None
    moved = Call(
        made.body,
        [*call.initial, *[along[k] if k in along else zeros(args[k]) for k in made.carries]],
        [*call.stacks, *[along[k] for k in made.stacks]],
        [*call.shared, *[along[k] for k in made.shared], *made.outside],
        call.length,
        call.backward,
    )
    if kind == "rows":
        return moved.result(moved.results.rows(made.rows.index(place)))
    own = held + made.carries.index(place)
    return moved.result(moved.results.final(own) if kind == "final" else moved.results.history(own))


def pushed(node: Expr, tangents: Sequence[Expr | None]) -> Expr | None:
    """The tangent of a loop's result from those of its arguments."""
    call, number = call_of(node)
    along = {k: t for k, t in enumerate(tangents) if t is not None}
    return _pushed_result(call, [t is not None for t in tangents], along, number)


# -- batching -----------------------------------------------------------------------------


class _Batched:
    """The body under a batch axis, and which carried values and rows have it."""

    def __init__(self, call: Call, count: int, flags: Sequence[bool]) -> None:
        body, held = call.body, len(call.initial)
        carried = [bool(f) for f in flags[:held]]
        while True:
            if ends_itself(call.length) and carried[0]:
                carried = [True] * held
            have = [*carried, *flags[held:]]
            inputs = [
                input_node((count, *x.shape), x.dtype, grad=x.requires_grad) if f else x
                for x, f in zip(body.inputs, have, strict=True)
            ]
            outputs = batching.batched(body.outputs, body.inputs, inputs)
            wide = [y.ndim > x.ndim for y, x in zip(outputs, body.outputs, strict=True)]
            following = [a or b for a, b in zip(carried, wide, strict=False)]
            if following == carried:
                break
            carried = following
        outputs = [
            batching.with_batch(y, count) if k < held and carried[k] and not wide[k] else y
            for k, y in enumerate(outputs)
        ]
        self.masked = ends_itself(call.length) and carried[0]
        if self.masked:
            # Every element goes on until it is done, the loop until all are: one carried value more.
            going = inputs[0]
            outputs = [
                where(_beside(going, y), y, x) for x, y in zip(inputs, outputs, strict=False)
            ]
            outputs[0] = logical_and(going, outputs[0])
            inputs = [input_node((), going.dtype), *inputs]
            outputs = [any_axis(outputs[0], dim=0), *outputs]
        self.carried = carried
        self.rows = wide[held:]
        self.body, self.outside = closed_body(inputs, outputs)


def batched_loop(count: int, node: Expr, args: Sequence[Expr], flags: Sequence[bool]) -> Expr:
    """A loop's result under a batch axis: in steps, the batch comes after the step."""
    call, number = call_of(node)
    key = ("batched", count, tuple(flags), ends_itself(call.length))
    made = call.body.derived.get(key)
    if made is None:
        with grad_mode(True):
            made = call.body.derived[key] = _Batched(call, count, flags)
    held = len(call.initial)
    split = held + len(call.stacks)
    initial = [
        batching.with_batch(a, count) if wide and not f else a
        for a, f, wide in zip(args[:held], flags, made.carried, strict=False)
    ]
    if made.masked:
        initial.insert(0, any_axis(initial[0], dim=0))
    stacks = [
        _exchanged(a) if f else a for a, f in zip(args[held:split], flags[held:split], strict=True)
    ]
    shared = [*args[split:], *made.outside]
    wide_call = Call(made.body, initial, stacks, shared, call.length, call.backward)
    kind, place = call.results.kind(number)
    numbering = wide_call.results
    if kind == "rows":
        found = wide_call.result(numbering.rows(place))
    else:
        of = numbering.final if kind == "final" else numbering.history
        found = wide_call.result(of(place + made.masked))
    if not (made.rows if kind == "rows" else made.carried)[place]:
        return batching.with_batch(found, count)
    return found if kind == "final" else _exchanged(found)


def _beside(mask: Expr, y: Expr) -> Expr:
    """One truth value per batch element, under the axes of `y`."""
    return reshape(mask, (mask.shape[0], *(1,) * (y.ndim - 1)))  # type: ignore[no-any-return]


def _exchanged(x: Expr) -> Expr:
    """The first two axes in the other order."""
    return permute(x, (1, 0, *range(2, x.ndim)))  # type: ignore[no-any-return]


type(loop).pushed = staticmethod(pushed)
batching.RULES["region"] = batched_loop

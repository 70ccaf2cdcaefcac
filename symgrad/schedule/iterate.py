"""Loops whose steps work on a few numbers: what one step computes, on values in registers.

Structures:

* `Run`: a loop as recorded: its body, the nodes that go in, and the results that are wanted.
* `Iteration`: one or several runs of equal length in one loop; a step of the schedule.
* `Quantity`: a value of one step: carried, read from a row, shared by all steps, a number, or
  computed. Equal ones are one, between the runs as well: carried values are equal if they begin
  and go on equally, which is found by splitting classes until they agree.

Start reading at `Iteration.quantities`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from symgrad.body import Body
from symgrad.dtypes import DType
from symgrad.op import CONSTANT
from symgrad.ops.loop import ends_itself, results_of
from symgrad.schedule.canonical import Graph, Node, canonical

FEW = 16
"""Elements of a value that is held in a register of lanes, at most."""

REDUCTIONS = ("add", "mul", "max", "min", "or", "and")


class Quantity(NamedTuple):
    """A value of one step.

    Attributes
    ----------
    kind : str
        "carry", "row", "shared", "number", "op", "place" (movement), "reduce" or "contract".
    shape, dtype
    args : tuple of int
        Earlier quantities.
    what : object
        The carry's number; the buffer's node; the number's value; the op and its attributes.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: DType
    args: tuple[int, ...]
    what: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def graph_of(body: Body) -> Graph:
    """The canonical graph of a body; its inputs are placeholders."""
    found = body.derived.get("graph")
    if found is None:
        found = body.derived["graph"] = canonical(body.outputs)
    return found


def _kind_of(n: Node) -> str:
    """The kind of a computed quantity, empty if registers do not do."""
    family = n.op.family
    if n.dtype.is_complex or not 0 < n.size <= FEW:
        return ""
    if n.op is CONSTANT or (family == "create" and not n.args):
        return "number"
    if family == "elementwise":
        return "op"
    if family == "movement":
        return "place"
    if family == "reduce" and len(n.args) == 1 and n.op.combine in REDUCTIONS:  # type: ignore[attr-defined]
        return "reduce"
    return "contract" if family == "contract" and n.dtype.category == 2 else ""


def is_small(body: Body) -> bool:
    """Whether every value of a step fits in a register."""
    found = body.derived.get("small")
    if found is None:
        sizes = [x.size for x in body.inputs]
        complex_ = any(x.dtype.is_complex for x in body.inputs)
        found = not complex_ and all(0 < s <= FEW for s in sizes)
        found = found and all(n.input >= 0 or _kind_of(n) for n in graph_of(body).nodes)
        body.derived["small"] = found
    return bool(found)


class Run:
    """A loop as recorded.

    Attributes
    ----------
    body : Body
    initial, stacks, shared : lists of Node
    length : int
    backward : bool
    targets : dict of int to Node
        The wanted results by number.
    """

    def __init__(self, node: Node) -> None:
        self.body, carries, sequences, self.length, self.backward, _ = node.attrs
        split = carries + sequences
        self.initial = node.args[:carries]
        self.stacks = node.args[carries:split]
        self.shared = node.args[split:]
        self.targets: dict[int, Node] = {}

    @property
    def args(self) -> tuple[Node, ...]:
        return (*self.initial, *self.stacks, *self.shared)


def run_key(node: Node) -> Any:
    """Equal for results of one run."""
    return (node.op, node.attrs[:-1], *[a.number for a in node.args])


class Iteration:
    """One or several runs in one loop.

    Attributes
    ----------
    runs : list of Run
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs

    @property
    def length(self) -> int:
        return int(self.runs[0].length)

    @property
    def backward(self) -> bool:
        return bool(self.runs[0].backward)

    @property
    def small(self) -> bool:
        """Whether every value of a step fits in a register."""
        return all(is_small(run.body) for run in self.runs)

    @property
    def target(self) -> Node:
        """The first of the wanted results."""
        return self.targets[0]

    @property
    def targets(self) -> list[Node]:
        return [n for run in self.runs for n in run.targets.values()]

    @property
    def operands(self) -> list[Node]:
        return [a for run in self.runs for a in run.args]

    def __repr__(self) -> str:
        names = ", ".join(f"%{n.number}" for n in self.targets)
        steps = "loop until it ends" if ends_itself(self.length) else f"loop of {self.length} steps"
        return f"{steps} -> {names}"

    def quantities(self) -> Steps:
        """What one step computes."""
        carried = [
            (number, k) for number, run in enumerate(self.runs) for k in range(len(run.initial))
        ]
        classes: dict[tuple[int, int], int] = {}
        known: dict[Any, int] = {}
        for number, k in carried:
            key = self.runs[number].initial[k].number
            classes[number, k] = known.setdefault(key, len(known))
        while True:
            steps = Steps(self, classes)
            refined: dict[Any, int] = {}
            finer = {
                c: refined.setdefault((classes[c], steps.updates[c]), len(refined)) for c in carried
            }
            if len(refined) == len(known):
                return steps
            classes, known = finer, refined


class Steps:
    """The quantities of one step, under the assumption that carries of one class are equal.

    Attributes
    ----------
    quantities : list of Quantity
    initial : list of Node
        Per class of carries.
    following : list of int
        Per class: the quantity that goes on to the next step.
    updates : dict
        The same by run and number of the carry.
    stored : list of (Node, int)
        What each step stores in a row of a result.
    finals : list of (Node, int)
        Results that are a class's last value.
    ends_itself : bool
        Whether class 0 says if another step is made.
    """

    def __init__(self, iteration: Iteration, classes: dict[tuple[int, int], int]) -> None:
        self.ends_itself = ends_itself(iteration.length)
        self.quantities: list[Quantity] = []
        self._numbers: dict[Any, int] = {}
        self.updates: dict[tuple[int, int], int] = {}
        self.stored: list[tuple[Node, int]] = []
        self.finals: list[tuple[Node, int]] = []
        count = max(classes.values(), default=-1) + 1
        self.initial: list[Any] = [None] * count
        self.following = [0] * count
        for number, run in enumerate(iteration.runs):
            self._add(number, run, classes)

    def _quantity(
        self,
        kind: str,
        shape: tuple[int, ...],
        dtype: DType,
        args: tuple[int, ...],
        what: Any,
        key: Any,
    ) -> int:
        identity = (kind, shape, dtype, args, key)
        found = self._numbers.get(identity)
        if found is None:
            found = self._numbers[identity] = len(self.quantities)
            self.quantities.append(Quantity(kind, shape, dtype, args, what))
        return found

    def _add(self, number: int, run: Run, classes: dict[tuple[int, int], int]) -> None:
        graph = graph_of(run.body)
        place = {id(x): k for k, x in enumerate(run.body.inputs)}
        carries, split = len(run.initial), len(run.initial) + len(run.stacks)
        args = run.args
        of: dict[int, int] = {}
        for k, x in enumerate(run.body.inputs):
            if k < carries:
                group = classes[number, k]
                self.initial[group] = args[k]
                of[k] = self._quantity("carry", x.shape, x.dtype, (), group, group)
            else:
                kind = "row" if k < split else "shared"
                of[k] = self._quantity(kind, x.shape, x.dtype, (), args[k], args[k].number)
        found: dict[int, int] = {}
        for n in graph.nodes:
            if n.input >= 0:
                found[n.number] = of[place[id(graph.inputs[n.input])]]
                continue
            kind = _kind_of(n)
            if kind == "number":
                value = n.attrs[0] if n.op is CONSTANT else n.op.ref(**n.attributes())
                key: Any = np.asarray(value, n.dtype.numpy).tobytes()
                found[n.number] = self._quantity(kind, n.shape, n.dtype, (), value, key)
                continue
            inner = tuple([found[a.number] for a in n.args])
            key = (n.op, n.attrs)
            found[n.number] = self._quantity(kind, n.shape, n.dtype, inner, key, key)
        outputs = [found[n.number] for n in graph.roots]
        for k in range(carries):
            self.updates[number, k] = outputs[k]
            self.following[classes[number, k]] = outputs[k]
        numbering = results_of(run.body, carries)
        for result, target in run.targets.items():
            kind, k = numbering.kind(result)
            if kind == "final":
                self.finals.append((target, classes[number, k]))
            else:
                self.stored.append((target, of[k] if kind == "history" else outputs[carries + k]))

    def key(self) -> Any:
        """Equal for iterations with the same code."""
        buffers: dict[int, int] = {}

        def buffer(n: Node) -> int:
            return buffers.setdefault(n.number, len(buffers))

        parts: list[Any] = [self.ends_itself]
        for q in self.quantities:
            what = q.what
            if q.kind in ("row", "shared"):
                what = buffer(what)
            elif q.kind == "number":
                what = np.asarray(what, q.dtype.numpy).tobytes()
            parts.append((q.kind, q.shape, q.dtype, q.args, what))
        parts.append(tuple([buffer(n) for n in self.initial]))
        parts.append(tuple(self.following))
        parts.append(tuple([(buffer(n), k) for n, k in self.stored]))
        parts.append(tuple([(buffer(n), k) for n, k in self.finals]))
        return tuple(parts)

    def buffers(self) -> list[Node]:
        """The buffers that the code reads and writes, in the order of `key`."""
        found: dict[int, Node] = {}
        for q in self.quantities:
            if q.kind in ("row", "shared"):
                found.setdefault(q.what.number, q.what)
        for n in [*self.initial, *[n for n, _ in self.stored], *[n for n, _ in self.finals]]:
            found.setdefault(n.number, n)
        return list(found.values())


def fused(nodes: Sequence[Node]) -> tuple[list[Node], dict[int, Iteration]]:
    """Nodes in an order in which all runs of one iteration are neighbours, and the iterations.

    Runs of equal length and direction, none of which depends on another, share one loop if their
    values fit in registers.

    Returns
    -------
    nodes : list of Node
        Arguments before users, results of one iteration next to each other.
    iterations : dict of int to Iteration
        By number of each result.
    """
    runs: dict[Any, Run] = {}
    owner: dict[int, Any] = {}
    for n in nodes:
        if n.input < 0 and n.op.family == "region":
            key = run_key(n)
            run = runs.get(key)
            if run is None:
                run = runs[key] = Run(n)
            run.targets[n.attrs[-1]] = n
            owner[n.number] = key
    if not runs:
        return list(nodes), {}
    # Which runs each node depends on, a run's own results included.
    behind: dict[int, set[Any]] = {}
    for n in nodes:
        found: set[Any] = set()
        for a in n.args:
            found |= behind[a.number]
        if n.number in owner:
            found = found | {owner[n.number]}
        behind[n.number] = found
    before = {key: set().union(*[behind[a.number] for a in run.args]) for key, run in runs.items()}
    groups: list[list[Any]] = []
    for key, run in runs.items():
        for group in groups:
            first = runs[group[0]]
            fits = (first.length, first.backward) == (run.length, run.backward)
            fits = fits and not ends_itself(run.length)
            if fits and is_small(run.body) and is_small(first.body):
                group.append(key)
                if _is_acyclic(groups, before):
                    break
                group.pop()
        else:
            groups.append([key])
    iterations: dict[int, Iteration] = {}
    for group in groups:
        iteration = Iteration([runs[k] for k in group])
        for n in iteration.targets:
            iterations[n.number] = iteration
    return _in_order(nodes, iterations), iterations


def _is_acyclic(groups: list[list[Any]], before: dict[Any, set[Any]]) -> bool:
    """Whether groups of runs can be put in an order, given what each run depends on."""
    left = list(groups)
    while left:
        free = [g for g in left if not any(before[key].intersection(h) for key in g for h in left)]
        if not free:
            return False
        left = [g for g in left if g not in free]
    return True


def _in_order(nodes: Sequence[Node], iterations: dict[int, Iteration]) -> list[Node]:
    """A topological order with the results of each iteration together."""
    ordered: list[Node] = []
    done: set[int] = set()
    for start in nodes:
        stack = [start]
        while stack:
            n = stack[-1]
            if n.number in done:
                stack.pop()
                continue
            iteration = iterations.get(n.number)
            needs = n.args if iteration is None else iteration.operands
            waiting = [a for a in needs if a.number not in done]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            for made in [n] if iteration is None else iteration.targets:
                done.add(made.number)
                ordered.append(made)
    return ordered

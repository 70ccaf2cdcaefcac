"""The general road of a backward pass: node by node, with everything that may watch it.

`symgrad.calculus.pullback` is the plain form of the same walk. This one calls hooks of tensors and
nodes, fills retained gradients, gives back saved tensors that were packed, checks for NaN in
anomaly mode, and keeps callbacks for its end.

Structure: `Pass`, one backward pass. Start reading at `Pass.run`.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes, runtime
from symgrad.autograd.applied import APPLY, GATHER, RESULT, call_of, gathered
from symgrad.autograd.hooks import Hooks, checked, history, note_of, run_hooks, users_code
from symgrad.autograd.names import node_name
from symgrad.calculus import reverse
from symgrad.calculus.cotangent import Held, put, taken
from symgrad.calculus.powers import Power, powers_among
from symgrad.calculus.reverse import (
    differentiable,
    joint_contributions,
    needed_of,
    scale,
    siblings_follow,
)
from symgrad.calculus.rolling import rolled
from symgrad.calculus.successive import Successive
from symgrad.expr import Expr, ancestors
from symgrad.op import STATE, constant, interning
from symgrad.ops.arithmetic import add, keep
from symgrad.ops.movement import full
from symgrad.ops.reduce import sum_to
from symgrad.storage import Part, Slot, joined
from symgrad.tensor import Tensor


class _Running(threading.local):
    """The passes that run in this thread, innermost last."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []


RUNNING = _Running()


class _Anomaly:
    """Anomaly mode, for all threads: on or off, and whether NaN is looked for."""

    def __init__(self) -> None:
        self.enabled = False
        self.check_nan = True
        self.origin: Callable[[Expr], str | None] = lambda node: None


ANOMALY = _Anomaly()

contributions = reverse.contributions

Pairs = Sequence[tuple[Expr, Expr]]


class Pass:
    """One backward pass.

    Attributes
    ----------
    partial : bool
        Whether gradients of given inputs are wanted rather than of all leaves.
    retain : callable
        Takes a tensor that retains its gradient and the gradient.
    callbacks : list of callable
        Called when the pass has ended.
    """

    def __init__(self, partial: bool, retain: Callable[[Tensor, Expr], None]) -> None:
        self.partial = partial
        self.retain = retain
        self.callbacks: list[Callable[[], None]] = []
        self._nodes: list[Expr] = []
        self._needed: set[int] = set()
        self._held: Held = {}
        self._slots: dict[int, list[int]] = {}
        self._retained: dict[int, list[Tensor]] = {}
        self._hooked: set[int] = set()
        self._powers: dict[int, Power] = {}
        self._silent: set[int] = set()
        self._watched = ANOMALY.enabled

    def will_reach(self, t: Tensor) -> bool:
        """Whether the pass gives this tensor a gradient."""
        node = history(t.expr())
        slot = t._slot
        if slot is not None and id(slot) in self._slots:
            return True
        return id(node) in self._needed

    def run(
        self, outputs: Sequence[Expr], cotangents: Sequence[Expr], inputs: Sequence[Expr]
    ) -> list[Expr | None]:
        """Cotangents of `inputs`; None where no path leads to one."""
        outputs = rolled(outputs, {id(n) for n in inputs})
        self._prepare(outputs, inputs)
        wanted = {id(n) for n in inputs}
        done: dict[int, Expr] = {}
        held = self._held
        if not ANOMALY.enabled:
            self._powers = powers_among(self._nodes, wanted | self._hooked)
        # Hooks see the cotangents of all nodes, so that none may be passed over.
        known = Successive(self._nodes, () if self._watched else inputs, add, lasting=True)
        RUNNING.passes.append(self)
        try:
            with interning(self._nodes):
                for y, g in zip(outputs, cotangents, strict=True):
                    if id(y) in self._needed:
                        put(held, id(y), g, add)
                together: list[tuple[Expr, Expr]] = []
                for place in range(len(self._nodes) - 1, -1, -1):
                    node = self._nodes[place]
                    g_node = taken(held, id(node))
                    g_new = None if g_node is None else self._entered(node, g_node)
                    if g_new is not None:
                        if id(node) in wanted:
                            done[id(node)] = g_new
                        if differentiable(node) and any(id(a) in self._needed for a in node.args):
                            if node.op.family == "region" and not isinstance(node.meta, Hooks):
                                together.append((node, g_new))
                            elif not known.passes(node, g_new, held):
                                self._distribute(node, g_new)
                    if together and not siblings_follow(self._nodes, place):
                        self._pass_on(node.args, joint_contributions(together))
                        together = []
        finally:
            RUNNING.passes.pop()
        return [known.marked(done.get(id(n))) for n in inputs]

    def _prepare(self, outputs: Sequence[Expr], inputs: Sequence[Expr]) -> None:
        self._nodes = nodes = ancestors(outputs, differentiable)
        needed = self._needed = needed_of(nodes, {id(n) for n in inputs})
        for n in nodes:
            meta = n.meta
            if isinstance(meta, weakref.ref) and id(n) in needed:
                slot = meta()
                if slot is not None:
                    self._slots.setdefault(id(slot), []).append(id(n))
                    self._watched = self._watched or bool(slot.hooks)
            elif isinstance(meta, Part):
                self._watched = self._watched or meta.group.hooked
            elif isinstance(meta, Hooks):
                if meta.active():
                    self._watched = True
                    self._hooked.add(id(n))
                for reference in meta.retained:
                    t = reference()
                    if t is not None:
                        self._retained.setdefault(id(history(t.expr())), []).append(t)

    def _entered(self, node: Expr, g: Expr) -> Expr | None:
        """The cotangent to go on with after the hooks on the node's value; None to wait."""
        meta = node.meta
        if meta is None and not self._retained:
            return g
        if isinstance(meta, weakref.ref):
            slot = meta()
            return g if slot is None or not slot.hooks else self._at_leaf(node, slot, g)
        if isinstance(meta, Part) or (isinstance(meta, Hooks) and isinstance(meta.note, Part)):
            self._tell_siblings(node, meta)
        if isinstance(meta, Hooks) and meta.tensor:
            after = run_hooks(meta.tensor, g)
            assert after is not None
            g = after
        for t in self._retained.get(id(node), ()):
            self.retain(t, g)
        return g

    def _at_leaf(self, node: Expr, slot: Slot, g: Expr) -> Expr | None:
        """The hooks of a leaf run once, with the sum over all nodes that were its value."""
        places = self._slots.get(id(slot), [id(node)])
        if id(node) != places[0]:
            put(self._held, places[0], g, add)
            return None
        return run_hooks(slot.hooks, g)

    def _tell_siblings(self, node: Expr, meta: Any) -> None:
        """Hooks on results of the same call that get no gradient are called with None."""
        part = meta.note if isinstance(meta, Hooks) else meta
        group = part.group
        if not group.hooked or id(group) in self._silent:
            return
        self._silent.add(id(group))
        for reference in group.members:
            other = reference()
            if other is None or other is node or id(other) in self._held:
                continue
            if isinstance(other.meta, Hooks) and other.meta.tensor:
                g = run_hooks(other.meta.tensor, None)
                if g is not None and id(other) in self._needed:
                    put(self._held, id(other), g, add)

    def _distribute(self, node: Expr, g: Expr) -> None:
        meta = node.meta
        hooks = meta if isinstance(meta, Hooks) else None
        if hooks is not None and hooks.before:
            g = self._before(node, hooks, g)
        parts = self._parts(node, hooks, g)
        if ANOMALY.enabled and ANOMALY.check_nan:
            _refuse_nan(node, parts)
        if hooks is not None and hooks.after:
            parts = self._after(node, hooks, g, parts)
        self._pass_on(node.args, parts)

    def _pass_on(self, args: Sequence[Expr], parts: Sequence[Expr | None]) -> None:
        held = self._held
        for a, part in zip(args, parts, strict=True):
            if part is None or id(a) not in self._needed:
                continue
            put(held, id(a), part, add)

    def _parts(self, node: Expr, hooks: Hooks | None, g: Expr) -> Sequence[Expr | None]:
        if hooks is not None and hooks.saved:
            return _with_saved(node, hooks, g)
        if not ANOMALY.enabled or node.op is not APPLY:
            return contributions(node, g, self._powers.get(id(node)))
        try:
            return contributions(node, g)
        except Exception:
            _warn_of(node)
            raise

    # -- hooks on nodes ---------------------------------------------------------------

    def _outputs(self, node: Expr, g: Expr) -> list[Expr | None]:
        if node.op is APPLY:
            return gathered(g, len(call_of(node).results))[1]
        return [g]

    def _before(self, node: Expr, hooks: Hooks, g: Expr) -> Expr:
        given = self._outputs(node, g)
        for hook in list(hooks.before.values()):
            with users_code():
                result = hook(tuple(None if o is None else Tensor(o) for o in given))
            if result is None:
                continue
            listed = result if isinstance(result, tuple | list) else (result,)
            given = [
                old if new is None else checked(new.expr(), old, hook)
                for new, old in zip(listed, given, strict=True)
            ]
        if node.op is not APPLY:
            return given[0] if given[0] is not None else g
        total: Expr | None = None
        for number, o in enumerate(given):
            if o is not None:
                part = Expr(GATHER, (o, node), (number,), node.shape, dtypes.float64)
                total = part if total is None else add(total, part)
        return g if total is None else total

    def _after(
        self, node: Expr, hooks: Hooks, g: Expr, parts: Sequence[Expr | None]
    ) -> Sequence[Expr | None]:
        places = operand_places(node)
        given = [parts[k] for k in places]
        outputs = tuple(None if o is None else Tensor(o) for o in self._outputs(node, g))
        for hook in list(hooks.after.values()):
            with users_code():
                result = hook(tuple(None if o is None else Tensor(o) for o in given), outputs)
            if result is None:
                continue
            listed = result if isinstance(result, tuple | list) else (result,)
            if len(listed) != len(given):
                raise RuntimeError(
                    f"hook has changed the number of gradients (got {len(listed)}, the node has "
                    f"{len(given)}); return one per input"
                )
            given = [
                None if new is None else checked(new.expr(), old, hook)
                for new, old in zip(listed, given, strict=True)
            ]
        made = list(parts)
        for k, new in zip(places, given, strict=True):
            made[k] = new
        return made


def operand_places(node: Expr) -> list[int]:
    """Positions of the arguments that the node differentiates, as torch counts them."""
    if node.op is APPLY:
        return list(range(call_of(node).operands))
    if node.op is RESULT:
        return []
    return [
        k for k, a in enumerate(node.args)
        if a.requires_grad or (a.dtype.category >= 2 and a.op.family != "leaf")
    ] or list(range(len(node.args)))  # fmt: skip


# -- saved tensors ----------------------------------------------------------------------


def unpacked(packed: Any, unpack: Callable[[Any], Any]) -> Expr:
    """What a saved tensor's unpack hook gives back."""
    with users_code():
        t = unpack(packed)
    if not isinstance(t, Tensor):
        raise TypeError(
            f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
            f"{type(t).__name__}"
        )
    return t.expr()


def _with_saved(node: Expr, hooks: Hooks, g: Expr) -> Sequence[Expr | None]:
    """The cotangents of the arguments, with the saved ones as their hooks give them back."""
    args = list(node.args)
    out = node
    for place, (packed, unpack) in hooks.saved.items():
        if place < 0:
            out = joined(unpacked(packed, unpack), node)
        else:
            args[place] = joined(unpacked(packed, unpack), node.args[place])
    op = node.op
    attrs = node.attributes()
    if op.rule == "vjp":
        return op.vjp(g, out, *args, **attrs)
    if op.rule == "adjoint":
        return contributions(Expr(op, tuple(args), node.attrs, node.shape, node.dtype, True), g)
    if op.rule == "partials":
        scaled = [None if p is None else scale(g, p) for p in op.partials(out, *args, **attrs)]
    else:
        choices = op.select(out, *args, **attrs)
        scaled = [None if c is None else keep(c[0], scale(g, c[1])) for c in choices]
    return [
        None if s is None or not a.requires_grad else sum_to(s, a.shape)
        for a, s in zip(node.args, scaled, strict=True)
    ]


# -- anomaly mode -----------------------------------------------------------------------


def _refuse_nan(node: Expr, parts: Sequence[Expr | None]) -> None:
    """Raise if a cotangent that the node passes on holds a NaN."""
    if STATE.tracing or node.op is RESULT:
        return
    present = [(k, p) for k, p in enumerate(parts) if p is not None]
    runtime.evaluate([p for _, p in present])
    for number, p in present:
        if np.isnan(runtime.array_of(p)).any():
            _warn_of(node)
            raise RuntimeError(
                f"Function '{node_name(node)}' returned nan values in its {number}th output."
            )


def _warn_of(node: Expr) -> None:
    """Warn where the operation was recorded whose derivative failed."""
    origin = call_of(node).traceback if node.op is APPLY else ANOMALY.origin(node)
    name = node_name(node)
    if origin is None:
        message = (
            f"Error detected in {name}. No forward pass information available. Enable detect anomaly "
            "during forward pass for more information."
        )
    else:
        message = (
            f"Error detected in {name}. Traceback of forward call that caused the error:\n{origin}"
        )
    warnings.warn(message, UserWarning, stacklevel=2)


_ONE = {dtype: constant(1.0, dtype) for dtype in dtypes.ALL if dtype.category >= 2}
"""Made once, so before all nodes that it meets: its place in a structure is always the same."""


def ones_like(node: Expr) -> Expr:
    """The implicit cotangent of an output."""
    if not node.shape:
        return _ONE[node.dtype]
    return full(1.0, node.shape, node.dtype)


def part_number(node: Expr) -> int:
    """Which of several results of its call a node is."""
    if node.op is RESULT:
        return int(node.attrs[0])
    note = note_of(node)
    return note.number if isinstance(note, Part) else 0

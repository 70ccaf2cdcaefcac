"""Hooks: what the user attaches to tensors and nodes, and how it is called.

Structures:

* `Hooks`: autograd's attachment (`Expr.meta`) to an intermediate node. A leaf's hooks live in its
  `symgrad.tensor.Slot`.
* `RemovableHandle`: what registering a hook returns.

Start reading at `hooks_of`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from symgrad.autograd.applied import Call, apply
from symgrad.expr import Expr
from symgrad.op import INPUT, STATE
from symgrad.ops.alias import join
from symgrad.storage import Note, Part
from symgrad.tensor import Tensor

SPENT = "spent"
"""Mark (`Expr.meta`) of nodes whose saved values a backward pass without retain_graph freed."""

_number = count()


class Hooks:
    """Autograd's attachment to an intermediate node.

    Attributes
    ----------
    tensor : dict
        Hooks on the gradient of the node's value, by id, called in order.
    before, after : dict
        Hooks on the node itself: with its output gradients before it runs, and with its input and
        output gradients after it ran.
    retained : weak references to tensors that keep their gradient.
    saved : dict of int to (packed, unpack)
        Saved arguments by position, -1 for the result, that unpack gives back.
    note : Note, Part or None
        What the node was called before it had hooks.
    view : weak reference to the `GraphNode` of this node
    metadata : dict or None
        What the user keeps with the node.
    spent : bool
    """

    __slots__ = (
        "after", "before", "metadata", "note", "retained", "saved", "spent", "tensor", "traceback", "view",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tensor: dict[int, Any] = {}
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}
        self.retained: list[Any] = []
        self.saved: dict[int, Any] = {}
        self.note: Any = None
        self.view: Any = None
        self.metadata: dict[Any, Any] | None = None
        self.traceback: str | None = None
        self.spent = False

    def active(self) -> bool:
        """Whether a backward pass has to call or fill anything here."""
        return bool(self.tensor or self.retained or self.before or self.after or self.saved)


def hooks_of(node: Expr) -> Hooks:
    """The hooks of an intermediate node, made on first need."""
    meta = node.meta
    if isinstance(meta, Hooks):
        return meta
    made = Hooks()
    if isinstance(meta, Note | Part):
        made.note = meta
        if isinstance(meta, Part):
            meta.group.hooked = True
        made.spent = (meta.note if isinstance(meta, Part) else meta).spent
    else:
        made.spent = meta is SPENT
    node.meta = made
    return made


def note_of(node: Expr) -> Any:
    """The `Note` or `Part` of a node, None if it has none."""
    meta = node.meta
    if isinstance(meta, Hooks):
        return meta.note
    return meta if isinstance(meta, Note | Part) else None


def is_spent(node: Expr) -> bool:
    """Whether the node's saved values were freed."""
    meta = node.meta
    if meta is None:
        return False
    if isinstance(meta, Part):
        return meta.note.spent
    return meta is SPENT or (isinstance(meta, Hooks | Note) and meta.spent)


def spend(node: Expr) -> None:
    """Note that the node's saved values were freed."""
    meta = node.meta
    if meta is None:
        node.meta = SPENT
    elif isinstance(meta, Hooks):
        meta.spent = True
        meta.saved.clear()
    elif isinstance(meta, Note):
        node.meta = meta.used()
    elif isinstance(meta, Part):
        meta.note = meta.note.used()


def history(node: Expr) -> Expr:
    """The node whose derivative a node has: behind values that were exchanged under `no_grad`."""
    while node.op is join:
        node = node.args[1]
    return node


class RemovableHandle:
    """Removes a hook: by `remove()`, or at the end of a with block."""

    def __init__(self, table: dict[int, Any]) -> None:
        self._table = table
        self.id = next(_number)

    def remove(self) -> None:
        """Take the hook away; doing so twice is fine."""
        self._table.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def added(table: dict[int, Any], hook: Any) -> RemovableHandle:
    """Put a hook in a table."""
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


@contextmanager
def users_code() -> Any:
    """Around code of the user inside a pass: what it records are nodes of their own."""
    before = STATE.table
    STATE.table = None
    try:
        yield
    finally:
        STATE.table = before


def run_hooks(table: dict[int, Any], g: Expr | None) -> Expr | None:
    """Call hooks in order; each may replace the gradient."""
    for hook in list(table.values()):
        given = None if g is None else Tensor(g)
        with users_code():
            result = hook(given)
        if result is None:
            # A hook that changed the gradient in place gave another gradient.
            g = None if given is None else given.expr()
            continue
        if not isinstance(result, Tensor):
            raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
        g = checked(result.expr(), g, hook)
    return g


def checked(new: Expr, old: Expr | None, hook: Any) -> Expr:
    """A gradient that a hook returned, of the old one's shape and type."""
    if old is None:
        return new
    name = getattr(hook, "__name__", repr(hook))
    if new.shape != old.shape:
        raise RuntimeError(
            f"hook '{name}' has changed the size of value (got {list(new.shape)}, the gradient has "
            f"{list(old.shape)}); return a tensor of the gradient's shape"
        )
    if new.dtype is not old.dtype:
        raise RuntimeError(
            f"hook '{name}' has changed the type of value (was {old.dtype!r} got {new.dtype!r}); "
            "convert it with .to"
        )
    return new


# -- registering ------------------------------------------------------------------------

NEEDS_GRAD = "cannot register a hook on a tensor that doesn't require gradient"


def table_of(t: Tensor) -> dict[int, Any]:
    """The table of a tensor's hooks."""
    node = t.expr()
    if not node.requires_grad:
        raise RuntimeError(NEEDS_GRAD)
    if node.op is INPUT:
        slot = t.slot()
        if slot.hooks is None:
            slot.hooks = {}
        return slot.hooks
    return hooks_of(history(node)).tensor


def _register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook` with this tensor's gradient whenever it is computed; it may return another one."""
    table = table_of(self)
    if STATE.tracing:
        # Inside a compiled function the hook is part of the graph, which is recorded anew per call;
        # it holds for uses of the tensor from here on.
        node = self.expr()
        call = _Hooked([(node.shape, node.dtype)])
        (made,) = apply(call, [node], (), [node])
        self._become(made)
        table = call.table
    return added(table, hook)


class _Hooked(Call):
    """A tensor's hook as a node of the graph."""

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__("HookBackward", 1, results)
        self.table: dict[int, Any] = {}

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """The gradient that the hooks return."""
        return [run_hooks(self.table, cotangents[0])]

    def push(self, tangents: Sequence[Expr]) -> Sequence[Expr | None]:
        """Forward mode passes by."""
        return tangents


def _register_after(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook` with this leaf after its gradient was accumulated."""
    node = self.expr()
    if not node.requires_grad:
        raise RuntimeError(NEEDS_GRAD)
    if node.op is not INPUT:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    slot = self.slot()
    if slot.accumulated is None:
        slot.accumulated = {}
    return added(slot.accumulated, hook)


def _retain_grad(self: Tensor) -> None:
    """Keep this non-leaf tensor's gradient in `.grad` too."""
    node = self.expr()
    if not node.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if node.op is INPUT:
        return
    self.slot()
    hooks = hooks_of(history(node))
    if all(r() is not self for r in hooks.retained):
        hooks.retained.append(weakref.ref(self))


def _retains_grad(self: Tensor) -> bool:
    """Whether `retain_grad` was called on this non-leaf tensor."""
    node = self.expr()
    if not node.requires_grad or node.op is INPUT:
        return False
    meta = history(node).meta
    return isinstance(meta, Hooks) and any(r() is self for r in meta.retained)


def _backward_hooks(self: Tensor) -> dict[int, Any] | None:
    """The hooks on this tensor, None if there never was one."""
    node = self.expr()
    if not node.requires_grad:
        return None
    if node.op is INPUT:
        return None if self._slot is None else self._slot.hooks
    meta = history(node).meta
    return meta.tensor if isinstance(meta, Hooks) and meta.tensor else None


METHODS: dict[str, Any] = {
    "register_hook": _register_hook,
    "register_post_accumulate_grad_hook": _register_after,
    "retain_grad": _retain_grad,
    "retains_grad": property(_retains_grad),
    "_backward_hooks": property(_backward_hooks),
}

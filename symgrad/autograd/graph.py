"""Hooks on tensors and the view of the graph that `grad_fn` gives.

Structures: `RemovableHandle`, what registering a hook returns; `GraphNode`, a named view of one
recorded node. Start reading at `attach`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from symgrad.autograd.engine import hooks_of
from symgrad.expr import Expr
from symgrad.op import INPUT
from symgrad.tensor import Tensor

_hook_number = count()


class RemovableHandle:
    """Removes a hook: by `remove()`, or at the end of a with block."""

    def __init__(self, table: dict[int, Any]) -> None:
        self._table = table
        self.id = next(_hook_number)

    def remove(self) -> None:
        """Take the hook away; doing so twice is fine."""
        self._table.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class GraphNode:
    """A recorded operation as torch shows it: a name and where its gradients go."""

    __slots__ = ("node",)

    def __init__(self, node: Expr) -> None:
        self.node = node

    def name(self) -> str:
        """torch's name of the node, such as ``MulBackward0``."""
        if self.node.op is INPUT:
            return "AccumulateGrad"
        words = self.node.op.name.split("_")
        return "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"

    @property
    def next_functions(self) -> tuple[tuple[GraphNode | None, int], ...]:
        """Per argument the node that its gradient goes to, with 0, or (None, 0)."""
        return tuple(
            (GraphNode(a), 0) if a.requires_grad else (None, 0)
            for a in self.node.args
            if a.dtype.category == 2 and a.op.family != "constant"
        )

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphNode) and self.node is other.node

    def __hash__(self) -> int:
        return id(self.node)


def _grad_fn(self: Tensor) -> GraphNode | None:
    """The operation that made this tensor, None for leaves."""
    node = self.expr()
    if not node.requires_grad or node.op is INPUT:
        return None
    return GraphNode(node)


def _register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook` with this tensor's gradient whenever it is computed; it may return another one."""
    node = self.expr()
    if not node.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if node.op is INPUT:
        slot = self.slot()
        if slot.hooks is None:
            slot.hooks = {}
        table = slot.hooks
    else:
        table = hooks_of(node).pre
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


def _register_after(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook` with this leaf after its gradient was accumulated."""
    node = self.expr()
    if not node.requires_grad:
        raise RuntimeError(
            "cannot register a post accumulate grad hook on a tensor that doesn't require gradient"
        )
    if node.op is not INPUT:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    slot = self.slot()
    if slot.accumulated is None:
        slot.accumulated = {}
    handle = RemovableHandle(slot.accumulated)
    slot.accumulated[handle.id] = hook
    return handle


def _retain_grad(self: Tensor) -> None:
    """Keep this non-leaf tensor's gradient in `.grad` too."""
    node = self.expr()
    if not node.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if node.op is INPUT:
        return
    hooks = hooks_of(node)
    if all(r() is not self for r in hooks.retained):
        hooks.retained.append(weakref.ref(self))


def _retains_grad(self: Tensor) -> bool:
    """Whether `retain_grad` was called on this non-leaf tensor."""
    node = self.expr()
    if not node.requires_grad or node.op is INPUT:
        return False
    return any(r() is self for r in hooks_of(node).retained)


def attach() -> None:
    """Give `Tensor` autograd's methods."""
    table: dict[str, Any] = {
        "grad_fn": property(_grad_fn),
        "register_hook": _register_hook,
        "register_post_accumulate_grad_hook": _register_after,
        "retain_grad": _retain_grad,
        "retains_grad": property(_retains_grad),
    }
    for name, member in table.items():
        setattr(Tensor, name, member)

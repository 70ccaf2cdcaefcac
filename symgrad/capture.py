"""Tracing: which tensors from outside a function reads, writes and draws from.

Structure: `Capture`, one function being traced. Start reading at `Capture.node_of`.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from symgrad import dtypes
from symgrad.errors import TracedValueError
from symgrad.expr import Expr
from symgrad.op import INPUT, STATE, input_node

if TYPE_CHECKING:
    from symgrad.tensor import Tensor

ACTIVE: list[Capture] = []
"""The functions being traced, in any thread: `Tensor.expr` looks further only if there is one."""


class Capture:
    """Finds the outside tensors that a traced function reads and writes.

    Attributes
    ----------
    read : list of (Tensor, Expr)
        Outside tensors in the order met, with the input nodes that stand for them in the trace.
    draws : list of (Generator, Expr)
        Random draws, with the input nodes of their keys.
    written : list of (Tensor, Expr)
        Outside tensors that the function changed, with their new nodes; known at the end.
    """

    def __init__(self) -> None:
        self.read: list[tuple[Tensor, Expr]] = []
        self.draws: list[tuple[Any, Expr]] = []
        self.written: list[tuple[Tensor, Expr]] = []
        self._of: dict[int, Expr] = {}
        self._before: dict[int, tuple[Any, ...]] = {}
        self._outer: Any = None
        self._since = input_node((), dtypes.float64).serial

    def __enter__(self) -> Capture:
        self._outer = STATE.capture
        STATE.capture = self
        ACTIVE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        STATE.capture = self._outer
        for t, node in self.read:
            now = t.own_expr()
            if now is not node:
                self.written.append((t, now))
        self.give_back()
        ACTIVE.remove(self)

    def give_back(self) -> None:
        """Put the outside tensors' own values back in their places."""
        for t, _ in self.read:
            t._node, t._family, t._path, t._seen = self._before[id(t)]

    def node_of(self, t: Tensor) -> Expr:
        """The node of a tensor inside the trace."""
        node = t.own_expr()
        if node.serial >= self._since:
            return node
        found = self._of.get(id(t))
        if found is None:
            found = Expr(INPUT, (), (), node.shape, node.dtype, node.requires_grad)
            found.meta = node.meta if node.op is INPUT else None
            self._of[id(t)] = found
            self._before[id(t)] = (t._node, t._family, t._path, t._seen)
            self.read.append((t, found))
            t._node, t._family, t._path, t._seen = found, None, (), 0
        return found

    def key(self, generator: Any) -> Expr:
        """The key of a random draw, to be filled at each call."""
        node = input_node((2,), dtypes.int64)
        self.draws.append((generator, node))
        return node


def _drop_other_threads() -> None:
    """In a forked child: nobody goes on with what other threads were tracing."""
    own = []
    capture = STATE.capture
    while capture is not None:
        own.append(capture)
        capture = capture._outer
    for other in ACTIVE:
        if other not in own:
            other.give_back()
    ACTIVE[:] = reversed(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_other_threads)


def refuse_look(node: Expr) -> None:
    """Refuse to look at a traced value, naming the user's line."""
    place = ""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("symgrad"):
            place = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
            break
        frame = frame.f_back
    raise TracedValueError(
        f"compile: the value of a traced tensor of shape {node.shape} was asked for{place}; a compiled "
        "function cannot branch on it or read it in Python; use symgrad.where to choose by condition"
    )

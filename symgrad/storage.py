"""What lies behind a tensor: memory as a sequence of values, histories over it, a leaf's gradient.

Structures:

* `Storage`: memory, with its versions; `Family`: a history over a storage, shared by a tensor and
  its views.
* `Barrier` and `Whole`: steps of a view's path that move nothing.
* `Slot`: where a leaf's gradient accumulates.

Start reading at `Family.current`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import ACTIVE, INPUT, STATE, grad_mode
from symgrad.ops.alias import clone, detach, join
from symgrad.ops.arithmetic import where
from symgrad.ops.movement import full

if TYPE_CHECKING:
    from symgrad.tensor import Tensor

Step = tuple[Any, tuple[Any, ...]]


class _Modes(threading.local):
    """Per-thread state of tensors: whether inference mode is on."""

    inference = False


MODES = _Modes()

INFERENCE = "inference"
"""Mark (`Expr.meta`) of nodes made in inference mode."""


class SlotReference(weakref.ref["Slot"]):
    """A leaf's node refers to its slot by this; what the user attached to the tensor outlives it."""

    __slots__ = ("attributes",)
    attributes: dict[str, Any]


class Note:
    """The public function that made a node, kept as the node's `meta` where its op does not say it.

    Attributes
    ----------
    name : str
    more : bool
        Whether the call had more than one argument (``x.sum()`` and ``x.sum(0)`` have names of
        their own in torch).
    spent : bool
        Whether a backward pass freed the node's saved values.
    """

    __slots__ = ("more", "name", "other", "spent")

    def __init__(self, name: str, more: bool) -> None:
        self.name = name
        self.more = more
        self.spent = False
        self.other: Note | None = None

    def used(self) -> Note:
        """The note of a node whose saved values were freed."""
        if self.spent:
            return self
        if self.other is None:
            self.other = Note(self.name, self.more)
            self.other.spent = True
        return self.other


class Group:
    """The results of one call that gave several: weak references, and whether one has hooks."""

    __slots__ = ("hooked", "members")

    def __init__(self) -> None:
        self.members: list[Any] = []
        self.hooked = False


class Part:
    """The note of a node that is one of several results of one call."""

    __slots__ = ("group", "note", "number")

    def __init__(self, note: Note, number: int, group: Group) -> None:
        self.note = note
        self.number = number
        self.group = group

    @property
    def kind(self) -> tuple[str, int] | None:
        """What it has in common with parts of other calls; None if a hook waits at one of its group."""
        return None if self.group.hooked else (self.note.name, self.number)


SLICES = Note("copy_slices", False)
"""What torch calls the history of a base that was written through a view."""


class Slot:
    """A leaf's place for its gradient and hooks.

    The tensor owns it; nodes refer to it weakly, so that a leaf, its gradient and the graph that
    the gradient can print never form a cycle.
    """

    __slots__ = ("__weakref__", "accumulated", "hooks", "own_grad", "owner", "view")

    def __init__(self, owner: Tensor) -> None:
        self.owner = weakref.ref(owner)
        self.own_grad: Tensor | None = None
        self.hooks: Any = None
        self.accumulated: Any = None
        self.view: Any = None

    @property
    def grad(self) -> Tensor | None:
        """The gradient; inside a function being traced, what the function made of it so far."""
        if ACTIVE and STATE.capture is not None:
            return STATE.capture.gradient(self)  # type: ignore[no-any-return]
        return self.own_grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if ACTIVE and STATE.capture is not None:
            STATE.capture.set_gradient(self, value)
        else:
            self.own_grad = value


class Storage:
    """Memory as a sequence of values: its version, its last writer, its outside buffer.

    `quiet` counts the versions that the user's version counter does not show: writes through
    `.data`, and the step from own to outside memory. `inference` says that it was made in inference
    mode.
    """

    __slots__ = ("inference", "outside", "quiet", "version", "writer")

    def __init__(self) -> None:
        self.version = 0
        self.quiet = 0
        self.inference = False
        self.writer: Family | None = None
        self.outside: np.ndarray | None = None

    def step(self, writer: Family, quiet: bool) -> None:
        """Go to the next version, which `writer` holds."""
        self.version += 1
        self.quiet += quiet
        self.writer = writer
        writer.seen = self.version


class Family:
    """A history over a storage: the base's node, and the version it was last in step with.

    `base` refers weakly to the tensor that is no view; `quiet` says that writes are not counted.
    """

    __slots__ = ("base", "node", "quiet", "seen", "storage")

    def __init__(self, storage: Storage, node: Expr, quiet: bool = False) -> None:
        self.storage = storage
        self.node = node
        self.seen = storage.version
        self.quiet = quiet
        self.base: Callable[[], Tensor | None] | None = None

    def current(self) -> Expr:
        """The base's node, with the value that other families may have written."""
        storage = self.storage
        if self.seen != storage.version and storage.writer is not self:
            assert storage.writer is not None
            self.node = joined(storage.writer.node, self.node)
        self.seen = storage.version
        return self.node


def joined(value: Expr, history: Expr) -> Expr:
    """A node with the value of one and the derivative of the other."""
    if not history.requires_grad:
        return detach(value) if value.requires_grad else value
    if history.op is INPUT:
        leaf = Expr(INPUT, (value,), (), history.shape, history.dtype, True)
        leaf.meta = history.meta
        return leaf
    with grad_mode(True):
        return join(value, history)


class Barrier:
    """A step in a view's path that moves nothing but forbids writing through the view.

    Parameters
    ----------
    reason : str
        What an in-place change raises.
    cut : bool
        Whether the view has no history: a view made under `no_grad`, a leaf of its own.
    """

    attributes = ()
    name = "barrier"

    def __init__(self, reason: str, cut: bool = False) -> None:
        self.reason = reason
        self.cut = cut

    def __call__(self, x: Expr) -> Expr:
        if not (self.cut and x.requires_grad):
            return x
        return Expr(INPUT, (x,), (), x.shape, x.dtype, True)

    def ref(self, x: np.ndarray) -> np.ndarray:
        """The array itself."""
        return x

    def adjoint(self, g: Expr, x: Expr) -> tuple[Expr]:
        """The cotangent itself."""
        return (g,)


class Whole:
    """The step of a view that shows all of its base: a node of its own over the same memory."""

    attributes = ()
    name = "whole"

    def __call__(self, x: Expr) -> Expr:
        return clone(x)

    def ref(self, x: np.ndarray) -> np.ndarray:
        """The array itself."""
        return x

    def adjoint(self, g: Expr, x: Expr) -> tuple[Expr]:
        """The cotangent itself."""
        return (g,)


WHOLE = Whole()

_TITLES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float32": "Float", "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def title(dtype: DType) -> str:
    """The dtype's name in torch's error messages."""
    return _TITLES[dtype.name]


def put_back(op: Any, attrs: dict[str, Any], base: Expr, value: Expr) -> Expr:
    """`base` with the elements that the view op shows replaced by `value`."""
    if op.name == "expand":
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )
    placed = getattr(op, "placed", None)
    if placed is not None:
        return placed(base, value)  # type: ignore[no-any-return]
    (moved,) = op.adjoint(value, base, **attrs)
    if moved.size == value.size:
        return moved
    (mask,) = op.adjoint(full(True, value.shape, dtypes.bool_), base, **attrs)
    return where(mask, moved, base)


# -- layout -----------------------------------------------------------------------------


def followed(array: np.ndarray, path: tuple[Step, ...]) -> np.ndarray:
    """An array of a base's layout followed along the path of a view."""
    for op, attrs in path:
        array = getattr(op, "laid", op.ref)(array, **dict(zip(op.attributes, attrs, strict=True)))
    return array


def keeps_layout(t: Tensor, steps: tuple[Step, ...]) -> bool:
    """Whether further steps from a view show its memory; else they need a copy."""
    if all(getattr(op, "keeps_order", True) for op, _ in t._path):
        return True
    base = np.empty(t.family().current().shape, np.uint8)
    return np.may_share_memory(followed(base, (*t._path, *steps)), base)

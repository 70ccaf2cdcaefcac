"""Tracing: which tensors from outside a function reads, writes and draws from.

While a function is traced its thread works on stand-ins. A tensor from outside is never changed, so
other threads see it as it is, and an exception leaves nothing to put back.

Structures:

* `Capture`: one function being traced, with the stand-ins of the tensors, families and storages
  that it met, and of gradients.
* `Entry`: a tensor from outside that the function met, with its stand-in.

Start reading at `Capture.stand_in`.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.op import ACTIVE, INPUT, STATE, input_node
from symgrad.storage import Family, Slot, Storage
from symgrad.tensor import Tensor, base_of

if TYPE_CHECKING:
    from symgrad.runtime import Region

_NUMBERS = itertools.count(1)
_UNREAD = object()


class Entry:
    """A tensor from outside that a traced function met.

    Attributes
    ----------
    holder : Tensor or Slot
        The tensor; or the leaf whose gradient it is, which may be another tensor at another call.
    inner : Tensor
        Its stand-in.
    node : Expr
        What the stand-in held at first.
    version : int
        The version that the stand-in's storage had at first.
    """

    __slots__ = ("holder", "inner", "node", "version")

    def __init__(self, holder: Tensor | Slot, inner: Tensor, version: int) -> None:
        self.holder = holder
        self.inner = inner
        self.node = inner.own_expr()
        self.version = version

    def storage(self) -> Storage | None:
        """The stand-in's storage, if the function wrote to it."""
        family = self.inner._family
        if family is None or family.storage.version == self.version:
            return None
        return family.storage


def tensor_of(holder: Tensor | Slot) -> Tensor:
    """The tensor that a holder stands for now."""
    if isinstance(holder, Tensor):
        return holder
    assert holder.grad is not None
    return holder.grad


class Capture:
    """Finds the outside tensors that a traced function reads and writes.

    Attributes
    ----------
    draws : list of (Generator, Expr)
        Random draws, with the input nodes of their keys.
    number : int
    inside : set of int
        The numbers of this capture and of those opened within it: handles that carry one of them
        were made by the function.
    regions : list of Region
        Its checkpoints in the order of their ends, inner ones first.
    """

    def __init__(self) -> None:
        self.draws: list[tuple[Any, Expr]] = []
        self.number = next(_NUMBERS)
        self.inside = {self.number}
        self.regions: list[Region] = []
        self._arguments: list[Expr] = []
        self._entries: list[Entry] = []
        # By the identity of what they stand for, which is kept alive.
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._families: dict[int, tuple[Family, Family]] = {}
        self._storages: dict[int, tuple[Storage, Storage, int]] = {}
        self._gradients: dict[int, tuple[Slot, Any, Tensor | None]] = {}
        self._outer: Any = None

    def __enter__(self) -> Capture:
        outer = self._outer = STATE.capture
        while outer is not None:
            outer.inside.add(self.number)
            outer = outer._outer
        STATE.capture = self
        ACTIVE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        STATE.capture = self._outer
        ACTIVE.remove(self)

    def adopt(self, handles: list[Any]) -> None:
        """Count the function's arguments, which are made before it runs, as made by it."""
        for handle in handles:
            handle._trace = self.number
            self._arguments.append(handle.own_expr())

    # -- values -----------------------------------------------------------------------

    @property
    def read(self) -> list[tuple[Tensor | Slot, Expr]]:
        """Outside tensors in the order met, with the nodes that stand for them in the trace."""
        return [(e.holder, e.node) for e in self._entries]

    @property
    def written(self) -> list[tuple[Tensor | Slot, Expr]]:
        """Outside tensors that the function changed, with their new nodes; one for each memory."""
        found: dict[int, Entry] = {}
        for entry in self._entries:
            storage = entry.storage()
            if storage is None:
                continue
            if id(storage) not in found or storage.writer is entry.inner._family:
                found[id(storage)] = entry
        return [(e.holder, e.inner.own_expr()) for e in found.values()]

    def enter(self, node: Expr) -> Expr:
        """What stands for a node from outside."""
        found = Expr(INPUT, (), (), node.shape, node.dtype, node.requires_grad)
        found.meta = node.meta if node.op is INPUT else None
        return found

    def node_of(self, t: Tensor) -> Expr:
        """The node of a tensor inside the trace."""
        return self.stand_in(t).own_expr()

    def stand_in(self, t: Tensor) -> Tensor:
        """The handle to use for a tensor: the tensor itself if the function made it."""
        if t._trace in self.inside:
            return t
        found = self._tensors.get(id(t))
        if found is not None:
            return found[1]
        source = self._source(t)
        if source._family is None:
            return self._met(t, t, source._node)
        own = self._family(source._family, None if source._path else t)
        found = self._tensors.get(id(t))
        if found is not None:
            return found[1]
        made = self._handle(t, source._node, own)
        made._path, made._seen = source._path, -1
        return made

    def _source(self, t: Tensor) -> Tensor:
        """What the surrounding function has for a tensor."""
        return t if self._outer is None else self._outer.stand_in(t)  # type: ignore[no-any-return]

    def _met(self, t: Tensor, holder: Tensor | Slot, node: Expr) -> Tensor:
        """The stand-in of a tensor that shares no memory."""
        made = self._handle(t, self.enter(node), None)
        self._entries.append(Entry(holder, made, 0))
        return made

    def _handle(self, t: Tensor, node: Expr, family: Family | None) -> Tensor:
        made = Tensor(node)
        made._trace = self.number
        made._family = family
        self._tensors[id(t)] = (t, made)
        return made

    def _family(self, family: Family, base: Tensor | None) -> Family:
        """The stand-in of a family; `base` is a handle of it that is no view, if one is at hand."""
        found = self._families.get(id(family))
        if found is not None:
            return found[1]
        inner, STATE.capture = STATE.capture, self._outer
        try:
            node = family.current()
            base = base_of(family) if base is None else base
        finally:
            STATE.capture = inner
        storage, version = self._storage(family.storage)
        made = Family(storage, self.enter(node), family.quiet)
        made.seen = version
        made.base = family.base
        self._families[id(family)] = (family, made)
        handle = self._handle(base, made.node, made)
        handle._seen = version
        self._entries.append(Entry(base, handle, version))
        return made

    def _storage(self, storage: Storage) -> tuple[Storage, int]:
        """The stand-in of a storage, and the version that it had at first."""
        found = self._storages.get(id(storage))
        if found is None:
            made = Storage()
            made.version, made.quiet = storage.version, storage.quiet
            made.inference = storage.inference
            found = self._storages[id(storage)] = (storage, made, made.version)
        return found[1], found[2]

    # -- gradients --------------------------------------------------------------------

    def gradient(self, slot: Slot) -> Tensor | None:
        """The gradient of a leaf as the function has left it so far."""
        found = self._gradients.get(id(slot))
        if found is None:
            now = slot.own_grad if self._outer is None else self._outer.gradient(slot)
            self._gradients[id(slot)] = (slot, now, now)
            if now is not None and now._trace not in self.inside and id(now) not in self._tensors:
                self._met(now, slot, self._source(now).own_expr())
            return now  # type: ignore[no-any-return]
        return found[2]

    def set_gradient(self, slot: Slot, value: Tensor | None) -> None:
        """Give a leaf another gradient inside the trace."""
        found = self._gradients.get(id(slot))
        self._gradients[id(slot)] = (slot, _UNREAD if found is None else found[1], value)

    def gradients(self) -> list[tuple[Slot, bool | None, bool, Tensor | None]]:
        """The gradients of outside leaves that the function asked for or set.

        Each with: whether there was one (None if the function never asked), whether the function put
        another in its place, and the gradient at the end.
        """
        found = []
        for slot, before, now in self._gradients.values():
            owner = slot.owner()
            if owner is None or owner._trace in self.inside:
                continue
            present = None if before is _UNREAD else before is not None
            found.append((slot, present, before is not now, now))
        return found

    def check_backward(self, graph: list[Expr]) -> None:
        """Refuse a backward pass whose gradients would go where a trace cannot put them."""
        if self._outer is not None:
            self._outer.check_backward(graph)
        lost = {id(n) for n in self._arguments}
        lost.update(id(e.node) for e in self._entries if e.node.meta is None)
        for n in graph:
            if n.requires_grad and id(n) in lost:
                raise RuntimeError(
                    "backward: a compiled function cannot add to the gradient of its argument, or of what a "
                    f"tensor from outside was computed from (got one of shape {n.shape} that requires grad); "
                    "return symgrad.autograd.grad's result, call backward() on the function's result, or "
                    "detach the tensor"
                )

    def check_flags(self) -> None:
        """Refuse a change of `requires_grad`, which would be forgotten."""
        for entry in self._entries:
            now = entry.inner.own_expr()
            changed = now.op is INPUT and now.requires_grad != entry.node.requires_grad
            if changed and entry.storage() is None:
                raise RuntimeError(
                    "compile: the function changes requires_grad of a tensor from outside (got one of shape "
                    f"{now.shape}, now {now.requires_grad}); change it outside, or use detach()"
                )

    # -- randomness -------------------------------------------------------------------

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
    ACTIVE[:] = reversed(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_other_threads)

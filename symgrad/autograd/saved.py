"""Saved-tensor hooks: what the user does with tensors that a derivative will need.

Nothing is saved here in torch's sense: a node's arguments are its saved tensors. Under hooks each
result of a public function is looked at (`symgrad.interface.watch`): the arguments that its
derivative reads are packed at once, and unpacked when a backward pass comes to the node
(`symgrad.autograd.walk`). Start reading at `saved_tensors_hooks`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from symgrad import interface
from symgrad.autograd.hooks import hooks_of, users_code
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT
from symgrad.tensor import Tensor

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class _Active(threading.local):
    """The pairs of hooks entered in this thread, and why entering one is forbidden."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Pack, Unpack]] = []
        self.forbidden: list[str | None] = []
        self.packing = False


ACTIVE = _Active()


def read_by_derivative(node: Expr) -> list[int]:
    """Positions of the arguments that a node's derivative reads; -1 for its own value."""
    op = node.op
    if not node.requires_grad or op.family in ("leaf", "alias", "function"):
        return []
    if op.rule == "adjoint":
        if op.linear == "joint":
            return []
        others = [any(b.requires_grad for b in node.args if b is not a) for a in node.args]
        return [k for k, other in enumerate(others) if other]
    if op.rule == "vjp":
        return [*(k for k, a in enumerate(node.args) if a.dtype.category >= 2), -1]
    factors = (op.partials if op.rule == "partials" else op.select)(
        node, *node.args, **node.attributes()
    )
    known = {id(x) for x in (*node.args, node)}
    found: list[int] = []
    for place, (a, factor) in enumerate(zip(node.args, factors, strict=True)):
        if factor is None or not a.requires_grad:
            continue
        parts = [
            p for p in (factor if isinstance(factor, tuple) else (factor,)) if isinstance(p, Expr)
        ]
        used = {id(n) for n in ancestors(parts, lambda n: id(n) not in known)}
        for b in {id(b): b for b in node.args if id(b) in used and b.op is not CONSTANT}.values():
            places = [k for k, c in enumerate(node.args) if c is b]
            # A tensor in several places is read from another than the one differentiated.
            found.append(next((k for k in places if k != place), places[0]))
        if id(node) in used:
            found.append(-1)
    return list(dict.fromkeys(found))


def pack(pair: tuple[Pack, Unpack], source: Tensor) -> tuple[Any, Unpack]:
    """What a saved tensor's hooks keep for it."""
    before = source._version
    ACTIVE.packing = True
    try:
        with users_code():
            packed = pair[0](source)
    finally:
        ACTIVE.packing = False
    if source._version != before:
        raise RuntimeError(
            "A saved tensor pack hook is modifying its input in place. Tensors provided as input to "
            "pack hook can not be modified by in-place operations as this can lead to unexpected "
            "side-effects; change a clone."
        )
    return packed, pair[1]


def _watcher(node: Expr) -> Expr:
    if ACTIVE.pairs and not ACTIVE.packing:
        for place in read_by_derivative(node):
            source = node if place < 0 else node.args[place]
            hooks_of(node).saved[place] = pack(ACTIVE.pairs[-1], Tensor(source))
    return node


class saved_tensors_hooks:  # noqa: N801
    """Within it tensors that a derivative will need are packed when recorded and unpacked when used.

    Parameters
    ----------
    pack_hook : callable
        Takes a tensor and returns anything.
    unpack_hook : callable
        Takes what `pack_hook` returned and returns a tensor, whose value is then used.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor(3., requires_grad=True)
    >>> with sg.autograd.graph.saved_tensors_hooks(lambda t: t.item(), sg.tensor):
    ...     y = x ** 2
    >>> y.backward()
    >>> x.grad
    tensor(6.)
    """

    def __init__(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if ACTIVE.forbidden:
            raise RuntimeError(ACTIVE.forbidden[-1])
        ACTIVE.pairs.append((self.pack_hook, self.unpack_hook))
        interface.watch(_watcher)

    def __exit__(self, *_: object) -> None:
        ACTIVE.pairs.pop()
        interface.unwatch(_watcher)


class save_on_cpu(saved_tensors_hooks):  # noqa: N801
    """Saved tensors stay where they are: there is one device."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: t, lambda t: t)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Within it entering `saved_tensors_hooks` raises RuntimeError with this message."""
    ACTIVE.forbidden.append(error_message)
    try:
        yield
    finally:
        ACTIVE.forbidden.pop()


class _Allowed:
    """One `allow_mutation_on_saved_tensors` block: whether it is still open."""

    def __init__(self) -> None:
        self.open = True

    def keep(self, t: Tensor) -> Tensor:
        """The tensor's present value, whatever becomes of the tensor."""
        return Tensor(t.expr())

    def give(self, t: Tensor) -> Tensor:
        """The value kept; only within the block, as in torch."""
        assert self.open, (
            "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the "
            "graph was originally recorded."
        )
        return t


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[Any]:
    """Within it saved tensors may be changed in place, as they may be anywhere here."""
    context = _Allowed()
    with saved_tensors_hooks(context.keep, context.give):
        try:
            yield context
        finally:
            context.open = False

"""torch.autograd.forward_ad: tensors that carry a tangent, within a level.

A dual tensor is a fresh node with its primal's value; the level remembers the tangent of that
node. Operations record as always, and `unpack_dual` pushes the tangents of the level forward to
the tensor asked for. Leaving the level forgets them. Structure: `_Level`. Start reading at
`make_dual` and `unpack_dual`.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from symgrad.calculus import pushforward
from symgrad.calculus.batching import replaced
from symgrad.dtypes import float64
from symgrad.expr import Expr, ancestors
from symgrad.op import STATE, grad_mode, input_node
from symgrad.ops.alias import clone, detach
from symgrad.storage import Family
from symgrad.tensor import Tensor

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]


class UnpackedDualTensor(NamedTuple):
    """A tensor's value and tangent; the tangent is None if it has none."""

    primal: Tensor
    tangent: Tensor | None


class _Level:
    """The tangents of a level.

    Attributes
    ----------
    nodes, tangents : lists of Expr
        Dual nodes and what they carry.
    given : dict
        The user's tensors of tangents, by the id of their node.
    quiet : list of (int, int)
        Creation numbers between which nodes were recorded with forward mode switched off.
    """

    def __init__(self) -> None:
        self.nodes: list[Expr] = []
        self.tangents: list[Expr] = []
        self.given: dict[int, Tensor] = {}
        self.quiet: list[tuple[int, int]] = []

    def tangent(self, node: Expr) -> Expr | None:
        """The tangent of a node recorded within the level."""
        if self.quiet:
            reached = ancestors([node], lambda n: True)
            silent = [n for n in reached if any(a < n.serial < b for a, b in self.quiet)]
            with grad_mode(False):
                (node,) = replaced([node], silent, [detach(n) for n in silent])
        (found,) = pushforward([node], self.nodes, self.tangents)
        return found


class Dual(Tensor):
    """The handle that `make_dual` returns."""

    __slots__ = ()

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make this leaf record derivatives, or stop it; its tangent stays."""
        current = _LEVELS.current
        tangent = None if current is None else current.tangent(self.expr())
        super().requires_grad_(requires_grad)
        if current is not None and tangent is not None:
            current.nodes.append(self.expr())
            current.tangents.append(tangent)
        return self

    def detach(self) -> Tensor:
        """The same values without history and without tangent."""
        return Tensor(detach(self.expr()))


class _Levels(threading.local):
    current: _Level | None = None
    enabled = True


_LEVELS = _Levels()


def enter_dual_level() -> int:
    """Open the level in which tensors can carry tangents; there is one at a time.

    Returns
    -------
    int
        The level's number, for `exit_dual_level`.
    """
    if _LEVELS.current is not None:
        raise RuntimeError(
            "Nested forward mode AD is not supported at the moment; compose sg.func.jvp instead"
        )
    _LEVELS.current = _Level()
    STATE.dual_levels += 1
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the level; all tangents are gone.

    Parameters
    ----------
    level : int, optional
        What `enter_dual_level` returned.
    """
    if _LEVELS.current is None:
        raise RuntimeError(
            "Dual level must be a positive number (no level is open); enter one first"
        )
    if level not in (None, 0):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is not "
            f"supported (got {level}, the last one is 0)."
        )
    _LEVELS.current = None
    STATE.dual_levels -= 1


class dual_level:  # noqa: N801
    """The level as a context manager.

    Examples
    --------
    >>> import symgrad as sg
    >>> import symgrad.autograd.forward_ad as fwd
    >>> with fwd.dual_level():
    ...     x = fwd.make_dual(sg.tensor(2.), sg.tensor(1.))
    ...     fwd.unpack_dual(x ** 3).tangent
    tensor(12.)
    """

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *_: object) -> None:
        exit_dual_level()


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A tensor that shares the memory of `tensor` and carries a tangent.

    Parameters
    ----------
    tensor, tangent : Tensor
        Floating, of the same shape.
    level : int, optional

    Returns
    -------
    Tensor

    Raises
    ------
    RuntimeError
        Outside of a level, or for a tangent of another shape.
    ValueError
        For integers.
    """
    current = _LEVELS.current
    if current is None:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to "
            "enter_dual_level() first."
        )
    if tensor.dtype.category < 2:
        raise ValueError(
            f"Expected primal to be floating point or complex, but got: {tensor.dtype!r}"
        )
    if tangent.dtype.category < 2:
        raise ValueError(
            f"Expected tangent to be floating point or complex, but got: {tangent.dtype!r}"
        )
    node = tensor.expr()
    t = tangent.expr()
    if t.shape != node.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original Tensor, "
            f"this is not supported. Tensor is of size {list(node.shape)} while the given forward gradient "
            f"is of size {list(t.shape)}."
        )
    if t.dtype is not node.dtype:
        raise RuntimeError(
            f"Trying to set a forward gradient of another dtype than the original Tensor (got {t.dtype!r}, "
            f"the tensor has {node.dtype!r}); convert with .to"
        )
    dual = Expr(
        clone, (node,), (), node.shape, node.dtype, node.requires_grad and STATE.grad, node.value
    )
    current.nodes.append(dual)
    current.tangents.append(t)
    current.given[id(t)] = tangent
    made = Dual(dual)
    if not tensor._path:
        made._family = Family(tensor.family().storage, dual)
        made._seen = made._family.storage.version
    return made


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The value and the tangent of a tensor.

    Parameters
    ----------
    tensor : Tensor
    level : int, optional

    Returns
    -------
    UnpackedDualTensor
        A named tuple ``(primal, tangent)``; the tangent is None without a level, and for a tensor
        that does not depend on a dual one.
    """
    current = _LEVELS.current
    node = tensor.expr()
    if current is None:
        return UnpackedDualTensor(tensor, None)
    originals = [n.args[0] if n.args else n for n in current.nodes]
    (primal,) = replaced([node], current.nodes, originals)
    found = current.tangent(node)
    if found is None:
        return UnpackedDualTensor(Tensor(primal), None)
    own = current.given.get(id(found))
    # A tangent that is the user's own tensor shares its memory.
    if own is not None and own.expr() is found:
        return UnpackedDualTensor(Tensor(primal), own.alias(found, ()))
    return UnpackedDualTensor(Tensor(primal), Tensor(found))


class _set_fwd_grad_enabled:  # noqa: N801
    """Within it operations of this thread carry no tangents if `mode` is False."""

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._start = 0
        self._before = _LEVELS.enabled

    def __enter__(self) -> None:
        self._before = _LEVELS.enabled
        _LEVELS.enabled = self._mode
        self._start = input_node((), float64).serial

    def __exit__(self, *_: object) -> None:
        _LEVELS.enabled = self._before
        if not self._mode and _LEVELS.current is not None:
            _LEVELS.current.quiet.append((self._start, input_node((), float64).serial))


def _is_fwd_grad_enabled() -> Any:
    """Whether operations of this thread carry tangents."""
    return _LEVELS.enabled

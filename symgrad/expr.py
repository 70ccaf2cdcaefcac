"""The node of the expression graph.

One structure: `Expr`, an immutable node: an op, its arguments and attributes, a shape and a
dtype, decided when the node is made. Two things are filled in later: `value`, once somebody
looked, and `meta`, what autograd attaches to this very node. Nodes are never interned: identity
of a node is its identity for autograd.

Operators on `Expr` (``x * y``, ``-x``) are installed by `symgrad.ops`, so that derivative rules
read like formulas. Start reading at `Expr`; `ancestors` is how every pass walks a graph without
recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from symgrad.dtypes import DType

if TYPE_CHECKING:
    from symgrad.op import Op

_serial = count(1)
_serial_of = attrgetter("serial")


class Expr:
    """A node of the expression graph.

    Attributes
    ----------
    op : Op
        What computes the node.
    args : tuple of Expr
    attrs : tuple
        Static attributes, hashable, in the order of ``op.attributes``.
    shape : tuple of int
    dtype : DType
    requires_grad : bool
        Whether derivatives flow through the node.
    value : numpy.ndarray or number or None
        The computed value: an array, or a Python number for a constant.
    serial : int
        Creation order, increasing along every path.
    meta : object
        Autograd's attachment: the accumulation slot of a leaf, hooks of another node.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "attrs",
        "dtype",
        "meta",
        "op",
        "requires_grad",
        "serial",
        "shape",
        "value",
    )

    # Operators are installed by symgrad.ops; these declarations are for type checkers.
    __add__: Any
    __radd__: Any
    __sub__: Any
    __rsub__: Any
    __mul__: Any
    __rmul__: Any
    __truediv__: Any
    __rtruediv__: Any
    __pow__: Any
    __neg__: Any
    __and__: Any
    __or__: Any
    __invert__: Any
    __lt__: Any
    __le__: Any
    __gt__: Any
    __ge__: Any

    def __init__(
        self,
        op: Op,
        args: tuple[Expr, ...],
        attrs: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: DType,
        requires_grad: bool = False,
        value: Any = None,
    ) -> None:
        self.op = op
        self.args = args
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.value = value
        self.meta: Any = None
        self.serial = next(_serial)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(zip(self.op.attributes, self.attrs, strict=True))

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype.name}{list(self.shape)} #{self.serial}>"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value; use where to choose by condition")


def ancestors(roots: Iterable[Expr], into: Callable[[Expr], bool]) -> list[Expr]:
    """The nodes reachable from `roots`, arguments before users.

    Parameters
    ----------
    roots : iterable of Expr
    into : callable
        Whether to go on to a node's arguments; the node itself is listed either way.

    Returns
    -------
    list of Expr
        In creation order, which is a topological order since arguments are made first.
    """
    seen: dict[int, Expr] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if into(node):
            stack.extend(node.args)
    return sorted(seen.values(), key=_serial_of)

"""What a tensor says of itself: shape and dtype, and its elements as Python's and NumPy's.

Structures: `Facts`, the part of `symgrad.tensor.Tensor` that only asks; `Size`, a shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from symgrad.dtypes import DType
from symgrad.expr import Expr


class Size(tuple[int, ...]):
    """A shape: a tuple with `numel`."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements of that shape."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"symgrad.Size({list(self)})"


class Facts:
    """The base of tensors, over the node that a subclass holds."""

    __slots__ = ()

    _node: Expr
    look: Callable[[], np.ndarray]
    numpy: Callable[[], np.ndarray]
    requires_grad: Any
    __getitem__: Callable[..., Any]

    @property
    def shape(self) -> Size:
        return Size(self._node.shape)

    @property
    def dtype(self) -> DType:
        return self._node.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self._node.shape)

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size along one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of elements."""
        return self._node.size

    nelement = numel

    @property
    def itemsize(self) -> int:
        return self._node.dtype.itemsize

    def element_size(self) -> int:
        """Bytes per element."""
        return self._node.dtype.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def is_cuda(self) -> bool:
        return False

    def is_floating_point(self) -> bool:
        """Whether the dtype is floating."""
        return self._node.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self._node.dtype.is_complex

    # -- as Python values -----------------------------------------------------------------

    def item(self) -> Any:
        """The only element as a Python number."""
        if self._node.size != 1:
            raise RuntimeError(
                f"a Tensor with {self._node.size} elements cannot be converted to Scalar; "
                "reduce or index it first"
            )
        return self.look().item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers, or one number for a 0-d tensor."""
        return self.look().tolist()

    def __bool__(self) -> bool:
        if self._node.size != 1:
            raise RuntimeError(
                "Boolean value of Tensor with "
                + ("no values" if self._node.size == 0 else "more than one value")
                + " is ambiguous; use .any() or .all(), or where to choose element by element"
            )
        return bool(self.look().item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self._node.dtype.category >= 2:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._node.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                "Tensor.__array__: copy=False, but a copy is always made; use .numpy(), which shares memory"
            )
        return np.array(self.numpy() if self.requires_grad else self.look(), dtype)

    def __iter__(self) -> Iterator[Any]:
        if not self._node.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter([self[k] for k in range(self._node.shape[0])])

    def __format__(self, spec: str) -> str:
        if spec and not self._node.shape:
            return format(self.item(), spec)
        return repr(self) if not spec else format(self.look(), spec)

"""How a tensor lies in memory, as torch's methods tell it: views, bases, strides, addresses.

Values here are row-major arrays behind expressions; a view is a path of movements from a base. Its
strides are those that the path gives on a row-major base, and an address is real from the moment
somebody asks for it: from then on the base's memory is shared with the outside. Start reading at
`_layout`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.interface import FUNCTIONS
from symgrad.op import grad_mode
from symgrad.ops.movement import permute
from symgrad.storage import Family, Storage, followed
from symgrad.tensor import Tensor, base_of, from_array

_BEHIND = frozenset({"expand", "permute"})


def _layout(t: Tensor) -> tuple[tuple[int, ...], int]:
    """Strides and offset, in elements."""
    t = t.here()
    if t._path:
        base = np.empty(t.family().current().shape, np.uint8)
        array = followed(base, t._path)
        if array.size and np.may_share_memory(array, base):
            return array.strides, array.ctypes.data - base.ctypes.data
        return _row_major(t._node.shape), 0
    if t._family is None and t._node.op.name in _BEHIND:
        return _strides_behind(t._node), 0
    return _row_major(t._node.shape), 0


def _strides_behind(node: Expr) -> tuple[int, ...]:
    """Strides of a result that is an expanded or permuted value, as in torch."""
    source = np.empty(node.args[0].shape, np.uint8)
    return node.op.ref(source, **node.attributes()).strides


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = []
    step = 1
    for s in reversed(shape):
        steps.append(step)
        step *= max(s, 1)
    return tuple(reversed(steps))


def _stride(self: Tensor, dim: int | None = None) -> Any:
    """Distances in elements between neighbours along each dimension, or along one."""
    strides = _layout(self)[0]
    return strides if dim is None else strides[dim]


def _storage_offset(self: Tensor) -> int:
    """Where in its base's memory the tensor begins, in elements."""
    return _layout(self)[1]


def laid_out(gradient: Expr, owner: Tensor | None) -> Tensor:
    """A leaf's first gradient, in the leaf's own order of axes if that is not row-major."""
    if owner is None or not owner._path or is_row_major(owner):
        return Tensor(gradient)
    strides = _layout(owner)[0]
    order = tuple(sorted(range(len(strides)), key=lambda d: -strides[d]))
    base = Tensor(permute(gradient, order))
    back = tuple(order.index(d) for d in range(len(order)))
    return base.alias(permute(base.expr(), back), ((permute, (back,)),))


def is_row_major(t: Tensor) -> bool:
    """Whether the elements lie in order, as far as their order can be told."""
    shape = t._node.shape
    return t._node.size == 0 or all(
        have == want
        for have, want, n in zip(_layout(t)[0], _row_major(shape), shape, strict=True)
        if n != 1
    )


def _is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """Whether the elements lie in row-major order."""
    return not self._path or is_row_major(self)


def _contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its elements lie in row-major order, else a copy that does."""
    return self if _is_contiguous(self) else self.clone()  # type: ignore[attr-defined]


def _base(self: Tensor) -> Tensor | None:
    """The tensor that this one is a view of."""
    if not self._path:
        return None
    return base_of(self.family())


def _is_view(self: Tensor) -> bool:
    """Whether the tensor is a view of another."""
    return bool(self._path)


def _outside(t: Tensor) -> np.ndarray:
    """The base's memory, shared with the outside from now on."""
    return t.shared_memory()


def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """The elements at given places of the base's memory, as a tensor of their own.

    Parameters
    ----------
    input : Tensor
    size, stride : sequences of int
        Shape, and distance between neighbours along each dimension in elements.
    storage_offset : int, optional
        Place of the first element; by default the input's own.
    """
    base = _base(input)
    offset = _storage_offset(input) if storage_offset is None else storage_offset
    places = np.full(tuple(size), offset, np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * step).reshape((n, *(1,) * (len(tuple(size)) - axis - 1)))
    return (input if base is None else base).flatten()[from_array(places)]  # type: ignore[attr-defined]


def _data_ptr(self: Tensor) -> int:
    """The address of the first element."""
    return followed(_outside(self), self._path).ctypes.data if self.numel() else 0


class UntypedStorage:
    """The memory of a tensor and its views."""

    def __init__(self, t: Tensor) -> None:
        self._array = _outside(t)

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._array.ctypes.data

    def nbytes(self) -> int:
        """Bytes."""
        return self._array.nbytes

    size = nbytes


def _untyped_storage(self: Tensor) -> UntypedStorage:
    """The memory that the tensor lies in."""
    return UntypedStorage(self)


@contextmanager
def _unsafe_preserve_version_counter(tensor: Any) -> Iterator[None]:
    """Give the version counter of a tensor (or of several) its value back after the block."""
    listed = (tensor,) if isinstance(tensor, Tensor) else tuple(tensor)
    before = [t._version for t in listed]
    try:
        yield
    finally:
        for t, version in zip(listed, before, strict=True):
            storage: Storage = t.family().storage
            storage.quiet = storage.version - version


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Exchange the contents of two tensors; the Python objects stay."""
    if t1.here() is not t1 or t2.here() is not t2:
        raise RuntimeError(
            "swap_tensors: a tensor from outside cannot be exchanged inside a compiled or transformed "
            f"function (got shapes {tuple(t1.shape)} and {tuple(t2.shape)}); do it outside"
        )
    for name in ("_node", "_family", "_path", "_seen", "_slot", "_name"):
        first, second = getattr(t1, name), getattr(t2, name)
        setattr(t1, name, second)
        setattr(t2, name, first)
    for t in (t1, t2):
        if t._slot is not None:
            t._slot.owner = weakref.ref(t)
        family: Family | None = t._family
        if family is not None and not t._path:
            family.base = weakref.ref(t)


def _relabelling(name: str) -> Callable[..., Tensor]:
    """The method that makes a tensor a view of its own memory."""
    function = FUNCTIONS[name]

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.here() is not self:
            raise RuntimeError(
                f"{name}_: a tensor from outside keeps its shape inside a compiled or transformed function "
                f"(got one of shape {tuple(self.shape)}); use {name}, which returns a view"
            )
        if self.is_leaf and self.requires_grad:
            raise RuntimeError(
                f"{name}_: a leaf Variable that requires grad is being used in an in-place operation; use "
                f"{name}, which returns a view"
            )
        with grad_mode(True):
            _show(self, function(self, *args, **kwargs))
        return self

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__module__ = "symgrad"
    method.__doc__ = (
        f"`{name}` in place: the shape changes, the memory and other views of it do not."
    )
    return method


def _show(t: Tensor, view: Tensor) -> None:
    """Let a tensor take the place of a view of its own memory."""
    family = view.family()
    if family.base is not None and family.base() is t:
        family.base = None
    family.storage.step(family, False)
    t._node, t._family, t._path = view._node, family, view._path
    t._seen = family.storage.version


_METHODS: dict[str, Any] = {
    **{
        f"{name}_": _relabelling(name)
        for name in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")
    },
    "stride": _stride,
    "storage_offset": _storage_offset,
    "is_contiguous": _is_contiguous,
    "contiguous": _contiguous,
    "_is_view": _is_view,
    "as_strided": as_strided,
    "data_ptr": _data_ptr,
    "untyped_storage": _untyped_storage,
}


def attach() -> None:
    """Give `Tensor` the methods."""
    for name, member in _METHODS.items():
        setattr(Tensor, name, member)
    FUNCTIONS["as_strided"] = as_strided
    Tensor._base = property(_base)  # type: ignore[attr-defined]

"""Making tensors: from data, by filling, by counting. Start reading at `tensor`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.interface import call
from symgrad.op import STATE
from symgrad.ops import create, movement
from symgrad.storage import Storage
from symgrad.tensor import Tensor, from_array, plain_array

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_numpy", "full", "full_like",
    "linspace", "logspace", "ones", "ones_like", "scalar_tensor", "tensor", "zeros", "zeros_like",
]  # fmt: skip


def _array(data: Any, dtype: DType | None) -> np.ndarray:
    """A fresh array of data, with torch's default dtypes."""
    if isinstance(data, np.ndarray):
        data = plain_array(data)
    if isinstance(data, list | tuple) and _holds_tensors(data):
        data = _plain(data)
    try:
        array = np.array(data)
    except ValueError as error:
        raise ValueError(
            f"tensor: expected a sequence of equal lengths ({error}); pad the rows"
        ) from error
    if array.dtype.kind == "O" or array.dtype.kind in "USV":
        raise TypeError(
            f"tensor: cannot make a tensor of {type(data).__name__} with elements of type "
            f"{array.dtype}; give numbers"
        )
    if dtype is not None:
        kind = dtypes.as_dtype(dtype)
        if kind.category == 1 and array.dtype.kind in "iu" and not isinstance(data, np.ndarray):
            for extreme in (array.min(), array.max()) if array.size else ():
                kind.fitted(int(extreme))
        return np.array(array, kind.numpy)
    if not isinstance(data, np.ndarray | np.generic) and array.dtype.kind == "f":
        return array.astype(dtypes.get_default_dtype().numpy)
    if not isinstance(data, np.ndarray | np.generic) and array.dtype.kind == "c":
        return array.astype(dtypes.get_default_dtype().to_complex().numpy)
    if not array.size and isinstance(data, list | tuple):
        return array.astype(dtypes.get_default_dtype().numpy)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array


def _holds_tensors(data: Any) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, Tensor)


def _plain(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.look()
    return [_plain(d) for d in data]


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    name: str | None = None,
) -> Tensor:
    """A leaf tensor with a copy of the data.

    Parameters
    ----------
    data : number, nested sequence, NumPy array or Tensor
    dtype : DType, optional
        By default float data from Python become the default dtype (float32), NumPy's keep theirs.
    requires_grad : bool
        Whether derivatives are recorded.
    name : str, optional
        What formulas call it.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.tensor([1., 2.], requires_grad=True, name="x")
    tensor([1., 2.], requires_grad=True)
    """
    if isinstance(data, Tensor):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than tensor(sourceTensor).",
            UserWarning,
            stacklevel=2,
        )
        data = np.array(data.look())
    kind = None if dtype is None else dtypes.as_dtype(dtype)
    return from_array(np.array(_array(data, kind), order="C"), requires_grad, name)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The data as a tensor, sharing memory with NumPy arrays where the dtype allows."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)  # type: ignore[attr-defined]
    if isinstance(data, np.ndarray) and (
        dtype is None or dtypes.as_dtype(dtype).numpy == data.dtype
    ):
        return from_numpy(data)
    return tensor(data, dtype=dtype)


asarray = as_tensor


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of a NumPy array.

    Operations that read it run at once, since NumPy may change the memory later.

    Raises
    ------
    TypeError
        If it is not an ndarray of a supported dtype.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    array = plain_array(array)
    made = from_array(array)
    storage: Storage = made.family().storage
    storage.outside = array
    return made


def _shape(size: Sequence[Any]) -> tuple[int, ...]:
    if len(size) == 1 and isinstance(size[0], list | tuple):
        size = size[0]
    shape = tuple(int(s) for s in size)
    if any(s < 0 for s in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension (got {list(shape)})")
    return shape


def _filled(
    shape: tuple[int, ...], value: Any, dtype: DType, requires_grad: bool, name: str | None
) -> Tensor:
    if STATE.tracing and shape and not requires_grad and name is None:
        # Within a compiled function a formula and no array, which would be one of its inputs. But a
        # 0-d tensor is no number: rules treat numbers apart, and must not do so here alone.
        return Tensor(movement.full(value, shape, dtype))
    return from_array(np.full(shape, value, dtype.numpy), requires_grad, name)


def full(
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    name: str | None = None,
) -> Tensor:
    """A tensor of one value."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    kind = dtypes.of_number(fill_value) if dtype is None else dtypes.as_dtype(dtype)
    if kind.category == 1 and isinstance(fill_value, int):
        fill_value = kind.fitted(fill_value)
    return _filled(
        _shape([size] if isinstance(size, int) else size), fill_value, kind, requires_grad, name
    )


def zeros(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    name: str | None = None,
) -> Tensor:
    """A tensor of zeros."""
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return _filled(_shape(size), 0, kind, requires_grad, name)


def ones(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    name: str | None = None,
) -> Tensor:
    """A tensor of ones."""
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return _filled(_shape(size), 1, kind, requires_grad, name)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values are to be written later; they start as zeros."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad)


def full_like(
    x: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """A tensor of one value, shaped as another."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, requires_grad=requires_grad)


def zeros_like(
    x: Tensor, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Tensor:
    """Zeros, shaped as another tensor."""
    return full_like(x, 0, dtype=dtype, requires_grad=requires_grad)


def ones_like(
    x: Tensor, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Tensor:
    """Ones, shaped as another tensor."""
    return full_like(x, 1, dtype=dtype, requires_grad=requires_grad)


def empty_like(
    x: Tensor, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Tensor:
    """A tensor shaped as another, whose values are to be written later."""
    return full_like(x, 0, dtype=dtype, requires_grad=requires_grad)


def scalar_tensor(value: Any, *, dtype: Any = None) -> Tensor:
    """A 0-d tensor."""
    return tensor(value, dtype=dtype or dtypes.get_default_dtype())


def _counted(made: Tensor, requires_grad: bool) -> Tensor:
    return made.requires_grad_() if requires_grad else made


def arange(
    *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Numbers from start (0) to end (not included) in steps (1)."""
    return _counted(call(create.arange, *args, dtype=dtype), requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers evenly spaced from start to end, both included."""
    return _counted(call(create.linspace, start, end, steps, dtype=dtype), requires_grad)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` powers of a base, exponents evenly spaced from start to end."""
    return _counted(call(create.logspace, start, end, steps, base, dtype=dtype), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The identity matrix."""
    return _counted(call(create.eye, n, m, dtype=dtype), requires_grad)


def _new_like(function: Any) -> Any:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kwargs.setdefault("dtype", self.dtype)
        made: Tensor = function(*args, **kwargs)
        return made

    method.__doc__ = function.__doc__
    return method


for _name, _function in {
    "new_tensor": tensor, "new_full": full, "new_zeros": zeros, "new_ones": ones, "new_empty": empty,
}.items():  # fmt: skip
    setattr(Tensor, _name, _new_like(_function))

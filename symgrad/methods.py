"""The methods and operators of tensors: from the op registry, and those with a form of their own.

`attach` puts them all on `Tensor`. Those of the registry are the public functions of
`symgrad.interface`; the others stand here: indexing, conversions, writing. Start reading at `attach`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad import dtypes, ops
from symgrad.expr import Expr
from symgrad.interface import (
    ARRAYS,
    FUNCTIONS,
    NUMBERS,
    VIEWS,
    call,
    in_place,
    make_in_place,
    noted,
    operator_of,
    public_names,
    unwrap,
    view_call,
)
from symgrad.op import STATE, cast_to, constant
from symgrad.ops import index
from symgrad.ops.alias import clone
from symgrad.ops.arithmetic import where
from symgrad.storage import SLICES, Note
from symgrad.tensor import Tensor


def _general(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, (Tensor, *NUMBERS, *ARRAYS)):
            return NotImplemented
        function = FUNCTIONS[name]
        return function(other, self) if swapped else function(self, other)

    return method


def _augmented(source: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Tensor:
        return in_place(source, self, other)

    return method


_ITEM_NOTES = {
    name: Note(name, False) for name in ("select", "slice", "unsqueeze", "alias", "index")
}


def _item_note(key: Any) -> Note:
    """The note of an indexing: torch applies the parts of a key one by one, and the last names it."""
    if type(key) is int:
        return _ITEM_NOTES["select"]
    last = "alias"
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, slice):
            last = "slice" if k != slice(None) or last == "alias" else last
        elif k is None:
            last = "unsqueeze"
        elif isinstance(k, int | np.integer) and not isinstance(k, bool):
            last = "select"
        elif k is not Ellipsis:
            return _ITEM_NOTES["index"]
    return _ITEM_NOTES[last]


def getitem(self: Tensor, key: Any) -> Any:
    """torch's indexing."""
    nodes = key if type(key) is int else _key(key)
    result = view_call(index.getitem, self, nodes)
    return noted(result, _item_note(nodes)) if result._node.requires_grad else result


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """torch's indexed assignment."""
    self.check_writable()
    node = self.expr()
    new = unwrap(value)
    if isinstance(new, Expr):
        new = cast_to(new, node.dtype)
    noted(self.write(index.setitem(node, _key(key), new)), SLICES)


def _key(key: Any) -> Any:
    if isinstance(key, Tensor):
        return key.expr()
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    if isinstance(key, slice):
        parts = (key.start, key.stop, key.step)
        return slice(*[int(p) if isinstance(p, Tensor) else p for p in parts])
    if isinstance(key, list):
        return [_key(k) for k in key]
    return key


def attach() -> None:
    """Give `Tensor` its methods and operators."""
    table = public_names()
    skip = {"tensor", "arange", "linspace", "eye", "full", "zeros", "ones", "meshgrid", "where"}
    for name, source in table.items():
        if name in skip or hasattr(Tensor, name):
            continue
        setattr(Tensor, name, FUNCTIONS[name])
        twin = f"{name}_"
        # Twins of view functions change the shape, not the memory: `symgrad.autograd.memory`.
        if not (hasattr(Tensor, twin) or name.endswith("_") or name in VIEWS):
            setattr(Tensor, twin, make_in_place(twin, source))
    binary = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow",
        "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    }  # fmt: skip
    for word, name in binary.items():
        setattr(Tensor, f"__{word}__", operator_of(table[name]))
    for word in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Tensor, f"__r{word}__", operator_of(table[binary[word]], swapped=True))
        setattr(Tensor, f"__i{word}__", _augmented(table[binary[word]]))
    general = {
        "matmul": "matmul", "floordiv": "floor_divide", "mod": "remainder",
        "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    }  # fmt: skip
    for word, name in general.items():
        if name in table:
            setattr(Tensor, f"__{word}__", _general(name))
            setattr(Tensor, f"__r{word}__", _general(name, swapped=True))
            setattr(Tensor, f"__i{word}__", _augmented(table[name]))
    for word, name in {
        "neg": "neg",
        "abs": "abs",
        "invert": "bitwise_not",
        "pos": "positive",
    }.items():
        if name in table:
            setattr(Tensor, f"__{word}__", FUNCTIONS[name])
    Tensor.__getitem__ = getitem  # type: ignore[method-assign]
    Tensor.__setitem__ = setitem
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, getter in _PROPERTIES.items():
        setattr(Tensor, name, property(getter))


# -- methods with a form of their own ---------------------------------------------------


def _to(
    self: Tensor,
    *args: Any,
    dtype: Any = None,
    other: Tensor | None = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """The tensor in another dtype: `to(dtype)` or `to(other)`; devices are accepted and ignored.

    With `copy` the result never shares memory with the tensor.
    """
    wanted = dtype if other is None else other.dtype
    flags = [a for a in args if isinstance(a, bool)]  # non_blocking, copy
    for a in args:
        if isinstance(a, Tensor):
            wanted = a.dtype
        elif not isinstance(a, str | bool):
            wanted = a
    if wanted is None or dtypes.as_dtype(wanted) is self.dtype:
        return _clone(self) if copy or flags[1:] == [True] else self
    kind = dtypes.as_dtype(wanted)
    if self.dtype.is_complex and 0 < kind.category < 3:
        warnings.warn(
            "Casting complex values to real discards the imaginary part", UserWarning, stacklevel=2
        )
    return call(lambda x: cast_to(x, kind), self)


def _converter(dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return _to(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def _clone(self: Tensor) -> Tensor:
    """A copy with its own memory; derivatives flow through."""
    return call(ops.alias.clone, self)


def _copy(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Write the values of `source` into this tensor."""
    node = unwrap(source)
    if not isinstance(node, Expr):
        node = full_like(self.expr(), node)
    return _overwritten(self, cast_to(node, self.dtype), _COPY)


_COPY, _FILL, _ZERO = Note("copy", False), Note("fill", False), Note("zero", False)


def _overwritten(t: Tensor, new: Expr, note: Note) -> Tensor:
    """Write a value that does not depend on the old one, which keeps a gradient of zeros."""
    old = t.expr()
    if STATE.grad and old.requires_grad:
        t.check_writable()
        new = where(constant(False, dtypes.bool_), old, new)
        new.meta = note
    elif new.requires_grad and STATE.grad:
        new = clone(new)
        new.meta = note
    return t.write(new)


def full_like(x: Expr, value: float) -> Expr:
    """A constant of the shape and dtype of `x`."""
    return ops.movement.full(value, x.shape, x.dtype)


def _fill(self: Tensor, value: Any) -> Tensor:
    """Write one value into every element."""
    if isinstance(value, Tensor):
        return _overwritten(self, cast_to(value.expr(), self.dtype), _FILL)
    return _overwritten(self, full_like(self.expr(), value), _FILL)


def _zero(self: Tensor) -> Tensor:
    """Write zeros."""
    return _overwritten(self, full_like(self.expr(), 0), _ZERO)


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype of another."""
    return _to(self, other.dtype)


def _is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return self.shape == other.shape


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are equal within ``atol + rtol * abs(other)``."""
    close = FUNCTIONS["isclose"](input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return bool(FUNCTIONS["all"](close))


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements."""
    return input.shape == other.shape and bool(np.array_equal(input.look(), other.look()))


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return input.is_complex()


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is floating."""
    return input.is_floating_point()


def is_conj(input: Tensor) -> bool:
    """Whether the tensor shows the conjugate of its memory."""
    return input.is_conj()


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor in memory of its own if that holds the conjugate."""
    return input.resolve_conj()


for _function in (allclose, equal, is_complex, is_floating_point, is_conj, resolve_conj):
    FUNCTIONS[_function.__name__] = _function


def _same(self: Tensor, *_: Any, **__: Any) -> Tensor:
    """The tensor itself: there is one device."""
    return self


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, else `other`."""
    return FUNCTIONS["where"](condition, self, other)


_METHODS: dict[str, Callable[..., Any]] = {
    "to": _to,
    "type": _to,
    "double": _converter(dtypes.float64),
    "float": _converter(dtypes.float32),
    "cfloat": _converter(dtypes.complex64),
    "cdouble": _converter(dtypes.complex128),
    "long": _converter(dtypes.int64),
    "int": _converter(dtypes.int32),
    "short": _converter(dtypes.int16),
    "bool": _converter(dtypes.bool_),
    "clone": _clone,
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _zero,
    "type_as": _type_as,
    "is_same_size": _is_same_size,
    "cpu": _same,
    "allclose": allclose,
    "equal": equal,
    "where": _where,
}


def _matrix_transpose(x: Tensor) -> Any:
    return FUNCTIONS["transpose"](x, -2, -1)


def _reversed_axes(x: Tensor) -> Any:
    return FUNCTIONS["permute"](x, tuple(range(x.ndim))[::-1])


def _conjugate_transpose(x: Tensor) -> Any:
    return FUNCTIONS["adjoint"](x)


def _real(x: Tensor) -> Any:
    return FUNCTIONS["real"](x) if x.is_complex() else x


_PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "T": _reversed_axes,
    "mT": _matrix_transpose,
    "H": _conjugate_transpose,
    "mH": _conjugate_transpose,
    "real": _real,
    "imag": FUNCTIONS["imag"],
}

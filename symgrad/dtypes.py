"""Element types and torch's promotion rules.

One structure: `DType`, a value object with the NumPy type, the LLVM scalar kind and its place in
the promotion order. Start reading at `result_type`.

Promotion follows torch: operands fall in three classes (tensors with dimensions, 0-d tensors,
Python numbers); a lower class changes the result only if its category (bool < int < float <
complex) is higher than that of the classes above it, and keeps their precision when it does.
"""

from __future__ import annotations

import numpy as np

BOOL, INT, FLOAT, COMPLEX = 0, 1, 2, 3


class DType:
    """An element type.

    Attributes
    ----------
    name : str
    numpy : numpy.dtype
    kind : str
        LLVM scalar type in registers (`i1` for bool, which memory stores as one byte); of complex
        numbers that of one part, since kernels only see the parts.
    category : int
        0 bool, 1 integer, 2 floating, 3 complex.
    itemsize : int
        Bytes per element.
    """

    __slots__ = ("category", "code", "itemsize", "kind", "name", "numpy")

    def __init__(self, code: int, name: str, kind: str, category: int) -> None:
        self.code = code
        self.name = name
        self.numpy = np.dtype(name)
        self.kind = kind
        self.category = category
        self.itemsize = self.numpy.itemsize

    def __repr__(self) -> str:
        return f"symgrad.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (by_name, (self.name,))

    @property
    def is_floating_point(self) -> bool:
        return self.category == FLOAT

    @property
    def is_complex(self) -> bool:
        return self.category == COMPLEX

    def wrapped(self, value: int) -> int:
        """A Python integer as one of this integer dtype, modulo its range as in C.

        Raises
        ------
        RuntimeError
            If no machine integer holds it.
        """
        if not -(2**63) <= value < 2**64:
            raise RuntimeError(
                f"value cannot be converted to type {self.name} without overflow (got {value}); use a "
                "floating dtype"
            )
        bits = 8 * self.itemsize
        low = 0 if self.numpy.kind == "u" else 1 << bits - 1
        return (value + low) % (1 << bits) - low

    def fitted(self, value: int) -> int:
        """`wrapped`, for a value that is to be stored: not beyond the largest, negative ones either.

        Raises
        ------
        RuntimeError
            In torch's words.
        """
        most = np.iinfo(self.numpy).max
        if not -most - 1 <= value <= most:
            raise RuntimeError(
                f"value cannot be converted to type {self.name} without overflow (got {value}); use a "
                "wider dtype"
            )
        return self.wrapped(value)

    def to_real(self) -> DType:
        """The dtype of the real part; of real dtypes the dtype itself."""
        return _PART.get(self, self)

    def to_complex(self) -> DType:
        """The complex dtype of the same precision; that of the default dtype for integers."""
        if self.category == COMPLEX:
            return self
        return (
            complex64 if (self if self.category == FLOAT else _default) is float32 else complex128
        )


bool_ = DType(0, "bool", "i1", BOOL)
uint8 = DType(1, "uint8", "i8", INT)
int8 = DType(2, "int8", "i8", INT)
int16 = DType(3, "int16", "i16", INT)
int32 = DType(4, "int32", "i32", INT)
int64 = DType(5, "int64", "i64", INT)
float32 = DType(6, "float32", "float", FLOAT)
float64 = DType(7, "float64", "double", FLOAT)
complex64 = DType(8, "complex64", "float", COMPLEX)
complex128 = DType(9, "complex128", "double", COMPLEX)

ALL = (bool_, uint8, int8, int16, int32, int64, float32, float64, complex64, complex128)
_PART = {complex64: float32, complex128: float64}
_BY_NUMPY = {d.numpy: d for d in ALL}
_BY_NAME = {d.name: d for d in ALL}
_PAIR: dict[tuple[DType, DType], DType] = {}

_default = float32


def by_name(name: str) -> DType:
    """The dtype called `name`."""
    return _BY_NAME[name]


def get_default_dtype() -> DType:
    """The dtype of a tensor made from Python floats; float32 unless changed."""
    return _default


def set_default_dtype(dtype: DType) -> None:
    """Change the dtype that Python floats get.

    Raises
    ------
    TypeError
        If `dtype` is not float32 or float64.
    """
    global _default
    if not isinstance(dtype, DType) or dtype.category != FLOAT:
        raise TypeError(f"set_default_dtype: needs float32 or float64 (got {dtype!r})")
    _default = dtype


def from_numpy(dtype: np.dtype) -> DType:
    """The dtype of a NumPy dtype.

    Raises
    ------
    TypeError
        For element types that symgrad does not have.
    """
    found = _BY_NUMPY.get(dtype)
    if found is None:
        names = ", ".join(d.name for d in ALL)
        raise TypeError(f"dtype: {dtype} has no counterpart (have {names}); convert with .astype")
    return found


def as_dtype(dtype: object) -> DType:
    """A `DType` from a DType, a NumPy dtype or type, or Python's bool, int, float, complex."""
    if isinstance(dtype, DType):
        return dtype
    if dtype is float:
        return float64
    if dtype is int:
        return int64
    if dtype is bool:
        return bool_
    if dtype is complex:
        return complex128
    try:
        return from_numpy(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError as error:
        raise TypeError(
            f"dtype: needs a symgrad dtype such as symgrad.float64 (got {dtype!r})"
        ) from error


def promote_types(a: DType, b: DType) -> DType:
    """The smallest dtype that holds both, as torch.promote_types."""
    if a is b:
        return a
    found = _PAIR.get((a, b))
    if found is None:
        if a.category != b.category:
            low, high = (a, b) if a.category < b.category else (b, a)
            found = complex128 if low is float64 else high
        elif {a, b} == {uint8, int8}:
            found = int16
        else:
            found = a if a.code > b.code else b
        _PAIR[a, b] = found
    return found


def of_number(value: bool | int | float | complex) -> DType:
    """The dtype that a Python number brings to a promotion."""
    if isinstance(value, bool | np.bool_):
        return bool_
    if isinstance(value, int | np.integer):
        return int64
    if isinstance(value, complex | np.complexfloating):
        return _default.to_complex()
    return _default


def result_type(
    dimensioned: DType | None, zero_dimensional: DType | None, number: DType | None
) -> DType:
    """Combine the promoted dtypes of the three operand classes, any of which may be absent."""
    result = dimensioned
    for lower in (zero_dimensional, number):
        if lower is None:
            continue
        if result is None or lower.category > result.category:
            keeps = result is not None and result.category == FLOAT and lower.category == COMPLEX
            result = result.to_complex() if keeps and result is not None else lower
    if result is None:
        raise TypeError("result_type: needs at least one operand")
    return result

"""Complex numbers put together and taken apart.

Complex nodes are recorded like others; before scheduling each becomes a pair of real ones
(`symgrad.schedule.complex_parts`), so the ops here reach no kernel: they state only their ``parts``.
Gradients follow torch: that of a real function by z is its derivative by the real part plus i times
that by the imaginary part. Whatever is not holomorphic is written with `real`, `imag` and `complex`,
whose adjoints carry that convention. ``placed(base, value)`` is the base after a write through the
view that the op makes, ``laid(array)`` that view's memory where `ref` computes. Start reading at `complex`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import Elementwise, Movement, broadcast_shapes, composite, op
from symgrad.op import CONSTANT, cast_to, constant, record
from symgrad.ops.arithmetic import cast, div, eq, where
from symgrad.ops.choice import sign
from symgrad.ops.movement import full, join_axis, narrow_step, reshape
from symgrad.ops.transcendental import atan2, cos, hypot, sin
from symgrad.sample import Case, T

Z = T(3, make=lambda rng, shape: rng.normal(size=shape) + 1j * rng.normal(size=shape))
"""A complex argument of samples."""


class Part(Elementwise):
    """An op on complex numbers that only rearranges their parts."""

    accepts = "complex"
    linear = "joint"
    parameters = ("input",)
    samples = (Case(Z, smooth=False),)

    @staticmethod
    def lower(b: Any, *args: Any) -> Any:
        raise TypeError("complex nodes are taken apart before code is made")


@op
class complex(Part):
    """The complex numbers real + i * imag."""

    arity = 2
    parameters = ("real", "imag")
    samples = (Case(T(2, 3), T(2, 3), smooth=False), Case(T(4, 1), T(3), smooth=False))
    errors = (
        Case(
            T(2, dtype="int"),
            T(2, dtype="int"),
            match="Expected both inputs to be Half, Float or Double",
        ),
    )

    def __call__(self, real: Expr, imag: Expr) -> Expr:  # type: ignore[override]
        for x in (real, imag):
            if not isinstance(x, Expr) or x.dtype.category != 2:
                found = x.dtype.name if isinstance(x, Expr) else type(x).__name__
                raise RuntimeError(
                    "complex: Expected both inputs to be Half, Float or Double tensors but got "
                    f"{found}; convert with .to(symgrad.float64)"
                )
        if real.dtype is not imag.dtype:
            raise RuntimeError(
                f"complex: Expected object of scalar type {real.dtype!r} but got scalar type "
                f"{imag.dtype!r} for second argument; convert one with .to"
            )
        shape = broadcast_shapes("complex", (real.shape, imag.shape))
        return record(self, (real, imag), (), shape, real.dtype.to_complex())  # type: ignore[arg-type]

    def ref(real: np.ndarray, imag: np.ndarray) -> Any:
        return np.stack([real + 0.0 * imag, imag + 0.0 * real], -1).view(np.result_type(real, 1j))[
            ..., 0
        ]

    def sympy(sp: Any, real: Any, imag: Any) -> Any:
        return real + sp.I * imag

    def adjoint(g: Expr, re: Expr, im: Expr) -> Any:
        return real(g), imag(g)

    def parts(real: Expr, imag: Expr) -> Any:
        return real, imag


@op
class real(Part):
    """The real part; a real tensor is its own."""

    def __call__(self, input: Expr) -> Expr:  # type: ignore[override]
        if not input.dtype.is_complex:
            return input
        return record(self, (input,), (), input.shape, input.dtype.to_real())  # type: ignore[arg-type]

    def ref(x: np.ndarray) -> Any:
        return x.real

    def sympy(sp: Any, x: Any) -> Any:
        return sp.re(x)

    def adjoint(g: Expr, x: Expr) -> Any:
        return (cast(g, dtype=x.dtype),)

    def placed(base: Expr, value: Expr) -> Expr:
        return complex(value, imag(base))

    def parts(z: Any) -> Any:
        return z[0]


@op
class imag(Part):
    """The imaginary part of a complex tensor."""

    errors = (Case(T(2), match="imag is not implemented for tensors with non-complex dtypes"),)

    def __call__(self, input: Expr) -> Expr:  # type: ignore[override]
        if not input.dtype.is_complex:
            raise RuntimeError(
                "imag is not implemented for tensors with non-complex dtypes "
                f"(got {input.dtype!r}); it is 0 for real tensors"
            )
        return record(self, (input,), (), input.shape, input.dtype.to_real())  # type: ignore[arg-type]

    def ref(x: np.ndarray) -> Any:
        return x.imag

    def sympy(sp: Any, x: Any) -> Any:
        return sp.im(x)

    def adjoint(g: Expr, x: Expr) -> Any:
        return (complex(full(0.0, g.shape, g.dtype), g),)

    def placed(base: Expr, value: Expr) -> Expr:
        return complex(real(base), value)

    def parts(z: Any) -> Any:
        return z[1]


@op
class conj(Part):
    """The complex conjugate; a real tensor is its own."""

    def __call__(self, input: Expr) -> Expr:  # type: ignore[override]
        if not input.dtype.is_complex:
            return input
        if input.op is conj and input.args:
            return input.args[0]
        if input.op is CONSTANT and input.attrs[0] is not None:
            return constant(input.attrs[0].conjugate(), input.dtype, fixed=True)
        return record(self, (input,), (), input.shape, input.dtype)  # type: ignore[arg-type]

    ref = np.conj

    def laid(x: np.ndarray) -> Any:
        return x

    def sympy(sp: Any, x: Any) -> Any:
        return sp.conjugate(x)

    def adjoint(g: Expr, x: Expr) -> Any:
        return (conj(g),)

    def placed(base: Expr, value: Expr) -> Expr:
        return conj(value)

    def parts(z: Any) -> Any:
        return z[0], -z[1]


class Layout(Movement):
    """The parts of complex numbers as a last axis of size 2, and back."""

    attributes = ()

    @staticmethod
    def index(i: Any, x: Expr) -> Any:
        raise TypeError("complex nodes are taken apart before code is made")

    @staticmethod
    def batched(count: int, x: Expr) -> Any:
        return view_as_real(x) if x.dtype.is_complex else view_as_complex(x)

    @staticmethod
    def sympy(sp: Any, x: Any) -> Any:
        return sp.Function("view")(x)


@op
class view_as_real(Layout):
    """A complex tensor as real numbers with a last axis (real, imaginary)."""

    samples = (Case(Z, smooth=False),)
    errors = (Case(T(2), match="view_as_real is only supported for complex tensors"),)

    def __call__(self, input: Expr) -> Expr:  # type: ignore[override]
        if not input.dtype.is_complex:
            raise RuntimeError(
                f"view_as_real is only supported for complex tensors (got {input.dtype!r}); "
                "use symgrad.complex first"
            )
        return record(self, (input,), (), (*input.shape, 2), input.dtype.to_real())  # type: ignore[arg-type]

    def ref(x: np.ndarray) -> Any:
        return x.reshape(*x.shape, 1).view(np.float64 if x.dtype == np.complex128 else np.float32)

    def adjoint(g: Expr, x: Expr) -> Any:
        return (view_as_complex(g),)

    def placed(base: Expr, value: Expr) -> Expr:
        return view_as_complex(value)

    def parts(z: Any) -> Any:
        shape = (*z[0].shape, 1)
        return join_axis(reshape(z[0], shape), reshape(z[1], shape), dim=len(shape) - 1)


@op
class view_as_complex(Layout):
    """Real numbers whose last axis is (real, imaginary) as a complex tensor."""

    samples = (Case(T(3, 2), smooth=False),)
    errors = (
        Case(T(3), match="Tensor must have a last dimension of size 2"),
        Case(T(3, 2, dtype="int"), match="view_as_complex is only supported for"),
    )

    def __call__(self, input: Expr) -> Expr:  # type: ignore[override]
        if input.dtype.category != 2:
            raise RuntimeError(
                "view_as_complex is only supported for half, float and double tensors, but got a "
                f"tensor of scalar type: {input.dtype.name}; convert with .to(symgrad.float64)"
            )
        if not input.shape or input.shape[-1] != 2:
            raise RuntimeError(
                f"view_as_complex: Tensor must have a last dimension of size 2 (got {input.shape}); "
                "stack real and imaginary parts on a last axis"
            )
        return record(self, (input,), (), input.shape[:-1], input.dtype.to_complex())  # type: ignore[arg-type]

    def ref(x: np.ndarray) -> Any:
        kind = np.complex128 if x.dtype == np.float64 else np.complex64
        return np.ascontiguousarray(x).view(kind)[..., 0]

    def adjoint(g: Expr, x: Expr) -> Any:
        return (view_as_real(g),)

    def placed(base: Expr, value: Expr) -> Expr:
        return view_as_real(value)

    def parts(x: Expr) -> Any:
        return _at(x, 0), _at(x, 1)


def _at(x: Expr, place: int) -> Expr:
    """The elements at one place of the last axis."""
    ones = (1,) * x.ndim
    starts = (*(0,) * (x.ndim - 1), place)
    picked = narrow_step(x, starts=starts, steps=ones, counts=(*x.shape[:-1], 1))
    return reshape(picked, x.shape[:-1])


# -- composites -------------------------------------------------------------------------


@composite(ref=np.angle, samples=(Case(Z, smooth=False), Case(T(4), smooth=False)))
def angle(input: Expr) -> Expr:
    """The argument of complex numbers, with derivative 0 at 0; of real ones 0 or pi."""
    if input.dtype.is_complex:
        return atan2(imag(input), real(input))
    x = input if input.dtype.category == 2 else cast_to(input, dtypes.get_default_dtype())
    return where(eq(x, x), where(x < 0.0, constant(math.pi, x.dtype), constant(0.0, x.dtype)), x)


@composite(ref=np.isreal, samples=(Case(Z), Case(T(3))))
def isreal(input: Expr) -> Expr:
    """Whether the imaginary part is 0."""
    if input.dtype.is_complex:
        return eq(imag(input), 0.0)  # type: ignore[no-any-return]
    return full(True, input.shape, dtypes.bool_)


@composite(
    ref=lambda magnitude, angle: magnitude * np.exp(1j * angle),
    samples=(Case(T(3, lo=0.5), T(3), smooth=False),),
)
def polar(abs: Expr, angle: Expr) -> Expr:
    """Complex numbers from magnitude and angle."""
    return complex(abs * cos(angle), abs * sin(angle))


@composite(ref=np.sign, samples=(Case(Z, smooth=False), Case(T(5), smooth=False)))
def sgn(input: Expr) -> Expr:
    """z / |z|, 0 at 0 where the derivative is 0 too; the sign of real numbers."""
    if not input.dtype.is_complex:
        return sign(input)
    x, y = real(input), imag(input)
    size = hypot(x, y)
    origin = eq(size, 0.0)
    divisor = where(origin, 1.0, size)
    return complex(where(origin, 0.0, div(x, divisor)), where(origin, 0.0, div(y, divisor)))


@composite(ref=np.conj, samples=(Case(Z, smooth=False), Case(T(3))))
def conj_physical(input: Expr) -> Expr:
    """The complex conjugate, in memory of its own."""
    return conj(input)

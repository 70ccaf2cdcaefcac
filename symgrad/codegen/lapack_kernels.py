"""Kernels that call LAPACK and BLAS, as LLVM IR: one per routine and element kind.

One table, `BODIES`: routine -> the function that emits what is done for each matrix of a batch.

Matrices here are row-major, LAPACK's are column-major: memory read the other way is the transposed
matrix. Triangular solves and the QR and Cholesky factorisations are asked for in transposed form,
on the memory as it is. Where the transposed problem would choose other pivots or signs than NumPy
does (LU, eigenvectors, singular vectors) the matrix is turned into scratch memory first.
Start reading at `emit_kernel`, then `_solve`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.codegen.entry_body import ONE, ZERO
from symgrad.codegen.ir import Module, Val, constant
from symgrad.codegen.lapack_body import Kernel
from symgrad.codegen.positions_kernel import check_positions


def _potrf(f: Kernel) -> None:
    a, out, n = f.buffer(), f.buffer(), f.size()
    order, upper = f.integer(n), f.letter("U")
    area = f.mul(n, n)
    zero = constant(f.element, 0.0)

    def body(number: Val, scratch: Val) -> None:
        start = f.mul(number, area)
        source, target = f.element_at(a, start), f.element_at(out, start)

        def row(i: Val) -> None:
            at, count = f.mul(i, n), f.add(i, ONE)
            f.copy(f.element_at(target, at), f.element_at(source, at), count)
            f.fill(f.element_at(target, f.add(at, count)), zero, f.sub(n, count))

        f.repeat(n, row)
        f.fortran("potrf", upper, order, target, order, f.info)
        f.report(f.failed())

    f.each(body)


def _trsm(f: Kernel) -> None:
    """X' A' = B', some rows of X' at a time."""
    a, b, out, n, k, lower, diagonal = _triangular_words(f)
    width = f.size()
    side, plain = f.letter("R"), f.letter("N")
    order, columns, one = f.integer(n), f.integer(k), f.one()
    area, size = f.mul(n, n), f.mul(n, k)
    parts = f.udiv(f.add(k, f.sub(width, ONE)), width)
    rows = f.alloca("i32", align=4)

    def body(number: Val, scratch: Val) -> None:
        which = f.udiv(number, parts)
        first = f.mul(f.sub(number, f.mul(which, parts)), width)
        left = f.sub(k, first)
        count = f.select(f.icmp("ult", left, width), left, width)
        f.store(f.cast("trunc", count, "i32"), rows)
        matrix = f.element_at(a, f.mul(which, area))
        at = f.add(f.mul(which, size), first)
        source, target = f.element_at(b, at), f.element_at(out, at)

        def row(i: Val) -> None:
            place = f.mul(i, k)
            f.copy(f.element_at(target, place), f.element_at(source, place), count)

        f.repeat(n, row)
        f.fortran(
            "trsm", side, lower, plain, diagonal, rows, order, one, matrix, order, target, columns
        )

    f.each(body)


def _trsv(f: Kernel) -> None:
    a, b, out, n, _, lower, diagonal = _triangular_words(f)
    turned = f.letter("T")
    order, step = f.integer(n), f.integer(1)
    area = f.mul(n, n)

    def body(number: Val, scratch: Val) -> None:
        matrix = f.element_at(a, f.mul(number, area))
        at = f.mul(number, n)
        target = f.element_at(out, at)
        f.copy(target, f.element_at(b, at), n)
        f.fortran("trsv", lower, turned, diagonal, order, matrix, order, target, step)

    f.each(body)


def _triangular_words(f: Kernel) -> tuple[Val, ...]:
    a, b, out, n, k = f.buffer(), f.buffer(), f.buffer(), f.size(), f.size()
    return a, b, out, n, k, f.letter(f.size()), f.letter(f.size())


def _factor(f: Kernel, source: Val, scratch: Val, pivots: Val, n: Val, order: Val) -> None:
    """LU of a square matrix, in column-major order in scratch memory."""
    f.turn_in(source, scratch, n, n)
    f.fortran("getrf", order, order, scratch, order, pivots, f.info)


def _exchange(f: Kernel, target: Val, pivots: Val, n: Val, k: Val) -> None:
    """Exchange rows as the pivots say, first to last."""

    def row(i: Val) -> None:
        pivot = f.cast("sext", f.load(f.gep(pivots, i, "i32"), "i32"), "i64")
        first = f.element_at(target, f.mul(i, k))
        second = f.element_at(target, f.mul(f.sub(pivot, ONE), k))

        def swap(j: Val) -> None:
            one, two = f.element_at(first, j), f.element_at(second, j)
            kept = f.load(one, f.element)
            f.store(f.load(two, f.element), one)
            f.store(kept, two)

        f.when(f.icmp("ne", first, second), lambda: f.repeat(k, swap))

    f.repeat(n, row)


class _Substitution:
    """X' U' L' = (P' B)', in the memory of B."""

    def __init__(self, f: Kernel, n: Val, order: Val, k: Val) -> None:
        self.f, self.n, self.k = f, n, k
        self.side, self.turned = f.letter("R"), f.letter("T")
        self.low, self.high = f.letter("L"), f.letter("U")
        self.unit, self.general = f.letter("U"), f.letter("N")
        self.order, self.columns, self.one = order, f.integer(k), f.one()

    def run(self, factors: Val, pivots: Val, target: Val) -> None:
        f = self.f
        _exchange(f, target, pivots, self.n, self.k)
        for triangle, diagonal in ((self.low, self.unit), (self.high, self.general)):
            f.fortran(
                "trsm", self.side, triangle, self.turned, diagonal, self.columns, self.order,
                self.one, factors, self.order, target, self.columns,
            )  # fmt: skip


def _set_identity(f: Kernel, target: Val, n: Val) -> None:
    f.fill(target, constant(f.element, 0.0), f.mul(n, n))
    one, step = constant(f.element, 1.0), f.add(n, ONE)
    f.repeat(n, lambda i: f.store(one, f.element_at(target, f.mul(i, step))))


def _solve(f: Kernel) -> None:
    a, b, out, n, k, pivots_at = (
        f.buffer(), f.buffer(), f.buffer(), f.size(), f.size(), f.size()
    )  # fmt: skip
    order = f.integer(n)
    plain, single = f.letter("N"), f.integer(1)
    substitution = _Substitution(f, n, order, k)
    area, size = f.mul(n, n), f.mul(n, k)

    def body(number: Val, scratch: Val) -> None:
        pivots = f.gep(scratch, pivots_at, "i8")
        _factor(f, f.element_at(a, f.mul(number, area)), scratch, pivots, n, order)
        f.report(f.failed())
        at = f.mul(number, size)
        target = f.element_at(out, at)
        f.copy(target, f.element_at(b, at), size)

        def one_column() -> None:
            f.fortran("getrs", plain, order, single, scratch, order, pivots, target, order, f.info)

        f.either(
            f.icmp("eq", k, ONE),
            one_column,
            lambda: substitution.run(scratch, pivots, target),
        )

    f.each(body)


def _inverse(f: Kernel) -> None:
    """A X = I; `check` is 0 where infinities stand for a missing inverse."""
    a, out, n, pivots_at, check = f.buffer(), f.buffer(), f.size(), f.size(), f.size()
    order = f.integer(n)
    substitution = _Substitution(f, n, order, n)
    area = f.mul(n, n)

    def body(number: Val, scratch: Val) -> None:
        pivots = f.gep(scratch, pivots_at, "i8")
        at = f.mul(number, area)
        target = f.element_at(out, at)
        _factor(f, f.element_at(a, at), scratch, pivots, n, order)
        failed = f.failed()
        f.report(f.and_(failed, f.icmp("ne", check, ZERO)))

        def invert() -> None:
            _set_identity(f, target, n)
            substitution.run(scratch, pivots, target)

        infinity = constant(f.element, float("inf"))
        f.either(failed, lambda: f.fill(target, infinity, area), invert)

    f.each(body)


def _along_diagonal(
    f: Kernel, n: Val, factors: Val, pivots: Val, step: Callable[[Val], None]
) -> Val:
    """Run `step(u)` for the diagonal of U; gives the sign of P."""
    sign = f.alloca("double", align=8)
    f.store(constant("double", 1.0), sign)
    stride = f.add(n, ONE)

    def one(i: Val) -> None:
        pivot = f.cast("sext", f.load(f.gep(pivots, i, "i32"), "i32"), "i64")
        before = f.load(sign, "double")
        moved = f.icmp("ne", pivot, f.add(i, ONE))
        f.store(f.select(moved, f.fneg(before), before), sign)
        step(f.load(f.element_at(factors, f.mul(i, stride)), "double"))

    f.repeat(n, one)
    return f.load(sign, "double")


class _Product:
    """The product of the diagonal, its exponent kept apart: no step of it overflows."""

    def __init__(self, f: Kernel) -> None:
        self.f = f
        self.exponent, self.part = f.alloca("i32", align=4), f.alloca("i32", align=4)
        self.mantissa = f.alloca("double", align=8)

    def value(self, n: Val, factors: Val, pivots: Val) -> Val:
        """The determinant."""
        f = self.f
        f.store(constant("double", 1.0), self.mantissa)
        f.store(constant("i32", 0), self.exponent)
        sign = _along_diagonal(f, n, factors, pivots, self._step)
        signed = f.fmul(sign, f.load(self.mantissa, "double"))
        return f.invoke("ldexp", "double", [signed, f.load(self.exponent, "i32")])

    def _step(self, u: Val) -> None:
        f = self.f
        product = f.fmul(f.load(self.mantissa, "double"), self._split(u))
        f.store(self._split(product), self.mantissa)

    def _split(self, x: Val) -> Val:
        f = self.f
        mantissa = f.invoke("frexp", "double", [x, self.part])
        f.store(f.add(f.load(self.exponent, "i32"), f.load(self.part, "i32")), self.exponent)
        return mantissa


def _det(f: Kernel) -> None:
    a, out, n, pivots_at = f.buffer(), f.buffer(), f.size(), f.size()
    order, area, product = f.integer(n), f.mul(n, n), _Product(f)

    def body(number: Val, scratch: Val) -> None:
        pivots = f.gep(scratch, pivots_at, "i8")
        _factor(f, f.outside_at(a, f.mul(number, area)), scratch, pivots, n, order)
        singular = f.failed()
        value = product.value(n, scratch, pivots)
        zero = constant("double", 0.0)
        f.write(f.select(singular, zero, value), f.outside_at(out, number))

    f.each(body)


def _slogdet(f: Kernel) -> None:
    a, out, n, pivots_at = f.buffer(), f.buffer(), f.size(), f.size()
    order, area = f.integer(n), f.mul(n, n)
    total, sign = f.alloca("double", align=8), f.alloca("double", align=8)
    zero, one = constant("double", 0.0), constant("double", 1.0)

    def step(u: Val) -> None:
        before = f.load(sign, "double")
        f.store(f.select(f.fcmp("olt", u, zero), f.fneg(before), before), sign)
        term = f.invoke("sg_log_v1f64", "double", [f.fabs(u)])
        f.store(f.fadd(f.load(total, "double"), term), total)

    def body(number: Val, scratch: Val) -> None:
        pivots = f.gep(scratch, pivots_at, "i8")
        _factor(f, f.outside_at(a, f.mul(number, area)), scratch, pivots, n, order)
        singular = f.failed()
        f.store(zero, total)
        f.store(one, sign)
        turned = _along_diagonal(f, n, scratch, pivots, step)
        whole = f.fmul(turned, f.load(sign, "double"))
        target = f.outside_at(out, f.shl(number, ONE))
        f.write(f.select(singular, zero, whole), target)
        lowest = constant("double", float("-inf"))
        logarithm = f.select(singular, lowest, f.load(total, "double"))
        f.write(logarithm, f.outside_at(target, ONE))

    f.each(body)


def _cofactor(f: Kernel) -> None:
    """det(A) times the transposed inverse.

    It counts as failed unless the product of both matrices' Frobenius norms is below a bound.
    """
    a, out, n, pivots_at = f.buffer(), f.buffer(), f.size(), f.size()
    inverse_at, bound = f.size(), f.cast("sitofp", f.size(), "double")
    order, area, product = f.integer(n), f.mul(n, n), _Product(f)
    substitution = _Substitution(f, n, order, n)

    def squares(source: Val, element: str) -> Val:
        cell = f.alloca("double", align=8)
        f.store(constant("double", 0.0), cell)

        def one(i: Val) -> None:
            x = f.load(f.gep(source, i, element), element)
            wide = x if element == "double" else f.cast("fpext", x, "double")
            f.store(f.fadd(f.load(cell, "double"), f.fmul(wide, wide)), cell)

        f.repeat(area, one)
        return f.load(cell, "double")

    def body(number: Val, scratch: Val) -> None:
        pivots, inverse = f.gep(scratch, pivots_at, "i8"), f.gep(scratch, inverse_at, "i8")
        at = f.mul(number, area)
        source, target = f.outside_at(a, at), f.outside_at(out, at)
        _factor(f, source, scratch, pivots, n, order)
        f.report(f.failed())
        determinant = product.value(n, scratch, pivots)
        _set_identity(f, inverse, n)
        substitution.run(scratch, pivots, inverse)
        condition = f.fmul(squares(source, f.outside), squares(inverse, f.element))
        # Not below: also where it is not a number.
        f.report(f.xor(f.fcmp("olt", condition, f.fmul(bound, bound)), constant("i1", True)))
        f.turn(inverse, scratch, n, n)

        def scale(i: Val) -> None:
            x = f.load(f.element_at(scratch, i), "double")
            f.write(f.fmul(determinant, x), f.outside_at(target, i))

        f.repeat(area, scale)

    f.each(body)


def _lu(f: Kernel) -> None:
    _rectangular_lu(f, False)


def _pivots(f: Kernel) -> None:
    _rectangular_lu(f, True)


def _rectangular_lu(f: Kernel, only_pivots: bool) -> None:
    a, out, m, n, pivots_at = f.buffer(), f.buffer(), f.size(), f.size(), f.size()
    rows, columns = f.integer(m), f.integer(n)
    area = f.mul(m, n)
    smaller = f.select(f.icmp("ult", m, n), m, n)

    def body(number: Val, scratch: Val) -> None:
        pivots = f.gep(scratch, pivots_at, "i8")
        if only_pivots:
            pivots = f.gep(out, f.mul(number, smaller), "i32")
        at = f.mul(number, area)
        f.turn(f.element_at(a, at), scratch, m, n)
        # A zero pivot is no failure: the factors exist.
        f.fortran("getrf", rows, columns, scratch, rows, pivots, f.info)
        if not only_pivots:
            f.turn(scratch, f.element_at(out, at), n, m)

    f.each(body)


def _syevd(f: Kernel) -> None:
    """Eigenvalues in the first row, vectors below; NaN for a matrix that is not finite."""
    a, out, n, triangle = f.buffer(), f.buffer(), f.size(), f.letter(f.size())
    work_at, work_size, numbers_at, numbers_size = f.size(), f.size(), f.size(), f.size()
    vectors, order = f.letter("V"), f.integer(n)
    length, count = f.integer(work_size), f.integer(numbers_size)
    area = f.mul(n, n)
    packed = f.add(area, n)

    def body(number: Val, scratch: Val) -> None:
        source = f.element_at(a, f.mul(number, area))
        target = f.element_at(out, f.mul(number, packed))

        def decompose() -> None:
            work, numbers = f.gep(scratch, work_at, "i8"), f.gep(scratch, numbers_at, "i8")
            f.turn(source, scratch, n, n)
            f.fortran(
                "syevd", vectors, triangle, order, scratch, order, target, work, length, numbers,
                count, f.info,
            )  # fmt: skip
            f.report(f.failed())
            f.turn(scratch, f.element_at(target, n), n, n)

        unknown = constant(f.element, float("nan"))
        f.either(f.finite(source, area), decompose, lambda: f.fill(target, unknown, packed))

    f.each(body)


def _qr(f: Kernel) -> None:
    """A' = R' Q': the LQ decomposition of the transposed matrix."""
    a, out, m, n, k = f.buffer(), f.buffer(), f.size(), f.size(), f.size()
    lead, tau_at, work_at, work_size = f.size(), f.size(), f.size(), f.size()
    rows, columns, kept, leading = (f.integer(x) for x in (n, m, k, lead))
    smaller = f.select(f.icmp("ult", m, n), m, n)
    reflectors, length = f.integer(smaller), f.integer(work_size)
    packed = f.mul(k, f.add(m, n))
    zero = constant(f.element, 0.0)

    def body(number: Val, scratch: Val) -> None:
        source = f.element_at(a, f.mul(number, f.mul(m, n)))
        q = f.element_at(out, f.mul(number, packed))
        r = f.element_at(q, f.mul(m, k))
        tau, work = f.gep(scratch, tau_at, "i8"), f.gep(scratch, work_at, "i8")

        def line(i: Val) -> Val:
            return f.element_at(scratch, f.mul(i, lead))

        def read(i: Val) -> None:
            f.copy(line(i), f.element_at(source, f.mul(i, n)), n)

        def write_r(i: Val) -> None:
            at = f.element_at(r, f.mul(i, n))
            count = f.select(f.icmp("ult", i, n), i, n)
            f.fill(at, zero, count)
            f.copy(f.element_at(at, count), f.element_at(line(i), count), f.sub(n, count))

        f.repeat(m, read)
        f.fortran("gelqf", rows, columns, scratch, leading, tau, work, length, f.info)
        f.repeat(k, write_r)
        f.fortran("orglq", kept, columns, reflectors, scratch, leading, tau, work, length, f.info)
        f.repeat(m, lambda i: f.copy(f.element_at(q, f.mul(i, k)), line(i), k))

    f.each(body)


def _gesdd(f: Kernel) -> None:
    """U, the singular values and V', one after the other."""
    a, out, m, n, p, q = f.buffer(), f.buffer(), f.size(), f.size(), f.size(), f.size()
    mode = f.letter(f.size())
    left_at, right_at, work_at, work_size, numbers_at = (f.size() for _ in range(5))
    rows, columns, across, length = (f.integer(x) for x in (m, n, q, work_size))
    smaller = f.select(f.icmp("ult", m, n), m, n)
    packed = f.add(f.add(f.mul(m, p), smaller), f.mul(q, n))
    area = f.mul(m, n)

    def body(number: Val, scratch: Val) -> None:
        source = f.element_at(a, f.mul(number, area))
        u = f.element_at(out, f.mul(number, packed))
        values = f.element_at(u, f.mul(m, p))
        vh = f.element_at(values, smaller)

        def decompose() -> None:
            left, right = f.gep(scratch, left_at, "i8"), f.gep(scratch, right_at, "i8")
            work, numbers = f.gep(scratch, work_at, "i8"), f.gep(scratch, numbers_at, "i8")
            f.turn(source, scratch, m, n)
            f.fortran(
                "gesdd", mode, rows, columns, scratch, rows, values, left, rows, right, across, work,
                length, numbers, f.info,
            )  # fmt: skip
            f.report(f.failed())
            f.turn(left, u, p, m)
            f.turn(right, vh, n, q)

        f.either(f.finite(source, area), decompose, lambda: f.report(constant("i1", True)))

    f.each(body)


BODIES: dict[str, Callable[[Kernel], None]] = {
    "potrf": _potrf,
    "trsm": _trsm,
    "trsv": _trsv,
    "solve": _solve,
    "inverse": _inverse,
    "det": _det,
    "slogdet": _slogdet,
    "cofactor": _cofactor,
    "lu": _lu,
    "pivots": _pivots,
    "syevd": _syevd,
    "qr": _qr,
    "gesdd": _gesdd,
    "positions": check_positions,
}


IN_DOUBLE = ("det", "slogdet", "cofactor")
"""What is computed in double precision, since small determinants are what is left of large terms."""


def emit_kernel(module: Module, name: str, routine: str, element: str) -> None:
    """Add the kernel of a routine of `BODIES` for ``double``, ``float`` or ``i64`` elements.

    Parameters
    ----------
    module : Module
    name : str
        The kernel's symbol.
    routine : str
    element : str
    """
    inside = "double" if routine in IN_DOUBLE else element
    BODIES[routine](Kernel(module, name, inside, element))

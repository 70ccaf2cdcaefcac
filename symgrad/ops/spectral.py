"""Functions of symmetric matrices, V f(w) V', differentiated where eigenvalues coincide.

Such a product depends on the matrix alone, but its pieces do not: where eigenvalues coincide the
derivatives of V f(w) V' through w and through V lose what they share. `recognised` finds the
pattern when a product is recorded, and wraps it in `matrix_function`: the same value, with the
derivative of the whole by divided differences (Daleckii and Krein 1965; Higham, "Functions of
Matrices", 2008, chapter 3). The slopes of f are taken where it is elementwise in the eigenvalues;
anything else in f is a parameter, through which derivatives pass as usual.

With f of the eigenvalues and numbers alone, derivatives at coincident eigenvalues are right up to
the second (the third for sums of f(w)); with parameters in f, up to the first. Sums of f(w)
need reverse mode first: forward mode over forward mode sees the eigenvalues one by one. Start reading at `recognised`, then `matrix_function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.expr import Expr, ancestors
from symgrad.family import op
from symgrad.op import CONSTANT
from symgrad.ops.alias import Alias
from symgrad.ops.arithmetic import add, eq, keep, mul, where
from symgrad.ops.choice import abs
from symgrad.ops.contract import batched_product, flipped, matmul
from symgrad.ops.decompositions import eigh_packed, eigh_parts, scaled_columns
from symgrad.ops.linalg import symmetric
from symgrad.ops.movement import diagonal, expand, full, narrow_step, permute, reshape
from symgrad.ops.reduce import sum
from symgrad.sample import Case, T

# -- expressions of the eigenvalues -----------------------------------------------------


def _between(f: Expr, w: Expr) -> list[Expr]:
    """The elementwise nodes from `f` down to `w` and what else f is made of, arguments first."""
    return ancestors([f], lambda n: n.op.family == "elementwise" and n is not w)


def has_parameters(f: Expr, w: Expr) -> bool:
    """Whether `f` depends on more than `w`, element by element, and numbers."""
    return any(
        n.op.family != "elementwise" and n is not w and _number(n).op is not CONSTANT
        for n in _between(f, w)
    )


def _number(n: Expr) -> Expr:
    while n.op in (expand, reshape) and n.args:
        n = n.args[0]
    return n


def slope(f: Expr, w: Expr) -> Expr:
    """The derivative of `f` in `w`, where it is elementwise in it."""
    tangents: dict[int, Expr] = {}
    for n in _between(f, w):
        if n is w:
            tangents[id(n)] = full(1.0, n.shape, n.dtype)
        elif n.op.family == "elementwise" and n.op.differentiable:
            along = [tangents.get(id(a)) for a in n.args]
            if any(t is not None for t in along):
                tangent = _tangent(n, along)
                if tangent is not None:
                    tangents[id(n)] = tangent
    found = tangents.get(id(f))
    if found is None:
        return full(0.0, f.shape, f.dtype)
    return expand(found, f.shape)


def _tangent(n: Expr, along: Sequence[Expr | None]) -> Expr | None:
    attrs = n.attributes()
    rule = n.op.rule
    total: Expr | None = None
    if rule == "adjoint":
        args = [
            a if t is None and a.dtype.category != 2 else t
            for a, t in zip(n.args, along, strict=True)
        ]
        args = [
            full(0.0, a.shape, a.dtype) if t is None else t
            for a, t in zip(n.args, args, strict=True)
        ]
        return n.op(*args, **attrs)
    if rule == "vjp":
        (t,) = along
        return n.op.vjp(t, n, *n.args, **attrs)[0]
    factors = (n.op.partials if rule == "partials" else n.op.select)(n, *n.args, **attrs)
    for t, factor in zip(along, factors, strict=True):
        if t is None or factor is None:
            continue
        part = t * factor if rule == "partials" else keep(factor[0], t * factor[1])
        total = part if total is None else add(total, part)
    return total


# -- divided differences ----------------------------------------------------------------


def _pairs(x: Expr) -> tuple[Expr, Expr]:
    """x_i and x_j over pairs (i, j)."""
    shape = (*x.shape, x.shape[-1])
    rows = expand(reshape(x, (*x.shape, 1)), shape)
    return rows, flipped(rows)


def _close(gap: Expr, values: Expr, power: float, rank: int) -> Expr:
    """Where a gap between eigenvalues is too small to divide by."""
    bound = float(np.finfo(values.dtype.numpy).eps) ** power
    scale = reshape(sum(abs(values), -1), (*values.shape[:-1], *(1,) * rank))
    return abs(gap) <= scale * bound


def first_differences(w: Expr, f0: Expr, f1: Expr) -> tuple[Expr, Expr, Expr]:
    """f[w_i, w_j] over pairs; the gaps, 1 where they are small; and where they are."""
    w_i, w_j = _pairs(w)
    close = _close(w_j - w_i, w, 1 / 3, 2)
    gap = where(close, 1.0, w_j - w_i)
    f_i, f_j = _pairs(f0)
    s_i, s_j = _pairs(f1)
    return where(close, 0.5 * (s_i + s_j), (f_j - f_i) / gap), gap, close


def _triples(pairs: Expr, missing: int) -> Expr:
    """A table over pairs spread over triples, as if the index `missing` were not there."""
    n = pairs.shape[-1]
    batch = pairs.shape[:-2]
    shape = [n, n, n]
    shape[missing] = 1
    return expand(reshape(pairs, (*batch, *shape)), (*batch, n, n, n))


def second_differences(w: Expr, f0: Expr, f1: Expr, f2: Expr) -> Expr:
    """f[w_i, w_j, w_k] over triples, dividing by the widest gap of each."""
    first, _, _ = first_differences(w, f0, f1)
    w_i, w_j = _pairs(w)
    gaps = w_j - w_i
    size = abs(gaps)
    ik, ij, jk = (_triples(size, missing) for missing in (1, 2, 0))
    f_ik, f_ij, f_jk = (_triples(first, missing) for missing in (1, 2, 0))
    use_ik = (ik >= ij) & (ik >= jk)
    use_ij = (ij >= jk) & ~use_ik
    above = where(use_ik, f_jk - f_ij, where(use_ij, f_jk - f_ik, f_ik - f_ij))
    g_ik, g_ij, g_jk = (_triples(gaps, missing) for missing in (1, 2, 0))
    below = where(use_ik, g_ik, where(use_ij, g_ij, g_jk))
    close = _close(below, w, 1 / 4, 3)
    n = w.shape[-1]
    batch = w.shape[:-1]
    three = [
        expand(reshape(f2, (*batch, *(n if d == axis else 1 for d in range(3)))), (*batch, n, n, n))
        for axis in range(3)
    ]
    confluent = (three[0] + three[1] + three[2]) * (1.0 / 6.0)
    return where(close, confluent, above / where(close, 1.0, below))


# -- the functions and their derivatives ------------------------------------------------


def _turned(x: Expr, vectors: Expr) -> Expr:
    """V' x V."""
    return matmul(matmul(flipped(vectors), x), vectors)


def _restored(x: Expr, vectors: Expr) -> Expr:
    """V x V'."""
    return matmul(matmul(vectors, x), flipped(vectors))


class _OfMatrix(Alias):
    """What both ops share: the value comes first, then the matrix and its eigenvalues."""


@op
class matrix_function(_OfMatrix):
    """The value V f(w) V' as a function of the matrix: arguments value, A, packed, w, f."""

    samples = (Case(T(2, 2), T(2, 2), T(3, 2), T(2), T(2), smooth=False),)

    def ref(value: np.ndarray, *rest: np.ndarray) -> Any:
        return value

    def sympy(sp: Any, value: Any, *rest: Any) -> Any:
        return value

    def vjp(g: Expr, out: Expr, value: Expr, a: Expr, packed: Expr, w: Expr, f0: Expr) -> Any:
        even = symmetric(g)
        f1 = slope(f0, w)
        at_a = first_derivative(a, packed, w, f0, f1, even)
        if not has_parameters(f0, w):
            return None, at_a, None, None, None
        rows = _turned(even, eigh_parts(packed).eigenvectors)
        at_f0 = diagonal(rows, 0, rows.ndim - 2, rows.ndim - 1)
        # at_a has what f does through w; it is taken back from w, where f passes it on too.
        return None, at_a, None, -(at_f0 * f1), at_f0


def first_derivative(a: Expr, packed: Expr, w: Expr, f0: Expr, f1: Expr, x: Expr) -> Expr:
    """The derivative of V f(w) V' in the symmetric direction `x`."""
    vectors = eigh_parts(packed).eigenvectors
    table, _, _ = first_differences(w, f0, f1)
    value = _restored(table * _turned(x, vectors), vectors)
    return matrix_slope(value, a, packed, w, f0, f1, x)


@op
class matrix_slope(_OfMatrix):
    """`first_derivative` as a function of the matrix: arguments value, A, packed, w, f, f', X."""

    samples = (Case(T(2, 2), T(2, 2), T(3, 2), T(2), T(2), T(2), T(2, 2), smooth=False),)

    def ref(value: np.ndarray, *rest: np.ndarray) -> Any:
        return value

    def sympy(sp: Any, value: Any, *rest: Any) -> Any:
        return value

    def vjp(
        g: Expr, out: Expr, value: Expr, a: Expr, packed: Expr, w: Expr, f0: Expr, f1: Expr, x: Expr
    ) -> Any:
        even = symmetric(g)
        vectors = eigh_parts(packed).eigenvectors
        turned_g, turned_x = _turned(even, vectors), _turned(x, vectors)
        f2 = slope(f1, w)
        table = second_differences(w, f0, f1, f2)
        at_a = _restored(_both_orders(table, turned_x, turned_g), vectors)
        at_x = first_derivative(a, packed, w, f0, f1, even)
        if not has_parameters(f1, w):
            return None, at_a, None, None, None, None, at_x
        weight = turned_g * turned_x
        _, gap, close = first_differences(w, f0, f1)
        at_f0 = sum(keep(~close, 2.0 * weight / gap), -2)
        at_f1 = sum(keep(close, weight), -2)
        return None, at_a, None, -(at_f0 * f1 + at_f1 * f2), at_f0, at_f1, at_x


def _both_orders(table: Expr, x: Expr, y: Expr) -> Expr:
    """Σ_j f[i, j, k] (x_ij y_jk + y_ij x_jk)."""
    first = _triples(x, 2) * _triples(y, 0) + _triples(y, 2) * _triples(x, 0)
    return sum(table * first, -2)


# -- recognition ------------------------------------------------------------------------


def _is_values(n: Expr, packed: Expr) -> bool:
    """Whether a node is the eigenvalues of `packed`."""
    if n.op is not reshape or not n.args or n.args[0].op is not narrow_step:
        return False
    row = n.args[0]
    return row.args[0] is packed and row.attrs[0][-2] == 0 and row.shape[-2] == 1


def vectors_of(n: Expr) -> Expr | None:
    """The packed decomposition whose eigenvectors a node is."""
    if n.op is not narrow_step or n.args[0].op is not eigh_packed:
        return None
    packed = n.args[0]
    whole = n.shape == (*packed.shape[:-2], packed.shape[-1], packed.shape[-1])
    return packed if whole and n.attrs[0][-2] == 1 else None


def _bare(n: Expr, shape: tuple[int, ...]) -> Expr | None:
    """A node freed of reshapes and expansions, if that leaves something of the given shape."""
    while n.shape != shape:
        if n.op not in (reshape, expand, permute) or not n.args:
            return None
        n = n.args[0]
    return n


def _factors(n: Expr, vectors: Expr, across: bool) -> Expr | None:
    """f, if a node is V with columns times f, or (`across`) V' with rows times f."""
    for other, own in (n.args, n.args[::-1]):
        if not (_is_flipped(own, vectors) if across else own is vectors):
            continue
        if across and (other.ndim < 2 or other.shape[-1] != 1):
            return None
        if not across and other.ndim > 1 and other.shape[-2] != 1:
            return None
        shape = vectors.shape[:-1]
        found = _bare(other, shape)
        if found is None and other.ndim > 1:
            rest = other.shape[:-1] if across else (*other.shape[:-2], other.shape[-1])
            found = expand(reshape(other, rest), shape)
        return found
    return None


def _is_flipped(n: Expr, vectors: Expr) -> bool:
    return n.op is permute and n.args[0] is vectors and n.shape[-2:] == vectors.shape[-2:][::-1]


def _diagonal_factor(n: Expr, vectors: Expr) -> Expr | None:
    """f, if a node is the eigenvectors times a diagonal matrix of f."""
    product = _bare(n, (1, *vectors.shape[-2:])) if vectors.ndim == 2 else None
    if product is None or product.op is not batched_product:
        return None
    first = _bare(product.args[0], vectors.shape)
    second = _bare(product.args[1], vectors.shape)
    if first is not vectors or second is None or second.op is not keep:
        return None
    if second.args[0].op is not eq:
        return None
    return _bare(second.args[1], vectors.shape[:-1])


def recognised(left: Expr, right: Expr, value: Expr) -> Expr:
    """`value`, the product of `left` and `right`, marked if it is V f(w) V'."""
    vectors = None
    f: Expr | None = None
    if right.op is permute and vectors_of(right.args[0]) is not None:
        vectors = right.args[0]
        if _is_flipped(right, vectors):
            f = (
                _factors(left, vectors, across=False)
                if left.op is mul
                else _diagonal_factor(left, vectors)
            )
    elif vectors_of(left) is not None:
        vectors = left
        if right.op is mul and any(_is_flipped(a, vectors) for a in right.args):
            f = _factors(right, vectors, across=True)
    if vectors is None or f is None or f.shape != vectors.shape[:-1]:
        return value
    packed = vectors_of(vectors)
    assert packed is not None
    return as_function(packed, f, value)


def as_function(packed: Expr, f: Expr, value: Expr | None = None) -> Expr:
    """V f V' for the eigenvectors V of a packed decomposition, as a function of the matrix."""
    values, vectors = eigh_parts(packed)
    if value is None:
        value = matmul(scaled_columns(vectors, f), flipped(vectors))
    if not packed.args:
        return value
    found = ancestors([f], lambda n: n.op.family == "elementwise")
    w = next((n for n in found if _is_values(n, packed)), values)
    return matrix_function(value, packed.args[0], packed, w, f)

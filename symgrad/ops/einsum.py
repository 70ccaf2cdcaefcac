"""Einstein summation: axes by name, in an order of contractions chosen when it is recorded.

`Operand` is a tensor with a name per axis. An equation is read into names (`_read`), repeated
names become diagonals, and operands are contracted pair by pair along a path from opt_einsum,
each pair by `symgrad.ops.contract.contracted`. The path depends on shapes alone, so equal shapes
give equal programs. Start reading at `einsum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.ops.contract import contracted
from symgrad.ops.movement import diagonal, expand, permute, reshape, wrap_dim
from symgrad.ops.reduce import sum_axis
from symgrad.sample import Case, T


class Operand(NamedTuple):
    """A tensor with a name per axis."""

    x: Expr
    names: list[str]


def _fail(words: str) -> RuntimeError:
    return RuntimeError(f"einsum: einsum(): {words}")


# -- reading equations ------------------------------------------------------------------


def _from_sublists(args: Sequence[Any]) -> tuple[str, list[Expr]]:
    """The equation of operands that alternate with lists of axis numbers."""

    def letters(axes: Sequence[Any]) -> str:
        return "".join("..." if a is Ellipsis else _letter(a) for a in axes)

    operands = [a for a in args if isinstance(a, Expr)]
    lists = [letters(a) for a in args if not isinstance(a, Expr)]
    left = ",".join(lists[: len(operands)])
    if len(lists) > len(operands):
        return f"{left}->{lists[-1]}", operands
    return left, operands


def _letter(number: int) -> str:
    if not 0 <= number < 52:
        raise _fail(f"subscripts must be in the range [0, 52) (got {number}); rename the axes")
    return chr(ord("A") + number) if number < 26 else chr(ord("a") + number - 26)


def _read(equation: str, operands: Sequence[Expr]) -> tuple[list[list[str]], list[str]]:
    """Names of the operands' axes and of the result's; an ellipsis stands for names "0", "1"..."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        rest = term.replace("...", "", 1)
        for letter in rest:
            if not (letter.isascii() and letter.isalpha()):
                raise _fail(
                    f"invalid subscript given, subscripts must be in [a-zA-Z] (got {letter!r} in "
                    f"{equation!r}); use letters"
                )
    if len(terms) != len(operands):
        few = "fewer" if len(terms) > len(operands) else "more"
        raise _fail(
            f"{few} operands were provided than specified in the equation (got {len(operands)} for "
            f"{equation!r}); give one per term"
        )
    names = []
    widest = 0
    for number, (term, x) in enumerate(zip(terms, operands, strict=True)):
        letters = term.replace("...", "")
        spare = x.ndim - len(letters)
        if spare < 0 or (spare > 0 and "..." not in term):
            words = "was given" if "..." in term else "and no ellipsis was given"
            raise _fail(
                f"the number of subscripts in the equation ({len(letters)}) does not match the number "
                f"of dimensions ({x.ndim}) for operand {number} {words} (got {equation!r}, shape "
                f"{x.shape}); name every axis or write an ellipsis"
            )
        widest = max(widest, spare)
        names.append(_spelled(term, spare))
    # Ellipsis axes align at the right, as in broadcasting.
    if arrow:
        result = _spelled(right, widest) if "..." in right else list(right)
        _check_result(result, names)
        return names, result
    counts: dict[str, int] = {}
    for letter in left.replace("...", "").replace(",", ""):
        counts[letter] = counts.get(letter, 0) + 1
    single = sorted(letter for letter, n in counts.items() if n == 1)
    return names, [*_spelled("...", widest), *single]


def _spelled(term: str, spare: int) -> list[str]:
    before, dots, after = term.partition("...")
    middle = [str(spare - 1 - k) for k in range(spare)] if dots else []
    return [*before, *middle, *after]


def _check_result(result: list[str], names: list[list[str]]) -> None:
    known = {n for axes in names for n in axes}
    for n in result:
        if result.count(n) > 1:
            raise _fail(
                f"output subscript {n} appears more than once in the output; a diagonal of the "
                "result is written with diag_embed"
            )
        if n not in known and not n.isdigit():
            raise _fail(
                f"output subscript {n} does not appear in the equation for any input operand; "
                "expand the result instead"
            )


# -- contracting ------------------------------------------------------------------------


def _diagonals(x: Expr, names: list[str], number: int) -> Operand:
    """Take diagonals until no name occurs twice."""
    names = list(names)
    for n in dict.fromkeys(names):
        while names.count(n) > 1:
            i = names.index(n)
            j = names.index(n, i + 1)
            if x.shape[i] != x.shape[j]:
                raise _fail(
                    f"subscript {n} is repeated for operand {number} but the sizes don't match, "
                    f"{x.shape[j]} != {x.shape[i]} (got shape {x.shape}); rename one"
                )
            x = diagonal(x, 0, i, j)
            names = [m for k, m in enumerate(names) if k not in (i, j)] + [n]
    return Operand(x, names)


def _sizes(operands: Sequence[Operand]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for number, operand in enumerate(operands):
        for n, s in zip(operand.names, operand.x.shape, strict=True):
            have = sizes.get(n, 1)
            if s not in (1, have) and have != 1:
                raise _fail(
                    f"subscript {n} has size {s} for operand {number} which does not broadcast with "
                    f"previously seen size {have}; rename the axis or slice"
                )
            sizes[n] = s if have == 1 else have
    return sizes


@lru_cache(maxsize=1024)
def _path(names: tuple[tuple[str, ...], ...], result: tuple[str, ...], shapes: Any) -> list[Any]:
    """The order of contractions, as tuples of operand positions."""
    import opt_einsum

    letters: dict[str, str] = {}
    for n in [n for axes in names for n in axes]:
        letters.setdefault(n, opt_einsum.get_symbol(len(letters)))
    terms = ["".join(letters[n] for n in axes) for axes in names]
    target = "".join(letters[n] for n in result if n in letters)
    found, _ = opt_einsum.contract_path(f"{','.join(terms)}->{target}", *shapes, shapes=True)
    return list(found)


def contract_all(operands: Sequence[Operand], result: Sequence[str]) -> Expr:
    """Contract operands with distinct names per axis down to the named result."""
    sizes = _sizes(operands)
    left = list(operands)
    path: list[Any] = [tuple(range(len(left)))]
    if len(left) > 2:
        names = tuple(tuple(o.names) for o in left)
        path = _path(names, tuple(result), tuple(o.x.shape for o in left))
    for step in path:
        chosen = [left[k] for k in step]
        left = [o for k, o in enumerate(left) if k not in step]
        while len(chosen) > 1:
            first, second = chosen[0], chosen[1]
            rest = chosen[2:]
            kept = {n for o in [*left, *rest] for n in o.names} | set(result)
            x, names_of = contracted(first.x, first.names, second.x, second.names, kept)
            chosen = [Operand(x, names_of), *rest]
        left.append(chosen[0])
    return _arranged(left[0], result, sizes)


def _arranged(operand: Operand, result: Sequence[str], sizes: dict[str, int]) -> Expr:
    """Sum away what the result lacks, order the rest, and expand broadcast axes."""
    x, names = operand
    for place in reversed(range(len(names))):
        if names[place] not in result:
            x = sum_axis(x, dim=place)
    names = [n for n in names if n in result]
    x = permute(x, tuple(names.index(n) for n in result if n in names))
    shape = dict(zip([n for n in result if n in names], x.shape, strict=True))
    x = reshape(x, tuple(shape.get(n, 1) for n in result))
    return expand(x, tuple(sizes.get(n, 1) for n in result))


def _ref_einsum(equation: str, *operands: Any) -> Any:
    given = operands[0] if isinstance(operands[0], list | tuple) else operands
    return np.einsum(equation, *given)


@composite(
    ref=_ref_einsum,
    samples=(
        Case("ij,jk->ik", T(2, 3), T(3, 4)),
        Case("bij,bjk", T(2, 3, 4), T(2, 4, 2)),
        Case("ii->i", T(3, 3)),
        Case("ii", T(3, 3)),
        Case("ij->j", T(2, 3)),
        Case("...ij,...jk->...ik", T(2, 1, 3, 4), T(5, 4, 2)),
        Case("i,j,k->ijk", T(2), T(3), T(4)),
        Case("ij,jk,kl->il", T(2, 3), T(3, 4), T(4, 2)),
        Case("bn,anm,bm->ba", T(2, 3), T(4, 3, 5), T(2, 5)),
    ),
    errors=(
        Case("ij,jk->ik", T(2, 3), T(4, 3), match="does not broadcast with previously seen size"),
        Case("ij,jk->ik", T(2, 3), match="fewer operands were provided"),
        Case("ij->ii", T(2, 3), match="appears more than once in the output"),
        Case("ij->k", T(2, 3), match="does not appear in the equation"),
        Case("i->i", T(2, 3), match="no ellipsis was given"),
        Case("ii->i", T(2, 3), match="the sizes don't match, 3 != 2"),
    ),
)
def einsum(equation: Any, *operands: Any) -> Expr:
    """Sums of products over named axes, as torch.einsum.

    A name that the result lacks is summed over; a name twice in one operand is a diagonal;
    ``...`` stands for the other axes, which broadcast. Operands may also alternate with lists of
    axis numbers.
    """
    if isinstance(equation, Expr):
        equation, given = _from_sublists([equation, *operands])
    else:
        given = (
            list(operands[0])
            if operands and isinstance(operands[0], list | tuple)
            else list(operands)
        )
    if not given:
        raise _fail("must provide at least one operand (got none); pass tensors after the equation")
    for x in given:
        if x.dtype is not given[0].dtype:
            raise _fail(
                f"expected operands to have the same dtype, but got {given[0].dtype!r} and {x.dtype!r}; "
                "convert one with .to"
            )
    names, result = _read(equation, given)
    pairs = [_diagonals(x, axes, k) for k, (x, axes) in enumerate(zip(given, names, strict=True))]
    return contract_all(pairs, result)


# -- chains of matrices -----------------------------------------------------------------


def _chain(name: str, matrices: Sequence[Expr]) -> Expr:
    names = [[f"k{i}", f"k{i + 1}"] for i in range(len(matrices))]
    for i, x in enumerate(matrices):
        if i and x.shape[0] != matrices[i - 1].shape[1]:
            rows, columns = matrices[i - 1].shape
            raise RuntimeError(
                f"{name}: mat1 and mat2 shapes cannot be multiplied ({rows}x{columns} and "
                f"{x.shape[0]}x{x.shape[1]}); transpose one"
            )
    operands = [Operand(x, axes) for x, axes in zip(matrices, names, strict=True)]
    return contract_all(operands, ["k0", f"k{len(matrices)}"])


@composite(
    ref=lambda *matrices: np.linalg.multi_dot(matrices) if len(matrices) > 1 else matrices[0],
    samples=(Case(T(2, 3), T(3, 4), T(4, 2)), Case(T(2, 3))),
)
def chain_matmul(*matrices: Any) -> Expr:
    """Product of a chain of matrices, in the cheapest order."""
    given = (
        matrices[0] if len(matrices) == 1 and isinstance(matrices[0], list | tuple) else matrices
    )
    if not given:
        raise RuntimeError("chain_matmul: Expected one or more matrices (got none); pass matrices")
    for x in given:
        if x.ndim != 2:
            raise RuntimeError(f"chain_matmul: needs matrices (got shape {x.shape}); reshape it")
    return given[0] if len(given) == 1 else _chain("chain_matmul", given)


@composite(
    ref=np.linalg.multi_dot,
    samples=(Case([T(2, 3), T(3, 4), T(4, 2)]), Case([T(3), T(3, 4), T(4)]), Case([T(2, 3), T(3)])),
    errors=(Case([T(2, 3)], match="expected at least 2 tensors but got 1"),),
)
def linalg_multi_dot(tensors: Sequence[Expr]) -> Expr:
    """Product of a chain of matrices, in the cheapest order; the ends may be vectors."""
    given = list(tensors)
    if len(given) < 2:
        raise RuntimeError(
            f"linalg.multi_dot: multi_dot(): expected at least 2 tensors but got {len(given)}; "
            "use the tensor itself"
        )
    first, last = given[0], given[-1]
    if first.ndim == 1:
        given[0] = reshape(first, (1, first.size))
    if last.ndim == 1:
        given[-1] = reshape(last, (last.size, 1))
    for x in given:
        if x.ndim != 2:
            raise RuntimeError(
                f"linalg.multi_dot: multi_dot(): tensors must be 2D, 1D at the ends (got shape {x.shape}); "
                "use matmul for batches"
            )
    result = _chain("linalg.multi_dot", given)
    shape = tuple(s for s, x in zip(result.shape, (first, last), strict=True) if x.ndim != 1)
    return reshape(result, shape)


@composite(
    ref=lambda x, y, *, dim=-1: np.sum(x * y, axis=dim),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3, 4), T(4)), Case(T(3, 4), T(3, 1), dim=0)),
)
def linalg_vecdot(x: Expr, y: Expr, *, dim: int = -1) -> Expr:
    """Sums of products along one dimension, under broadcasting."""
    rank = max(x.ndim, y.ndim)
    axis = wrap_dim("linalg.vecdot", dim, rank)
    names = [str(d) for d in range(rank)]
    operands = [Operand(v, names[rank - v.ndim :]) for v in (x, y)]
    return contract_all(operands, [n for n in names if n != str(axis)])

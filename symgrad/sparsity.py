"""Sparse Jacobians and Hessians: pattern from the graph, values through a colouring.

The pattern is found structurally: every node gets a boolean matrix that says which elements of
the input each of its elements depends on (`pattern`), by the families of ops. Columns that meet in
no row share a colour, and one derivative along their sum gives all their entries (`distance_two`);
for Hessians the symmetry allows fewer colours (`star`). All colours are one batched graph.

References: A. Gebremedhin, F. Manne, A. Pothen, "What color is your Jacobian? Graph coloring for
computing derivatives", SIAM Review 47 (2005); A. Gebremedhin, A. Tarafdar, F. Manne, A. Pothen,
"New acyclic and star coloring algorithms with application to computing Hessians", SIAM J. Sci.
Comput. 29 (2007). Start reading at `sparse_hessian`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad import runtime
from symgrad.calculus import pullback, pushforward
from symgrad.calculus.batching import batched
from symgrad.calculus.reverse import contributions
from symgrad.expr import Expr, ancestors
from symgrad.func.levels import Level
from symgrad.op import constant, grad_mode, input_node
from symgrad.ops.movement import full
from symgrad.tensor import Tensor

__all__ = ["sparse_hessian", "sparse_jacobian"]

Rows = Any
"""A boolean matrix in CSR form: element of a node by element of the input."""


# -- patterns ---------------------------------------------------------------------------


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    """The elements' numbers in row-major order."""
    size = int(np.prod(shape, dtype=np.int64))
    return np.arange(size, dtype=np.int64).reshape(shape)


def _gathered(rows: Rows, numbers: np.ndarray) -> Rows:
    """The rows of given numbers; no dependence where the number is negative."""
    flat = numbers.reshape(-1)
    if flat.size == 0 or flat.min() >= 0:
        return rows[flat]
    from scipy.sparse import csr_array

    inside = np.flatnonzero(flat >= 0)
    ones = np.ones(inside.size, bool)
    choose = csr_array((ones, (inside, flat[inside])), shape=(flat.size, rows.shape[0]))
    return choose @ rows


def _united(rows: Rows, groups: np.ndarray, count: int) -> Rows:
    """The union of the rows that belong to each of `count` groups."""
    from scipy.sparse import csr_array

    flat = groups.reshape(-1)
    ones = np.ones(flat.size, bool)
    return csr_array((ones, (flat, np.arange(flat.size))), shape=(count, flat.size)) @ rows


def _elementwise(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    total: Rows = None
    for a, rows in zip(node.args, parts, strict=True):
        if rows is None:
            continue
        if a.shape != node.shape:
            rows = rows[np.broadcast_to(_numbers(a.shape), node.shape).reshape(-1)]
        total = rows if total is None else total + rows
    return total


def _movement(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    """Positions moved as the elements are; counted from 1, since added elements are 0."""
    attrs = node.attributes()
    total: Rows = None
    for place, rows in enumerate(parts):
        if rows is not None:
            moved = [
                _numbers(a.shape) + 1 if k == place else np.zeros(a.shape, np.int64)
                for k, a in enumerate(node.args)
            ]
            own = _gathered(rows, node.op.ref(*moved, **attrs) - 1)
            total = own if total is None else total + own
    return total


def _reduce(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    shape = node.args[0].shape
    groups = np.broadcast_to(np.expand_dims(_numbers(node.shape), node.attrs[0]), shape)
    total: Rows = None
    for rows in parts:
        if rows is not None:
            own = _united(rows, groups, node.size)
            total = own if total is None else total + own
    return total


def _cumulative(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    """Every element depends on all before it along the axis."""
    from scipy.sparse import csr_array

    axis = node.attrs[0]
    lines = np.moveaxis(_numbers(node.shape), axis, -1).reshape(-1, node.shape[axis])
    length = lines.shape[1]
    later, earlier = np.tril_indices(length)
    into, out = lines[:, later].reshape(-1), lines[:, earlier].reshape(-1)
    choose = csr_array((np.ones(into.size, bool), (into, out)), shape=(node.size, node.size))
    return choose @ parts[0]


def _contract(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    """Row by column; a factor that does not depend on the input contributes its own zeros."""
    from scipy.sparse import csr_array

    k = node.args[0].shape[2]
    products, m, n = node.shape
    total: Rows = None
    for place, rows in enumerate(parts):
        if rows is None:
            continue
        other = node.args[1 - place]
        known = parts[1 - place] is None
        if known:
            runtime.evaluate([other])
        entries = runtime.array_of(other) != 0 if known else np.ones(other.shape, bool)
        if place == 0:
            number, inner, column = np.nonzero(entries)
            left = np.arange(m)
            into = (number[:, None] * m + left) * n + column[:, None]
            out = (number[:, None] * m + left) * k + inner[:, None]
        else:
            number, row, inner = np.nonzero(entries)
            right = np.arange(n)
            into = (number[:, None] * m + row[:, None]) * n + right
            out = (number[:, None] * k + inner[:, None]) * n + right
        ones = np.ones(into.size, bool)
        choose = csr_array(
            (ones, (into.reshape(-1), out.reshape(-1))), shape=(products * m * n, rows.shape[0])
        )
        own = choose @ rows
        total = own if total is None else total + own
    return total


def _index(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    """Reads gather rows; writes are the transpose of the read that is their adjoint."""
    runtime.evaluate([a for a in node.args if a.dtype.category < 2])
    if node.op.reads:
        positions = [runtime.array_of(a) for a in node.args[1:]]
        return _gathered(parts[0], node.op.ref(_numbers(node.args[0].shape), *positions))
    if node.op.linear != "joint":
        return _whole(node, parts)
    numbers = _numbers(node.shape).astype(node.dtype.numpy)
    probe = input_node(node.shape, node.dtype, numbers)
    passed = node.op.adjoint(probe, *node.args, **node.attributes())
    total: Rows = None
    for place, rows in zip(passed, parts, strict=True):
        if rows is not None and place is not None:
            runtime.evaluate([place])
            own = _united(rows, runtime.array_of(place).astype(np.int64), node.size)
            total = own if total is None else total + own
    return total


def _whole(node: Expr, parts: Sequence[Rows | None]) -> Rows:
    """Routines on whole arrays: every element depends on all arguments."""
    total: Rows = None
    for rows in parts:
        if rows is not None:
            own = _united(rows, np.zeros(rows.shape[0], np.int64), 1)
            total = own if total is None else total + own
    return total[np.zeros(node.size, np.int64)]


_FAMILIES: dict[str, Callable[[Expr, Sequence[Any]], Any]] = {
    "elementwise": _elementwise,
    "alias": _elementwise,
    "movement": _movement,
    "reduce": _reduce,
    "cumulative": _cumulative,
    "contract": _contract,
    "index": _index,
}


def pattern(outputs: Sequence[Expr], source: Expr) -> Any:
    """Which elements of outputs depend on which elements of an input.

    Parameters
    ----------
    outputs : sequence of Expr
    source : Expr
        A node of their graph that requires grad.

    Returns
    -------
    scipy.sparse.csr_array of bool
        A row per element of the outputs, in their order; a column per element of `source`. An
        entry may turn out to be 0, a missing one is 0 everywhere.
    """
    from scipy.sparse import csr_array, vstack

    unit = np.arange(source.size)
    identity = csr_array((np.ones(source.size, bool), (unit, unit)), shape=(source.size,) * 2)
    known: dict[int, Rows] = {id(source): identity}
    nodes = ancestors(outputs, lambda n: n is not source and n.requires_grad)
    for node in nodes:
        if node is source or not node.requires_grad or node.op.family == "leaf":
            continue
        parts = [known.get(id(a)) for a in node.args]
        if all(p is None for p in parts):
            continue
        with grad_mode(False):
            probe = input_node(node.shape, node.dtype)
            passed = contributions(node, probe)
        parts = [None if g is None else p for p, g in zip(parts, passed, strict=True)]
        if any(p is not None for p in parts):
            known[id(node)] = _FAMILIES.get(node.op.family, _whole)(node, parts)
    rows = [
        known[id(y)] if id(y) in known else csr_array((y.size, source.size), dtype=bool)
        for y in outputs
    ]
    found = csr_array(vstack(rows, format="csr"))
    found.sum_duplicates()
    return found


# -- colourings -------------------------------------------------------------------------


def distance_two(matrix: Any) -> np.ndarray:
    """Greedy colours of columns: two columns with an entry in one row differ.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array

    Returns
    -------
    ndarray of int
        A colour per column; columns without entries have colour -1.
    """
    columns = matrix.tocsc()
    rows, row_start = matrix.indices.tolist(), matrix.indptr.tolist()
    cols, col_start = columns.indices.tolist(), columns.indptr.tolist()
    colours = [-1] * matrix.shape[1]
    taken: list[int] = []
    for v in range(matrix.shape[1]):
        if col_start[v] == col_start[v + 1]:
            continue
        for r in cols[col_start[v] : col_start[v + 1]]:
            for w in rows[row_start[r] : row_start[r + 1]]:
                if colours[w] >= 0:
                    taken[colours[w]] = v
        colours[v] = _first_free(taken, v)
    return np.array(colours, np.int64)


def _first_free(taken: list[int], mark: int) -> int:
    """The first colour that is not marked, added if there is none."""
    for colour, by in enumerate(taken):
        if by != mark:
            return colour
    taken.append(-1)
    return len(taken) - 1


class _Stars:
    """The two-coloured stars of a partial star colouring.

    Attributes
    ----------
    of : dict
        The star of an edge, by its ends in ascending order.
    hub : list of int
        The centre of each star, -1 while it is a single edge.
    """

    def __init__(self, neighbours: list[list[int]]) -> None:
        self.neighbours = neighbours
        self.colours = [-1] * len(neighbours)
        self.of: dict[tuple[int, int], int] = {}
        self.hub: list[int] = []
        self.first: dict[int, tuple[int, int]] = {}
        self.treated = [-1] * len(neighbours)
        self.taken: list[int] = []

    @staticmethod
    def edge(v: int, w: int) -> tuple[int, int]:
        """An edge as a key."""
        return (v, w) if v < w else (w, v)

    def treat(self, v: int, w: int) -> None:
        """Forbid `v` the colours of the neighbours of `w`."""
        for x in self.neighbours[w]:
            if self.colours[x] >= 0:
                self.taken[self.colours[x]] = v
        self.treated[w] = v

    def colour(self, v: int) -> None:
        """Give `v` the first colour that keeps all two-coloured components stars."""
        colours, taken = self.colours, self.taken
        for w in self.neighbours[v]:
            if colours[w] < 0:
                continue
            taken[colours[w]] = v
            p, q = self.first.get(colours[w], (-1, -1))
            if p == v:
                if self.treated[q] != v:
                    self.treat(v, q)
                self.treat(v, w)
                continue
            self.first[colours[w]] = (v, w)
            for x in self.neighbours[w]:
                if x != v and colours[x] >= 0 and self.hub[self.of[self.edge(w, x)]] == x:
                    taken[colours[x]] = v
        colours[v] = _first_free(taken, v)
        self._join(v)

    def _join(self, v: int) -> None:
        """Put the edges from `v` to coloured neighbours into stars."""
        colours = self.colours
        for w in self.neighbours[v]:
            if colours[w] < 0:
                continue
            same = [x for x in self.neighbours[w] if x != v and colours[x] == colours[v]]
            if same:
                star = self.of[self.edge(w, same[0])]
                self.hub[star] = w
            else:
                p, q = self.first.get(colours[w], (-1, -1))
                if p == v and q != w and self.edge(v, q) in self.of:
                    star = self.of[self.edge(v, q)]
                    self.hub[star] = v
                else:
                    star = len(self.hub)
                    self.hub.append(-1)
            self.of[self.edge(v, w)] = star


def star(matrix: Any) -> np.ndarray:
    """Greedy star colouring of a symmetric pattern.

    Neighbours differ, and no path of four vertices has only two colours.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array
        Symmetric; the diagonal plays no part.

    Returns
    -------
    ndarray of int
        A colour per column.
    """
    indices, start = matrix.indices, matrix.indptr
    neighbours = [
        [w for w in indices[start[v] : start[v + 1]].tolist() if w != v]
        for v in range(matrix.shape[0])
    ]
    stars = _Stars(neighbours)
    # Vertices of many neighbours first: each is then the hub of its stars.
    for v in sorted(range(len(neighbours)), key=lambda k: -len(neighbours[k])):
        stars.colour(v)
    return np.array(stars.colours, np.int64)


# -- values -----------------------------------------------------------------------------


def _seeds(colours: np.ndarray, shape: tuple[int, ...], like: Expr) -> Expr:
    """Per colour the sum of its unit vectors."""
    count = int(colours.max(initial=-1)) + 1
    rows = np.zeros((count, colours.size), like.dtype.numpy)
    chosen = np.flatnonzero(colours >= 0)
    rows[colours[chosen], chosen] = 1
    return input_node((count, *shape), like.dtype, rows.reshape(count, *shape))


def _products(results: Sequence[Expr | None], probe: Expr, seeds: Expr) -> list[np.ndarray | None]:
    """Values of derivatives along all seeds, with the seeds' axis first."""
    present = [r for r in results if r is not None]
    made = batched(present, [probe], [seeds])
    runtime.evaluate(made)
    arrays = iter([runtime.array_of(m) for m in made])
    return [None if r is None else next(arrays) for r in results]


def _level(f: Callable[[Tensor], Any], x: Tensor, name: str) -> tuple[Level, Expr]:
    """One run of `f` and its one output."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a Tensor (got {type(x).__name__}); use symgrad.tensor")
    level = Level(f, (x,), [0], {})
    if not isinstance(level.result, Tensor):
        raise TypeError(
            f"{name}: the function must return one Tensor (got {type(level.result).__name__})"
        )
    return level, level.result.expr()


def _matrix(where: Any, values: np.ndarray) -> Any:
    from scipy.sparse import csr_array

    return csr_array((values, where.indices, where.indptr), shape=where.shape)


def sparse_hessian(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    """The Hessian of a function of one element at `x`, as a SciPy sparse array.

    Parameters
    ----------
    f : callable
        Takes a tensor and returns a tensor of one element.
    x : Tensor

    Returns
    -------
    scipy.sparse.csr_array, shape (x.numel(), x.numel())
        The stored entries are those that the graph of `f` allows to be non-zero. They come from as
        many Hessian-vector products as the pattern's star colouring has colours, computed together.

    Examples
    --------
    >>> import symgrad as sg
    >>> h = sg.sparse_hessian(lambda v: (v[1:] * v[:-1]).sum(), sg.ones(1000))
    >>> h.shape, h.nnz, float(h[0, 1])
    ((1000, 1000), 1998, 1.0)
    """
    level, y = _level(f, x, "sparse_hessian")
    if y.size != 1:
        raise RuntimeError(
            f"sparse_hessian: the function must return one element (got shape {y.shape}); use "
            "sparse_jacobian"
        )
    (leaf,) = level.leaves
    with grad_mode(True):
        start = constant(1.0, y.dtype) if not y.shape else full(1.0, y.shape, y.dtype)
        (gradient,) = pullback([y], [start], [leaf])
    from scipy.sparse import csr_array

    if gradient is None or not gradient.requires_grad:
        return csr_array((leaf.size, leaf.size), dtype=leaf.dtype.numpy)
    where = pattern([gradient], leaf)
    where = csr_array(where + where.T)
    where.sort_indices()
    colours = star(where)
    probe = input_node(leaf.shape, leaf.dtype)
    with grad_mode(False):
        moved = pushforward([gradient], [leaf], [probe])
        (compressed,) = _products(moved, probe, _seeds(colours, leaf.shape, leaf))
    if compressed is None:
        return csr_array((leaf.size, leaf.size), dtype=leaf.dtype.numpy)
    flat = compressed.reshape(compressed.shape[0], -1)
    rows = np.repeat(np.arange(leaf.size), np.diff(where.indptr))
    columns = where.indices
    # An entry stands alone in its row's product, or in the product of the mirrored entry.
    key = rows * np.int64(flat.shape[0]) + colours[columns]
    order, alone = np.unique(key, return_inverse=True)
    single = np.bincount(alone, minlength=order.size)[alone] == 1
    values = np.where(single, flat[colours[columns], rows], flat[colours[rows], columns])
    return _matrix(where, values)


def _compressed_columns(level: Level, y: Expr, where: Any, colours: np.ndarray) -> np.ndarray:
    """Values of a Jacobian by forward mode, from colours of its columns."""
    (leaf,) = level.leaves
    probe = input_node(leaf.shape, leaf.dtype)
    moved = pushforward([y], [leaf], [probe])
    (made,) = _products(moved, probe, _seeds(colours, leaf.shape, leaf))
    assert made is not None
    flat = made.reshape(made.shape[0], -1)
    rows = np.repeat(np.arange(y.size), np.diff(where.indptr))
    return flat[colours[where.indices], rows]


def _compressed_rows(level: Level, y: Expr, where: Any, colours: np.ndarray) -> np.ndarray:
    """Values of a Jacobian by reverse mode, from colours of its rows."""
    probe = input_node(y.shape, y.dtype)
    pulled = pullback([y], [probe], level.leaves)
    (made,) = _products(pulled, probe, _seeds(colours, y.shape, y))
    assert made is not None
    flat = made.reshape(made.shape[0], -1)
    rows = np.repeat(np.arange(y.size), np.diff(where.indptr))
    return flat[colours[rows], where.indices]


def sparse_jacobian(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    """The Jacobian of a function at `x`, as a SciPy sparse array.

    Parameters
    ----------
    f : callable
        Takes a tensor and returns a tensor.
    x : Tensor

    Returns
    -------
    scipy.sparse.csr_array, shape (f(x).numel(), x.numel())
        The stored entries are those that the graph of `f` allows to be non-zero. Columns or rows,
        whichever need fewer colours, are computed together.

    Examples
    --------
    >>> import symgrad as sg
    >>> j = sg.sparse_jacobian(lambda v: v[1:] * v[:-1], sg.ones(1000))
    >>> j.shape, j.nnz
    ((999, 1000), 1998)
    """
    level, y = _level(f, x, "sparse_jacobian")
    (leaf,) = level.leaves
    from scipy.sparse import csr_array

    if not y.requires_grad:
        return csr_array((y.size, leaf.size), dtype=leaf.dtype.numpy)
    where = pattern([y], leaf)
    where.sort_indices()
    if where.nnz == 0:
        return csr_array((y.size, leaf.size), dtype=leaf.dtype.numpy)
    # No colouring has fewer colours than the fullest row, or column, has entries.
    widest = int(np.diff(where.indptr).max())
    tallest = int(np.diff(where.tocsc().indptr).max())
    with grad_mode(False):
        if widest <= tallest:
            values = _compressed_columns(level, y, where, distance_two(where))
        else:
            colours = distance_two(csr_array(where.T))
            values = _compressed_rows(level, y, where, colours)
    return _matrix(where, values)

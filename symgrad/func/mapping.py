"""`vmap`: a function of one element applied to all elements of a batch.

The function runs once, on placeholders without the batch axis; the graph it records is rebuilt
under that axis (`symgrad.calculus.batching`). Start reading at `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgrad import interface
from symgrad.calculus.batching import batched, rows_of, with_batch
from symgrad.errors import TracedValueError
from symgrad.expr import Expr
from symgrad.func.levels import Argument, Watch, name_of, tracing
from symgrad.func.transforms import wrapped
from symgrad.nesting import flatten, spread, text, unflatten
from symgrad.op import STATE, input_node
from symgrad.ops.arithmetic import where
from symgrad.ops.create import iota
from symgrad.ops.layout import moved_axis
from symgrad.ops.movement import join_axis, reshape
from symgrad.tensor import Tensor

LOOKED = (
    "vmap: the function looked at a value, but its inputs stand for a whole batch. It looks like you are "
    "attempting data-dependent control flow (if, while, assert on a tensor) or calling .item() on a "
    "Tensor, which vmap does not support; use symgrad.where to choose by condition"
)


_SEED_STEP = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples spread evenly over the seeds."""


class _Draws(Watch):
    """A watch that says what random functions do under a batch axis.

    Parameters
    ----------
    inputs : _Inputs
    randomness : {"error", "different", "same"}
    """

    def __init__(self, inputs: _Inputs, randomness: str) -> None:
        super().__init__()
        self.adopt([handle for _, _, handle in inputs.mapped])
        self._inputs = inputs
        self._randomness = randomness

    def key(self, generator: Any) -> Expr:
        """The key of a random draw: one for all elements, or a placeholder for one each."""
        if self._randomness == "error":
            raise RuntimeError(
                "vmap: called random operation while in randomness error mode. Please either use the "
                "'same' or 'different' randomness flags on vmap or perform the randomness operation out of "
                "vmap"
            )
        shared = super().key(generator)
        if self._randomness == "same":
            return shared
        # Element n draws with n steps added to the seed, of a size that no other depth of nesting has.
        depth = 0
        outer = self._outer
        while outer is not None:
            depth += isinstance(outer, _Draws)
            outer = outer._outer
        half = 1 << 63
        step = (pow(_SEED_STEP, depth + 1, 2 * half) + half) % (2 * half) - half
        count = self._inputs.count
        first = iota(count=2) < 1
        steps = where(first, reshape(iota(count=count), (count, 1)) * step, 0)
        own = input_node((2,), shared.dtype)
        self._inputs.placeholders.append(own)
        self._inputs.batches.append(shared + steps)
        return own


class _Inputs:
    """The checked arguments of one call.

    Attributes
    ----------
    count : int
        Size of the batch.
    leaves : list
        The arguments' leaves as the function gets them.
    placeholders, batches : lists of Expr
        Nodes without the batch axis, and the values that they stand for, that axis first.
    mapped : list of (Tensor, int, Tensor)
        Per placeholder the user's tensor, its batch axis, and the handle that the function gets.
    """

    def __init__(self, func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]) -> None:
        name = name_of(func)
        place = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
        if not isinstance(in_dims, int | tuple) or isinstance(in_dims, bool):
            raise ValueError(
                f"{place}: expected `in_dims` to be int or a (potentially nested) tuple matching the "
                f"structure of inputs, got: {type(in_dims)}."
            )
        if not args:
            raise ValueError(
                f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying "
                "to vmap over a function with no inputs. The latter is unsupported."
            )
        self.leaves, self.form = flatten(args)
        dims = spread(in_dims, self.form)
        if dims is None:
            raise ValueError(
                f"{place}: in_dims is not compatible with the structure of `inputs`. in_dims has structure "
                f"{text(flatten(in_dims)[1])} but inputs has structure {text(self.form)}."
            )
        self.placeholders: list[Expr] = []
        self.batches: list[Expr] = []
        self.mapped: list[tuple[Tensor, int, Tensor]] = []
        for number, (leaf, dim) in enumerate(zip(self.leaves, dims, strict=True)):
            if dim is None:
                continue
            if not isinstance(dim, int) or isinstance(dim, bool):
                raise ValueError(
                    f"{place}: Got in_dim={dim} for an input but in_dim must be either an integer dimension "
                    "or None."
                )
            if not isinstance(leaf, Tensor):
                raise ValueError(
                    f"{place}: Got in_dim={dim} for an input but the input is of type {type(leaf)}. We "
                    "cannot vmap over non-Tensor arguments, please use None as the respective in_dim"
                )
            rank = leaf.ndim
            if not -rank <= dim < rank:
                raise ValueError(
                    f"{place}: Got in_dim={dim} for some input, but that input is a Tensor of "
                    f"dimensionality {rank} so expected in_dim to satisfy -{rank} <= in_dim < {rank}."
                )
            self._add(number, leaf, dim % rank)
        sizes = [b.shape[0] for b in self.batches]
        if not sizes:
            raise ValueError("vmap: Expected at least one Tensor to vmap over")
        if any(s != sizes[0] for s in sizes):
            raise ValueError(
                "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
                f"{sizes} for the mapped dimension"
            )
        self.count = sizes[0]

    def _add(self, number: int, leaf: Tensor, dim: int) -> None:
        batch = moved_axis(leaf.expr(), dim, 0)
        stands = input_node(batch.shape[1:], batch.dtype, grad=batch.requires_grad)
        handle = Argument(stands)
        self.placeholders.append(stands)
        self.batches.append(batch)
        self.mapped.append((leaf, dim, handle))
        self.leaves[number] = handle

    def changed(self) -> list[tuple[Tensor, int, Expr]]:
        """Arguments that the function changed in place: tensor, batch axis, new node of one element."""
        found = []
        for (leaf, dim, handle), stands in zip(self.mapped, self.placeholders, strict=False):
            if handle.own_expr() is not stands:
                found.append((leaf, dim, handle.own_expr()))
        return found

    def apply(self, nodes: Sequence[Expr], chunk: int | None) -> list[Expr]:
        """Nodes under the batch axis, at most `chunk` elements at a time."""
        if chunk is None or chunk >= self.count:
            return batched(nodes, self.placeholders, self.batches)
        parts = []
        for start in range(0, self.count, chunk):
            stop = min(start + chunk, self.count)
            rows = [rows_of(b, start, stop) for b in self.batches]
            parts.append(batched(nodes, self.placeholders, rows))
        joined = []
        for node, pieces in zip(nodes, zip(*parts, strict=True), strict=True):
            joined.append(pieces[0] if pieces[0].ndim == node.ndim else join_axis(*pieces, dim=0))
        return joined


def _output_dims(out_dims: Any, form: Any, leaves: Sequence[Any], name: str) -> list[Any]:
    """An axis per output, checked against the outputs."""
    dims = spread(out_dims, form)
    if dims is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the "
            f"structure of `outputs`. out_dims has structure {text(flatten(out_dims)[1])} but outputs has "
            f"structure {text(form)}."
        )
    for leaf, dim in zip(leaves, dims, strict=True):
        if dim is None:
            continue
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise ValueError(
                f"vmap({name}, ..., out_dims={out_dims}): `out_dims` must be an int, None or a python "
                "collection of ints representing where in the outputs the vmapped dimension should appear."
            )
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(leaf)}. Did you mean "
                "to set out_dims= to None for output?"
            )
    return dims


def _placed(node: Expr, made: Expr, dim: int | None, count: int, name: str) -> Tensor:
    """One output with its batch axis where it was asked for."""
    if dim is None:
        if made.ndim > node.ndim:
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None"
            )
        return Tensor(made)
    if made.ndim == node.ndim:
        made = with_batch(made, count)
    if not -made.ndim <= dim < made.ndim:
        raise IndexError(
            f"vmap({name}, ...): Dimension out of range (expected to be in range of [{-made.ndim}, "
            f"{made.ndim - 1}], but got {dim})"
        )
    return Tensor(moved_axis(made, 0, dim % made.ndim))


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function of one element as a function of a batch.

    Parameters
    ----------
    func : callable
        Takes and returns tensors in any nesting; keyword arguments are passed on as they are. It runs
        once, on inputs without values, so Python cannot branch on them: use `symgrad.where`.
    in_dims : int, None or nesting of them
        Which axis of each input is the batch; None for inputs that all elements share.
    out_dims : int, None or nesting of them
        Where the batch axis goes in each output.
    randomness : {"error", "different", "same"}
        What random functions do: refuse, draw for each element, or draw once.
    chunk_size : int, optional
        How many elements are computed together; all by default.

    Returns
    -------
    callable

    Examples
    --------
    >>> import symgrad as sg
    >>> rows = sg.tensor([[1., 2.], [3., 4.]])
    >>> sg.vmap(lambda r: r.sum())(rows), sg.vmap(lambda c: c.sum(), in_dims=1)(rows)
    (tensor([3., 7.]), tensor([4., 6.]))
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
        )
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = name_of(func)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs(func, in_dims, args)
        watch = _Draws(inputs, randomness)
        try:
            with tracing(), watch:
                result = func(*unflatten(inputs.form, inputs.leaves), **kwargs)
                leaves, form = flatten(result)
                nodes = [leaf.expr() for leaf in leaves if isinstance(leaf, Tensor)]
        except TracedValueError as error:
            raise TracedValueError(LOOKED) from error
        dims = _output_dims(out_dims, form, leaves, name)
        STATE.checked = False
        changed = inputs.changed()
        news = [node for _, node in watch.changed] + [node for _, _, node in changed]
        made = inputs.apply([*nodes, *news], chunk_size)
        rest = iter(made[len(nodes) :])
        for target, node in watch.changed:
            new = next(rest)
            if new.ndim > node.ndim:
                raise RuntimeError(
                    f"output with shape {list(node.shape)} doesn't match the broadcast shape "
                    f"{list(new.shape)}: vmap cannot write values that differ between elements into a tensor "
                    "they share; give it a batch axis and pass it in"
                )
            target.write(new)
        for target, dim, node in changed:
            target.write(_placed(node, next(rest), dim, inputs.count, name).expr())
        pairs = iter(zip(nodes, made, strict=False))
        placed: list[Any] = []
        for leaf, dim in zip(leaves, dims, strict=True):
            if isinstance(leaf, Tensor):
                placed.append(_placed(*next(pairs), dim, inputs.count, name))
            else:
                placed.append(leaf)
        if STATE.checked:
            # Ops that can fail on values run at the call, as outside of vmap.
            interface.run_now(placed)
        return unflatten(form, placed)

    return wrapped(func, mapped)

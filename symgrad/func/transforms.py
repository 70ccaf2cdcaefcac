"""Derivatives of functions: `grad`, `vjp`, `jvp`, Jacobians, `hessian`, `linearize`.

Each runs the function once (`symgrad.func.levels.Level`), builds the derivative as an expression
and records it on the arguments, so transforms nest to any order and results stay lazy. Jacobians
are one batched graph, not one graph a row. Start reading at `grad_and_value`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from symgrad.calculus import pullback, pushforward
from symgrad.calculus.batching import jacobian_columns, jacobian_rows, replaced
from symgrad.expr import Expr
from symgrad.func.levels import Level, argument_places
from symgrad.nesting import LEAF, flatten, text, unflatten
from symgrad.op import constant, grad_mode, input_node
from symgrad.ops.movement import full
from symgrad.tensor import Tensor

Function = Callable[..., Any]


def wrapped(function: Function, made: Function) -> Function:
    """`made` under the name of the function it transforms."""
    if hasattr(function, "__name__"):
        return functools.wraps(function)(made)
    return made


def zeros(like: Expr) -> Expr:
    """Zeros in the shape and dtype of a node."""
    return full(0.0, like.shape, like.dtype)


def _shape_as_asked(argnums: Any, values: tuple[Any, ...]) -> Any:
    """A tuple if `argnums` is one, else its only entry."""
    return values if isinstance(argnums, tuple) else values[0]


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """The gradient of a function with a scalar value, as a function.

    Parameters
    ----------
    func : callable
        Returns a 0-d tensor; with `has_aux` a pair of that and anything else.
    argnums : int or tuple of int
        Which positional arguments to differentiate by; they may be nested tuples, lists and dicts
        of tensors.
    has_aux : bool
        Return a pair of the gradient and what the function returns beside its value.

    Returns
    -------
    callable
        Takes the function's arguments; the result is nested as the argument is, in a tuple if
        `argnums` is one.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.grad(sg.func.grad(lambda x: x ** 3))(sg.tensor(2.))
    tensor(12.)
    """
    both = grad_and_value(func, argnums, has_aux)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped(func, gradient)


def grad_and_value(
    func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Function:
    """Like `grad`, for the pair of gradient and value.

    Parameters
    ----------
    func, argnums, has_aux
        As for `grad`.

    Returns
    -------
    callable
        Gives (gradient, value), with `has_aux` (gradient, (value, aux)).

    Raises
    ------
    RuntimeError
        At the call, if the function does not return a scalar tensor.
    """
    name = "grad_and_value(f)(*args)"

    def both(*args: Any, **kwargs: Any) -> Any:
        level = Level(func, args, argument_places(argnums, len(args)), kwargs)
        output, aux = level.split(has_aux, name)
        if not isinstance(output, Tensor):
            raise RuntimeError(f"{name}: Expected f(*args) to return a Tensor, got {type(output)}")
        if output.ndim:
            raise RuntimeError(
                f"{name}: Expected f(*args) to return a scalar Tensor, got tensor with {output.ndim} dims. "
                "Maybe you wanted to use the vjp or jacrev APIs instead?"
            )
        y = output.expr()
        with grad_mode(True):
            start = constant(1.0, y.dtype)
            found = pullback([y], [start], level.leaves)
        filled = [zeros(x) if g is None else g for g, x in zip(found, level.leaves, strict=True)]
        *gradients, value = level.closed([*filled, y])
        shaped = _shape_as_asked(argnums, unflatten(level.form, gradients))
        return shaped, (value, level.closed_tree(aux)) if has_aux else value

    return wrapped(func, both)


def value_and_grad(
    func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Function:
    """Like `grad_and_value`, the value first.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.value_and_grad(lambda x: x * x)(sg.tensor(3.))
    (tensor(9.), tensor(6.))
    """
    both = grad_and_value(func, argnums, has_aux)

    def swapped(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return value, found

    return wrapped(func, swapped)


def outputs_of(value: Any, name: str) -> tuple[list[Expr], Any]:
    """The nodes of a nesting of tensors, and its form."""
    leaves, form = flatten(value)
    if not leaves:
        raise RuntimeError(
            f"{name}: Expected f to be a function that has non-empty output (got output = {value})"
        )
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise RuntimeError(
                f"{name}: expected f(*primals) to return only tensors, got unsupported type {type(leaf)}"
            )
    return [leaf.expr() for leaf in leaves], form


def vectors_of(given: Any, form: Any, likes: list[Expr], what: str, to: str) -> list[Expr]:
    """Cotangents or tangents as nodes, checked against what they belong to."""
    leaves, got = flatten(given)
    if got != form:
        raise RuntimeError(
            f"Expected pytree structure of {what} to be the same as pytree structure of {to}. "
            f"{what}: {text(got)}, {to}: {text(form)}"
        )
    nodes = []
    for leaf, like in zip(leaves, likes, strict=True):
        if not isinstance(leaf, Tensor):
            raise RuntimeError(f"Expected {what} to only contain Tensors, got {type(leaf)}")
        if leaf.expr().shape != like.shape:
            raise RuntimeError(
                f"Mismatch in shape: {what} has a shape of {tuple(leaf.shape)} and {to} has a shape of "
                f"{like.shape}; give one of the same shape"
            )
        if leaf.dtype is not like.dtype:
            raise RuntimeError(
                f"Mismatch in dtype: {what} has {leaf.dtype!r} and {to} has {like.dtype!r}; convert with .to"
            )
        nodes.append(leaf.expr())
    return nodes


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function, and its transposed derivative as a function of cotangents.

    Parameters
    ----------
    func : callable
        Returns tensors in any nesting; with `has_aux` a pair of that and anything else.
    *primals : nestings of tensors
    has_aux : bool

    Returns
    -------
    output, vjp_fn
        With `has_aux` also the aux. ``vjp_fn(cotangents)`` takes what is nested like the output and
        gives a tuple with an entry per primal; it may be called any number of times.

    Examples
    --------
    >>> import symgrad as sg
    >>> y, pull = sg.func.vjp(lambda x: x ** 2, sg.tensor([1., 2.]))
    >>> pull(sg.tensor([1., 10.]))
    (tensor([ 2., 40.]),)
    """
    name = "vjp(f, *primals)"
    level = Level(func, primals, range(len(primals)), {})
    output, aux = level.split(has_aux, name)
    nodes, form = outputs_of(output, name)
    for y in nodes:
        if y.dtype.category < 2:
            raise RuntimeError(
                "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with "
                f"dtype {y.dtype!r}"
            )

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given = vectors_of(cotangents, form, nodes, "cotangents", "outputs to the function")
        with grad_mode(True):
            found = pullback(nodes, given, level.leaves)
        filled = [zeros(x) if g is None else g for g, x in zip(found, level.leaves, strict=True)]
        return unflatten(level.form, level.closed(filled))

    value = unflatten(form, level.closed(nodes))
    return (value, pull, level.closed_tree(aux)) if has_aux else (value, pull)


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """The value of a function and its derivative along tangents, by forward mode.

    Parameters
    ----------
    func : callable
    primals, tangents : tuples of tensors, or of nestings of them
        Alike in nesting, shapes and dtypes.
    strict : bool
        Refuse outputs that do not depend on the primals, instead of a zero tangent.
    has_aux : bool

    Returns
    -------
    output, tangent
        Nested as the function's output; with `has_aux` also the aux.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.jvp(lambda x: x ** 2, (sg.tensor(3.),), (sg.tensor(1.),))
    (tensor(9.), tensor(6.))
    """
    name = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{name}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals)."
        )
    level = Level(func, primals, range(len(primals)), {})
    given = vectors_of(tangents, level.form, level.sources, "tangents", "primals")
    output, aux = level.split(has_aux, name)
    nodes, form = outputs_of(output, name)
    with grad_mode(True):
        moved = pushforward(nodes, level.leaves, given)
    if strict and any(t is None for t in moved):
        raise RuntimeError(
            "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. "
            "This is not allowed with strict=True."
        )
    filled = [zeros(y) if t is None else t for t, y in zip(moved, nodes, strict=True)]
    both = level.closed([*nodes, *filled])
    value = unflatten(form, both[: len(nodes)])
    tangent = unflatten(form, both[len(nodes) :])
    return (value, tangent, level.closed_tree(aux)) if has_aux else (value, tangent)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """The value of a function, and its derivative there as a function of tangents.

    Parameters
    ----------
    func : callable
    *primals : nestings of tensors

    Returns
    -------
    output, jvp_fn
        ``jvp_fn(*tangents)`` takes what is nested like the primals; the derivative is built once.

    Examples
    --------
    >>> import symgrad as sg
    >>> y, move = sg.func.linearize(lambda x: x ** 2, sg.tensor([1., 2.]))
    >>> move(sg.tensor([1., 0.])), move(sg.tensor([0., 1.]))
    (tensor([2., 0.]), tensor([0., 4.]))
    """
    level = Level(func, primals, range(len(primals)), {})
    nodes, form = outputs_of(level.result, "linearize(f, *primals)")
    places = [input_node(x.shape, x.dtype) for x in level.leaves]
    with grad_mode(True):
        moved = pushforward(nodes, level.leaves, places)
    filled = [zeros(y) if t is None else t for t, y in zip(moved, nodes, strict=True)]
    linear = [t.expr() for t in level.closed(filled)]

    def move(*tangents: Any) -> Any:
        given = vectors_of(tangents, level.form, level.sources, "tangents", "primals")
        return unflatten(form, [Tensor(t) for t in replaced(linear, places, given)])

    return unflatten(form, level.closed(nodes)), move


def _jacobian(
    func: Function,
    argnums: Any,
    has_aux: bool,
    name: str,
    blocks: Callable[[list[Expr], list[Expr]], list[list[Expr | None]]],
) -> Function:
    """A function that gives Jacobians, from the rule for their blocks [output][input]."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        level = Level(func, args, argument_places(argnums, len(args)), kwargs)
        output, aux = level.split(has_aux, name)
        nodes, form = outputs_of(output, name)
        with grad_mode(True):
            table = blocks(nodes, level.leaves)
        filled = []
        for y, row in zip(nodes, table, strict=True):
            for x, block in zip(level.leaves, row, strict=True):
                filled.append(full(0.0, y.shape + x.shape, y.dtype) if block is None else block)
        closed = level.closed(filled)
        width = len(level.leaves)
        rows = [
            _shape_as_asked(argnums, unflatten(level.form, closed[k * width : (k + 1) * width]))
            for k in range(len(nodes))
        ]
        result = rows[0] if form == LEAF else unflatten(form, rows)
        return (result, level.closed_tree(aux)) if has_aux else result

    return wrapped(func, jacobian)


def jacrev(
    func: Function,
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Function:
    """The Jacobian of a function, by reverse mode batched over the outputs' elements.

    Parameters
    ----------
    func : callable
        Returns tensors in any nesting; with `has_aux` a pair of that and anything else.
    argnums : int or tuple of int
    has_aux : bool
    chunk_size : int, optional
        How many rows are computed together; all by default.

    Returns
    -------
    callable
        Gives Jacobians of shape ``output.shape + argument.shape``, nested as the output and then as
        the argument. Entries without a path from input to output are 0, whatever else is undefined.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.jacrev(lambda x: x ** 2)(sg.tensor([1., 2.]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"jacrev: `chunk_size` should be greater than 0. (got {chunk_size})")

    def blocks(outputs: list[Expr], inputs: list[Expr]) -> list[list[Expr | None]]:
        return [jacobian_rows(y, inputs, chunk_size) for y in outputs]

    return _jacobian(func, argnums, has_aux, "jacrev(f)(*args)", blocks)


def jacfwd(
    func: Function,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Function:
    """The Jacobian of a function, by forward mode batched over the inputs' elements.

    Parameters
    ----------
    func, argnums, has_aux
        As for `jacrev`.
    randomness : str
        Accepted for torch's sake: the function runs once, so its random numbers are the same in
        all columns.
    chunk_size : int, optional
        How many columns are computed together; all by default.

    Returns
    -------
    callable
        As for `jacrev`.
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"jacfwd: `chunk_size` should be greater than 0. (got {chunk_size})")

    def blocks(outputs: list[Expr], inputs: list[Expr]) -> list[list[Expr | None]]:
        columns = [jacobian_columns(outputs, x, chunk_size) for x in inputs]
        return [list(row) for row in zip(*columns, strict=True)]

    return _jacobian(func, argnums, has_aux, "jacfwd(f)(*args)", blocks)


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """The Hessian of a function, forward over reverse.

    Parameters
    ----------
    func : callable
    argnums : int or tuple of int

    Returns
    -------
    callable
        Gives arrays of shape ``output.shape + argument.shape + argument.shape``.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.hessian(lambda x: (x ** 3).sum())(sg.tensor([1., 2.]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)

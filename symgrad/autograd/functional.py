"""torch.autograd.functional: derivatives of a function at a point.

Structure: `_Call`, one checked run of the user's function on leaves that stand for the inputs.
Jacobians are batched graphs (`symgrad.calculus.batching`), so `vectorize` changes nothing but which
combinations of options are refused. Start reading at `_Call`, then `jacobian`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgrad.calculus import pullback, pushforward
from symgrad.calculus.batching import jacobian_columns, jacobian_rows
from symgrad.expr import Expr
from symgrad.op import INPUT, cast_to, grad_mode
from symgrad.ops.alias import clone, detach
from symgrad.ops.movement import full
from symgrad.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Function = Callable[..., Any]

OUTPUTS = "outputs of the user-provided function"


def _as_tuple(value: Any, what: str, name: str) -> tuple[bool, tuple[Tensor, ...]]:
    """Whether a value is a tuple, and it as a tuple of tensors."""
    is_tuple = isinstance(value, tuple)
    listed = value if is_tuple else (value,)
    for place, element in enumerate(listed):
        if not isinstance(element, Tensor):
            which = f"value at index {place}" if is_tuple else f"given {what}"
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the "
                f"{which} has type {type(element)}."
            )
    return is_tuple, listed


def _leaf(node: Expr, create_graph: bool) -> Expr:
    """A node to differentiate at, with the value of an input."""
    if create_graph and node.requires_grad:
        return Expr(clone, (node,), (), node.shape, node.dtype, True, node.value)
    args = (node,) if node.value is None else ()
    return Expr(INPUT, args, (), node.shape, node.dtype, True, node.value)


class _Call:
    """One run of a function.

    Attributes
    ----------
    leaves : list of Expr
        Stand for the inputs.
    outputs : list of Expr
    many_inputs, many_outputs : bool
        Whether they were given as tuples.
    """

    def __init__(self, func: Function, inputs: Any, name: str, create_graph: bool) -> None:
        self.name = name
        self.create_graph = create_graph
        self.many_inputs, listed = _as_tuple(inputs, "inputs", name)
        self.leaves = [_leaf(t.expr(), create_graph) for t in listed]
        self.outputs: list[Expr] = []
        self.many_outputs = False
        self._func = func

    def run(self, strict: bool) -> None:
        """Call the function."""
        with grad_mode(True):
            result = self._func(*[Tensor(leaf) for leaf in self.leaves])
        self.many_outputs, listed = _as_tuple(result, OUTPUTS, self.name)
        self.outputs = [t.expr() for t in listed]
        if strict:
            for number, y in enumerate(self.outputs):
                if not y.requires_grad:
                    raise RuntimeError(
                        f"Output {number} of the user-provided function does not require gradients. The "
                        "outputs must be computed in a differentiable manner from the input when running "
                        "in strict mode."
                    )

    def single(self) -> Expr:
        """The one output of one element."""
        if self.many_outputs:
            raise RuntimeError(f"The function given to {self.name} should return a single Tensor")
        (y,) = self.outputs
        if y.size != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {self.name} should contain a single element"
            )
        return y

    def vector(self, v: Any, likes: Sequence[Expr], is_tuple: bool, missing: str) -> list[Expr]:
        """The nodes of `v`, checked against what it multiplies; ones where it may be left out."""
        if v is None:
            if len(likes) != 1 or likes[0].size != 1:
                raise RuntimeError(f"The vector v can only be None if {missing}")
            return [full(1.0, likes[0].shape, likes[0].dtype)]
        _, listed = _as_tuple(v, "v", self.name)
        if len(listed) != len(likes):
            if is_tuple:
                raise RuntimeError(
                    f"v is a tuple of invalid length: should be {len(likes)} but got {len(listed)}."
                )
            raise RuntimeError("The given v should contain a single Tensor.")
        for place, (t, like) in enumerate(zip(listed, likes, strict=True)):
            if t.expr().shape != like.shape:
                entry = f"Entry {place} in " if is_tuple else ""
                raise RuntimeError(
                    f"{entry}v has invalid size: should be torch.Size({list(like.shape)}) but got "
                    f"torch.Size({list(t.shape)})."
                )
        return [cast_to(t.expr(), like.dtype) for t, like in zip(listed, likes, strict=True)]

    def input_vector(self, v: Any) -> list[Expr]:
        """`vector` for a `v` shaped like the inputs."""
        missing = (
            "the input to the user-provided function is a single Tensor with a single element."
        )
        return self.vector(v, self.leaves, self.many_inputs, missing)

    def gradient(self, strict: bool) -> list[Expr]:
        """The gradient of the one output, recorded for another derivative."""
        y = self.single()
        with grad_mode(True):
            found = self.pulled([y], [full(1.0, y.shape, y.dtype)])
            gradients = self.filled(found, self.leaves)
        if strict:
            for number, (g, made) in enumerate(zip(found, gradients, strict=True)):
                if g is None:
                    raise RuntimeError(
                        f"Output 0 of the user-provided function is independent of input {number}. This is "
                        "not allowed in strict mode."
                    )
                if not made.requires_grad:
                    raise RuntimeError(
                        "While computing the hessian, found that the jacobian of the user-provided function "
                        f"with respect to input {number} is independent of the input. This is not allowed "
                        "in strict mode. You should ensure that your function is twice differentiable and "
                        "that the jacobian depends on the inputs (this would be violated by a linear "
                        "function for example)."
                    )
        return gradients

    def pulled(self, outputs: Sequence[Expr], cotangents: Sequence[Expr]) -> list[Expr | None]:
        """Cotangents of the inputs; outputs without history contribute nothing."""
        pairs = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if y.requires_grad]
        return pullback([y for y, _ in pairs], [g for _, g in pairs], self.leaves)

    def filled(self, found: Sequence[Expr | None], likes: Sequence[Expr]) -> list[Expr]:
        """Zeros where there is no derivative."""
        return [
            full(0.0, x.shape, x.dtype) if g is None else g
            for g, x in zip(found, likes, strict=True)
        ]

    def finished(self, nodes: Sequence[Expr], is_tuple: bool) -> Any:
        """Tensors, in a tuple if asked; without history unless `create_graph`."""
        made = [
            Tensor(detach(n) if n.requires_grad and not self.create_graph else n) for n in nodes
        ]
        return tuple(made) if is_tuple else made[0]


def _refuse_independent(found: Sequence[Expr | None], strict: bool, words: str) -> None:
    """In strict mode refuse derivatives without a path."""
    if strict:
        for number, g in enumerate(found):
            if g is None:
                raise RuntimeError(f"{words.format(number)} This is not allowed in strict mode.")


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of a function and the product of a vector with its Jacobian.

    Parameters
    ----------
    func : callable
        Takes tensors and returns a tensor or a tuple of tensors.
    inputs : Tensor or tuple of Tensor
    v : Tensor or tuple of Tensor, optional
        Shaped like the output; may be left out if that is one element.
    create_graph : bool
        Record value and product for further derivatives.
    strict : bool
        Refuse inputs that no output depends on, instead of zeros.

    Returns
    -------
    outputs, vjp : Tensor or tuple of Tensor
        The second is shaped like the inputs.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.autograd.functional.vjp(lambda x: x ** 2, sg.tensor([1., 2.]), sg.tensor([1., 10.]))
    (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    call = _Call(func, inputs, "vjp", create_graph)
    call.run(strict)
    missing = "the user-provided function returns a single Tensor with a single element."
    given = call.vector(v, call.outputs, call.many_outputs, missing)
    with grad_mode(create_graph):
        found = call.pulled(call.outputs, given)
        words = "The output of the user-provided function is independent of input {}."
        _refuse_independent(found, strict, words)
        filled = call.filled(found, call.leaves)
    return call.finished(call.outputs, call.many_outputs), call.finished(filled, call.many_inputs)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of a function and the product of its Jacobian with a vector.

    Parameters
    ----------
    func, inputs, create_graph
        As for `vjp`.
    v : Tensor or tuple of Tensor, optional
        Shaped like the inputs; may be left out if they are one element.
    strict : bool
        Refuse outputs that depend on no input, instead of zeros.

    Returns
    -------
    outputs, jvp : Tensor or tuple of Tensor
        Both shaped like the output.
    """
    call = _Call(func, inputs, "jvp", create_graph)
    given = call.input_vector(v)
    call.run(strict)
    with grad_mode(create_graph):
        found = pushforward(call.outputs, call.leaves, given)
        words = "Output {} of the user-provided function is independent of the inputs."
        _refuse_independent(found, strict, words)
        filled = call.filled(found, call.outputs)
    outputs = call.finished(call.outputs, call.many_outputs)
    return outputs, call.finished(filled, call.many_outputs)


def _check_strategy(strategy: str, vectorize: bool, strict: bool, what: str) -> bool:
    """Whether a strategy is forward mode, with torch's refusals."""
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            f'Expected {what} to be either "forward-mode" or "reverse-mode" (got {strategy!r}). Hint: If '
            'your function has more outputs than inputs, "forward-mode" tends to be more performant. '
            'Otherwise, prefer to use "reverse-mode".'
        )
    forward = strategy == "forward-mode"
    if forward and strict:
        raise RuntimeError(
            'torch.autograd.functional.jacobian: `strict=True` and `strategy="forward-mode"` are not '
            "supported together (yet). Please either set `strict=False` or "
            '`strategy="reverse-mode"`.'
        )
    if forward and not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for "
            "`vectorize=True`."
        )
    if vectorize and strict:
        raise RuntimeError(
            "torch.autograd.functional.jacobian: `strict=True` and `vectorized=True` are not supported "
            "together. Please either set `strict=False` or `vectorize=False`."
        )
    return forward


def _blocks(call: _Call, outputs: Sequence[Expr], forward: bool) -> list[list[Expr | None]]:
    """Jacobians of outputs with respect to the inputs, [output][input]."""
    if forward:
        columns = [jacobian_columns(outputs, x) for x in call.leaves]
        return [list(row) for row in zip(*columns, strict=True)]
    nothing: list[Expr | None] = [None] * len(call.leaves)
    return [jacobian_rows(y, call.leaves) if y.requires_grad else nothing for y in outputs]


def _table(
    call: _Call, outputs: Sequence[Expr], blocks: list[list[Expr | None]], many_outputs: bool
) -> Any:
    """Blocks as tensors in tuples, zeros filled in."""
    rows = []
    for y, row in zip(outputs, blocks, strict=True):
        filled = [
            full(0.0, y.shape + x.shape, y.dtype) if j is None else j
            for x, j in zip(call.leaves, row, strict=True)
        ]
        rows.append(call.finished(filled, call.many_inputs))
    return tuple(rows) if many_outputs else rows[0]


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of a function.

    Parameters
    ----------
    func, inputs, create_graph
        As for `vjp`.
    strict : bool
        Refuse outputs that do not depend on an input, instead of zeros.
    vectorize : bool
        Accepted for torch's sake: rows are always computed together.
    strategy : {"reverse-mode", "forward-mode"}
        The latter pays for few inputs and many outputs; needs `vectorize`.

    Returns
    -------
    Tensor or nested tuples of Tensor
        ``[output][input]``, of shape ``output.shape + input.shape``; no tuple where the inputs or
        the output were given without one. Entries without a path are 0, whatever else is undefined.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.autograd.functional.jacobian(lambda x: x ** 2, sg.tensor([1., 2.]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    forward = _check_strategy(strategy, vectorize, strict, "strategy")
    call = _Call(func, inputs, "jacobian", create_graph)
    call.run(strict)
    with grad_mode(create_graph):
        blocks = _blocks(call, call.outputs, forward)
        if strict:
            _check_blocks(blocks, create_graph)
        return _table(call, call.outputs, blocks, call.many_outputs)


def _check_blocks(blocks: list[list[Expr | None]], create_graph: bool) -> None:
    """In strict mode refuse Jacobians without a path."""
    for i, row in enumerate(blocks):
        for j, block in enumerate(row):
            if block is None:
                raise RuntimeError(
                    f"Output {i} of the user-provided function is independent of input {j}. This is not "
                    "allowed in strict mode."
                )
            if create_graph and not block.requires_grad:
                raise RuntimeError(
                    f"The jacobian of the user-provided function is independent of input {j}. This is not "
                    "allowed in strict mode when create_graph=True."
                )


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function with a single value.

    Parameters
    ----------
    func, inputs, create_graph, strict, vectorize
        As for `jacobian`; the function returns one element.
    outer_jacobian_strategy : {"reverse-mode", "forward-mode"}
        How the gradient is differentiated.

    Returns
    -------
    Tensor or nested tuples of Tensor
        ``[i][j]``, of shape ``inputs[i].shape + inputs[j].shape``; no tuples for a single tensor.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.autograd.functional.hessian(lambda x: (x ** 3).sum(), sg.tensor([1., 2.]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    forward = _check_strategy(outer_jacobian_strategy, vectorize, strict, "outer_jacobian_strategy")
    call = _Call(func, inputs, "hessian", create_graph)
    call.run(strict)
    gradients = call.gradient(strict)
    with grad_mode(create_graph):
        blocks = _blocks(call, gradients, forward)
        if strict:
            _check_blocks(blocks, create_graph)
        return _table(call, gradients, blocks, call.many_inputs)


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of a function and the product of a vector with its Hessian, by reverse mode.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As for `hessian`.
    v : Tensor or tuple of Tensor, optional
        Shaped like the inputs; may be left out if they are one element.

    Returns
    -------
    output : Tensor
    vhp : Tensor or tuple of Tensor
        Shaped like the inputs.
    """
    call = _Call(func, inputs, "vhp", create_graph)
    given = call.input_vector(v)
    call.run(strict)
    gradients = call.gradient(strict)
    with grad_mode(create_graph):
        return _product(call, call.pulled(gradients, given), strict)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of a function and the product of its Hessian with a vector, forward over reverse.

    Parameters
    ----------
    func, inputs, v, create_graph, strict
        As for `vhp`.

    Returns
    -------
    output : Tensor
    hvp : Tensor or tuple of Tensor
        Shaped like the inputs.
    """
    call = _Call(func, inputs, "hvp", create_graph)
    given = call.input_vector(v)
    call.run(strict)
    gradients = call.gradient(strict)
    with grad_mode(create_graph):
        return _product(call, pushforward(gradients, call.leaves, given), strict)


def _product(call: _Call, found: Sequence[Expr | None], strict: bool) -> tuple[Any, Any]:
    """The value and a product with the Hessian."""
    words = "The jacobian of the user-provided function is independent of input {}."
    _refuse_independent(found, strict, words)
    value = call.finished(call.outputs, call.many_outputs)
    return value, call.finished(call.filled(found, call.leaves), call.many_inputs)

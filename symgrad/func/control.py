"""Control flow as functions: `scan`, `while_loop`, `cond`.

A scan runs its function once, on placeholders, and records a loop with that body
(`symgrad.ops.loop`): a thousand steps are one node, differentiable in both modes, and compile as
fast as one step. So does `while_loop`, in eager mode too, where a program has the bits of its
compiled self; what needs Python in every step has that in eager mode. Start reading at `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgrad import interface
from symgrad.body import closed_body
from symgrad.creation import tensor, zeros
from symgrad.dtypes import DType, bool_
from symgrad.errors import TracedValueError
from symgrad.expr import Expr, ancestors
from symgrad.func.levels import Watch, name_of, tracing
from symgrad.nesting import flatten, text, unflatten
from symgrad.op import STATE, cast_to, grad_mode, input_node
from symgrad.ops.arithmetic import where
from symgrad.ops.layout import moved_axis
from symgrad.ops.loop import UNTIL, Results, loop
from symgrad.ops.movement import reshape, wrap_dim
from symgrad.tensor import Tensor

LOOKED = (
    "scan: the function looked at a value, but its inputs stand for those of every step (data-dependent "
    "if, while, assert or .item()); use symgrad.where to choose by condition"
)


class _Quiet(Watch):
    """A watch that refuses random draws."""

    def key(self, generator: Any) -> Expr:
        """Refused: each step would draw the same numbers."""
        raise RuntimeError(
            "scan: the function draws random numbers, which would be the same in every step; draw them "
            "before the scan, with a leading axis for the steps, and pass them in xs"
        )


def _number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex) and not isinstance(value, Tensor)


class _Trace:
    """One run of a scan's function on placeholders.

    Attributes
    ----------
    inputs : list of Expr
        Placeholders of what is carried, then of the rows.
    carried, rows : lists of Expr
        What the function returned.
    form
        The nesting of the rows, with the place of those that are no tensors.
    """

    def __init__(
        self,
        combine_fn: Callable[..., Any],
        carried: Sequence[tuple[tuple[int, ...], DType]],
        rows: Sequence[Expr],
        init_form: Any,
        xs_form: Any,
    ) -> None:
        self.inputs = [
            input_node(shape, dtype, grad=dtype.category >= 2)
            for shape, dtype in (*carried, *[(x.shape[1:], x.dtype) for x in rows])
        ]
        handles = [Tensor(x) for x in self.inputs]
        count = len(carried)
        state = unflatten(init_form, list(handles[:count]))
        row = None if xs_form is None else unflatten(xs_form, list(handles[count:]))
        watch = _Quiet()
        watch.adopt(handles)
        try:
            with grad_mode(True), tracing(), watch:
                result = combine_fn(state, row)
                self._take(result, combine_fn, carried, init_form)
        except TracedValueError as error:
            raise TracedValueError(LOOKED) from error
        if watch.changed:
            raise RuntimeError(
                f"scan: {name_of(combine_fn)} writes to a tensor from outside (got one of shape "
                f"{tuple(watch.changed[0][0].shape)}); carry it, and return its new value"
            )

    def _take(
        self,
        result: Any,
        combine_fn: Callable[..., Any],
        carried: Sequence[tuple[tuple[int, ...], DType]],
        init_form: Any,
    ) -> None:
        name = name_of(combine_fn)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"scan: {name} must return a pair, the next carry and a row of the results or None (got "
                f"{_nesting(result)})"
            )
        leaves, form = flatten(result[0])
        if form != init_form:
            raise TypeError(
                f"scan: {name} must return a carry nested like init (got {text(form)}, init is {text(init_form)})"
            )
        self.carried = []
        for leaf, (shape, dtype) in zip(leaves, carried, strict=True):
            if not isinstance(leaf, Tensor) and not _number(leaf):
                raise TypeError(
                    f"scan: {name} returns a carry that is no tensor (got {type(leaf).__name__}); carry "
                    "tensors and numbers only"
                )
            node = leaf.expr() if isinstance(leaf, Tensor) else tensor(leaf, dtype=dtype).expr()
            if node.shape != shape:
                raise RuntimeError(
                    f"scan: {name} returns a carry of shape {node.shape} for one of shape {shape}; it must "
                    "stay the same from step to step"
                )
            self.carried.append(node)
        leaves, self.form = flatten(result[1])
        self.rows = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                self.rows.append(leaf.expr())
            elif leaf is not None:
                raise TypeError(
                    f"scan: {name} returns a row that is neither tensor nor None (got {type(leaf).__name__})"
                )
        self.present = [isinstance(leaf, Tensor) for leaf in leaves]


def _stacks(xs: Any, length: int | None, dim: int) -> tuple[list[Expr], Any, int]:
    """The sequences with the steps in front, their nesting, and how many steps there are."""
    if xs is None:
        if length is None:
            raise ValueError("scan: got neither xs nor length; say how many steps to make")
        return [], None, length
    leaves, form = flatten(xs)
    stacks = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"scan: xs must hold tensors only (got {type(leaf).__name__})")
        if leaf.ndim == 0:
            raise ValueError("scan: a tensor in xs has no axis for the steps (got shape ())")
        stacks.append(moved_axis(leaf.expr(), wrap_dim("scan", dim, leaf.ndim), 0))
    sizes = [x.shape[0] for x in stacks]
    if length is not None:
        sizes.append(length)
    if any(s != sizes[0] for s in sizes):
        raise ValueError(f"scan: xs and length must agree on the number of steps (got {sizes})")
    if not sizes:
        raise ValueError("scan: xs holds no tensor; pass length")
    return stacks, form, sizes[0]


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """A loop as one node: a function applied once per row, handing a carry on.

    Parameters
    ----------
    combine_fn : callable
        Takes the carry and a row of `xs` (None without `xs`) and returns the next carry and a row of
        results (or None). It runs once, on inputs without values, so Python cannot branch on them:
        use `symgrad.where`. What it uses from outside is shared by all steps.
    init : tensor, number or nesting of them
        The first carry. The carry keeps its nesting, shapes and dtypes; a Python number takes the
        dtype that it gets in the first step.
    xs : tensor or nesting of them, optional
        Sequences, one row a step.
    length : int, optional
        How many steps, if `xs` does not say.
    dim : int
        The axis of the steps in `xs`.
    reverse : bool
        Whether to run from the last row to the first; results keep the places of their rows.

    Returns
    -------
    carry : nesting like `init`
        After the last step.
    ys : nesting
        The rows of results, stacked along a new first axis.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If nestings, shapes, dtypes or lengths do not fit, with what was got and wanted.
    TracedValueError
        If the function looks at a value.

    Examples
    --------
    >>> import symgrad as sg
    >>> rates = sg.tensor([0.1, 0.2, 0.3], requires_grad=True)
    >>> total, path = sg.scan(lambda c, r: (c * (1 + r), c), sg.tensor(1.0), rates)
    >>> total, path
    (tensor(1.7160, grad_fn=<LoopBackward0>), tensor([1.0000, 1.1000, 1.3200], grad_fn=<LoopBackward0>))
    >>> sg.autograd.grad(total, rates)
    (tensor([1.5600, 1.4300, 1.3200]),)
    """
    if length is not None and (
        isinstance(length, bool) or not isinstance(length, int) or length < 0
    ):
        raise ValueError(f"scan: length must be an int of at least 0 (got {length!r})")
    stacks, xs_form, steps = _stacks(xs, length, dim)
    return _scanned(combine_fn, init, stacks, xs_form, steps, reverse)


def _scanned(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    stacks: list[Expr],
    xs_form: Any,
    steps: int,
    reverse: bool,
) -> tuple[Any, Any]:
    """The carry after the last step and the stacked rows of a loop."""
    leaves, init_form = flatten(init)
    first = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and not _number(leaf):
            raise TypeError(
                f"scan: init must hold tensors and numbers only (got {type(leaf).__name__})"
            )
        first.append(leaf.expr() if isinstance(leaf, Tensor) else tensor(leaf).expr())
    while True:
        trace = _Trace(combine_fn, [(x.shape, x.dtype) for x in first], stacks, init_form, xs_form)
        adapted = False
        for k, (leaf, node) in enumerate(zip(leaves, trace.carried, strict=True)):
            if node.dtype is not first[k].dtype:
                if not _number(leaf) or node.dtype.category < first[k].dtype.category:
                    raise RuntimeError(
                        f"scan: {name_of(combine_fn)} returns a carry of dtype {node.dtype!r} for one of "
                        f"{first[k].dtype!r}; convert it, or begin with that dtype"
                    )
                first[k] = cast_to(first[k], node.dtype)
                adapted = True
        if not adapted:
            break
    finals, rows = _recorded(trace, first, stacks, steps, reverse)
    found = iter(rows)
    placed = [next(found) if here else None for here in trace.present]
    return unflatten(init_form, list(finals)), unflatten(trace.form, placed)


def _recorded(
    trace: _Trace, first: list[Expr], stacks: list[Expr], steps: int, backward: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of the carry after the last step and of the stacked rows."""
    if steps == 0:
        empty = [zeros((0, *y.shape), dtype=y.dtype) for y in trace.rows]
        return [Tensor(x) for x in first], empty
    body, outside = closed_body(trace.inputs, [*trace.carried, *trace.rows])
    numbering = Results(len(first), len(trace.rows))

    def result(number: int) -> Tensor:
        return interface.wrap(
            loop(
                *first,
                *stacks,
                *outside,
                body=body,
                carries=len(first),
                sequences=len(stacks),
                length=steps,
                backward=backward,
                result=number,
            )
        )

    finals = [result(numbering.final(k)) for k in range(len(first))]
    rows = [result(numbering.rows(k)) for k in range(len(trace.rows))]
    if any(getattr(n.op, "eager_check", False) for n in body.nodes):
        # Ops that can fail on values run at the call, as outside of a scan.
        interface.run_now([*finals, *rows])
    return finals, rows


def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """One function or another.

    Parameters
    ----------
    pred : bool or tensor of one element
    true_fn, false_fn : callable
        Take the operands and return the same nesting of tensors. Inside a compiled or otherwise
        traced function both are recorded, and `symgrad.where` takes the values of one of them.
    operands : sequence
        Arguments of either function.

    Returns
    -------
    nesting of tensors

    Raises
    ------
    TypeError
        If the functions return different nestings.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor(-2.0)
    >>> sg.cond(x > 0, lambda x: x, lambda x: x * x, (x,))
    tensor(4.)
    """
    if not callable(true_fn) or not callable(false_fn):
        raise TypeError("cond: true_fn and false_fn must be functions of the operands")
    if isinstance(pred, bool):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, Tensor):
        raise TypeError(f"cond: pred must be a bool or a tensor (got {type(pred).__name__})")
    if pred.numel() != 1:
        raise RuntimeError(
            f"cond: pred must have one element (got shape {tuple(pred.shape)}); use symgrad.where to choose "
            "element by element"
        )
    if not STATE.tracing:
        return true_fn(*operands) if bool(pred) else false_fn(*operands)
    yes, form = flatten(true_fn(*operands))
    no, other = flatten(false_fn(*operands))
    if form != other:
        raise TypeError(
            f"cond: true_fn and false_fn must return the same nesting (got {text(form)} and {text(other)})"
        )
    test = reshape(cast_to(pred.expr(), bool_), ())
    chosen: list[Any] = []
    for a, b in zip(yes, no, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if a != b:
                raise TypeError(f"cond: the functions must return tensors (got {a!r} and {b!r})")
            chosen.append(a)
            continue
        if a.shape != b.shape or a.dtype is not b.dtype:
            raise RuntimeError(
                f"cond: the functions must return equal shapes and dtypes (got {tuple(a.shape)} "
                f"{a.dtype!r} and {tuple(b.shape)} {b.dtype!r})"
            )
        chosen.append(Tensor(where(test, a.expr(), b.expr())))
    return unflatten(form, chosen)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Repeat a function while a condition holds.

    Parameters
    ----------
    cond_fn : callable
        Takes the carried values and returns a bool or a tensor of one element.
    body_fn : callable
        Takes the carried values and returns their next ones, as a tuple of equal length.
    carried_inputs : sequence
        The first values.

    Returns
    -------
    tuple

    Raises
    ------
    TypeError, RuntimeError
        If the functions return other nestings, shapes or dtypes than they got.

    Notes
    -----
    The loop is one node, in eager mode as in a compiled function: both functions run once, on inputs
    without values, and how many steps are made is found when the loop runs. Count steps in a carried
    value, since a variable of Python's sees one step. Python numbers become tensors, of the default dtype
    if nothing else gives them one. Forward mode, reverse mode and `symgrad.vmap` go through it, at any
    order; under a batch axis the loop goes on until all elements are done, and each keeps the values of
    its own last step.

    In eager mode functions that cannot run so are called step by step, and derivatives flow through the
    steps that were made: those that look at values in Python, draw random numbers, change tensors in
    place that they did not make, register hooks, call an `autograd.Function`, or whose carried values
    change shape or dtype. They have run on inputs without values before.

    The gradient of the node is that of the steps that were made. It runs the loop again, to count them
    and to keep the carried values before up to 1024 of them (fewer if they take more than 4 MB, but 16
    at least); of a longer loop, values between those are computed again, so memory does not grow with
    the number of steps, while T steps take time in proportion to T + T² / 2048. Where few numbers go
    in and carried values are single ones, tangents are carried along in place of that. Values have the
    bits of the steps one by one; gradients equal theirs up to rounding, as sums over steps are taken in
    another order.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.while_loop(lambda x: x < 100.0, lambda x: (x * x,), (sg.tensor(3.0),))
    (tensor(6561.),)
    """
    if not callable(cond_fn) or not callable(body_fn):
        raise TypeError("while_loop: cond_fn and body_fn must be functions of the carried values")
    carried = tuple(carried_inputs)

    def advanced(values: tuple[Any, ...]) -> tuple[Any, ...]:
        following = body_fn(*values)
        if not isinstance(following, tuple | list) or len(following) != len(carried):
            raise TypeError(
                f"while_loop: body_fn must return {len(carried)} carried values as a tuple (got "
                f"{_nesting(following)})"
            )
        return tuple(following)

    going = cond_fn(*carried)
    recorded = _until(cond_fn, advanced, going, carried)
    if recorded is not None:
        return recorded
    while going:
        carried = advanced(carried)
        going = cond_fn(*carried)
    return carried


def _until(
    cond_fn: Callable[..., Any],
    advanced: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    going: Any,
    carried: tuple[Any, ...],
) -> tuple[Any, ...] | None:
    """The last values of a loop as a node; None in eager mode if its steps must run in Python."""
    eager = not STATE.tracing

    def step(state: tuple[Any, ...], _: None) -> tuple[Any, None]:
        values = state[1:]
        before = _nodes(values)
        following = advanced(values)
        holds = cond_fn(*following)
        if eager:
            _check_recordable(before, _nodes(values), holds, _nodes((following, holds)))
        return (_truth(holds), *following), None

    def recorded() -> tuple[Any, ...]:
        state, _ = _scanned(step, (_truth(going), *carried), [], None, UNTIL, False)
        return tuple(state[1:])

    if not eager:
        return recorded()
    if not isinstance(going, Tensor) and not any(_number(x) for x in flatten(carried)[0]):
        return None
    try:
        return recorded()
    except Exception:
        # Whatever a run without values meets, the steps meet too if it is an error.
        return None


class _StepByStepError(Exception):
    """A loop of eager mode cannot be a node."""


def _nodes(values: Any) -> list[Expr]:
    """Those of the tensors in a nesting."""
    return [x.expr() for x in flatten(values)[0] if isinstance(x, Tensor)]


def _check_recordable(
    before: Sequence[Expr], after: Sequence[Expr], holds: Any, outputs: Sequence[Expr]
) -> None:
    """Refuse a step of eager mode that a node would not repeat, given the nodes of what is carried."""
    if any(a is not b for a, b in zip(before, after, strict=True)):
        raise _StepByStepError("a carried tensor is changed in place, which is the caller's")
    if not isinstance(holds, Tensor):
        raise _StepByStepError("the condition follows from something that is not carried")
    if _calls_back(outputs):
        raise _StepByStepError("a function of the user's waits for the derivative of every step")


def _calls_back(outputs: Sequence[Expr]) -> bool:
    """Whether what computes some nodes has a derivative that is code."""
    for n in ancestors(outputs, lambda n: n.value is None):
        if n.op.family == "function":
            return True
        if n.op.family == "region" and _calls_back(n.attributes()["body"].outputs):
            return True
    return False


def _nesting(value: Any) -> str:
    """What a function returned, for messages: a type, or a nesting of values."""
    _, form = flatten(value)
    found = text(form)
    return type(value).__name__ if found == "*" else f"{found}, with a star for each value"


def _truth(value: Any) -> Tensor:
    """A condition as a tensor of one truth value without axes."""
    if not isinstance(value, Tensor):
        return tensor(bool(value))
    if value.numel() != 1:
        raise RuntimeError(
            f"while_loop: cond_fn must return one truth value (got shape {tuple(value.shape)}); use .all() "
            "or .any()"
        )
    return Tensor(reshape(cast_to(value.expr(), bool_), ()))

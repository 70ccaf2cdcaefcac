"""Functions whose derivative is code: how they stand in the expression graph.

A call of such a function is one node (`APPLY`) over everything that its derivative may need, and
one node per result (`RESULT`) that has the value of what was computed and the history of the call.
Results pass their cotangents on in a `GATHER` node that says which result it is from, so the
call's derivative runs once with all of them. Nothing of this is ever computed: programs see
through `RESULT` to its value.

Structures:

* `Call`: what a kind of function knows of one call; a subclass gives `pull` (and `push`). It is
  kept as the `meta` of the call's last argument, a node of its own, so that structures stay equal
  from call to call while calls stay apart.

Start reading at `apply`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.calculus.batching import batched
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import INPUT, STATE, Op, grad_mode, input_node
from symgrad.ops.arithmetic import add
from symgrad.ops.movement import full


class Call:
    """One call of a function whose derivative is code.

    Attributes
    ----------
    name : str
        The node's name, such as ``CubeBackward``.
    operands : int
        How many of the node's arguments are differentiated; they come first.
    results : list of (shape, dtype)
    node, projections : weak references to the node and to its results.
    traceback : str or None
        Where the call was made, in anomaly mode.
    """

    def __init__(
        self, name: str, operands: int, results: Sequence[tuple[tuple[int, ...], DType]]
    ) -> None:
        self.name = name
        self.operands = operands
        self.results = list(results)
        self.node: Any = None
        self.projections: list[Any] = []
        self.traceback: str | None = None

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """Cotangents of the operands from those of the results, None where there is none."""
        raise NotImplementedError

    def push(self, tangents: Sequence[Expr]) -> Sequence[Expr | None]:
        """Tangents of the results from those of the operands."""
        raise NotImplementedError(
            f"You must implement the jvp function for custom autograd.Function to use it with forward "
            f"mode AD (got none for {self.name})."
        )

    def zeros(self, number: int) -> Expr:
        """Zeros in the shape of a result."""
        shape, dtype = self.results[number]
        return full(0.0 if dtype.category >= 2 else 0, shape, dtype)


class _Apply(Op):
    """The call: arguments are its operands, what it saved, its results' values and its token."""

    name = "apply"
    family = "function"
    rule = "adjoint"
    linear = "joint"
    public = False

    def __call__(self, *tangents: Any, **attrs: Any) -> Expr:
        """The tangents of the results, packed."""
        call = call_of_token(tangents[-1])
        pushed = call.push(tangents[: call.operands])
        parts = [call.zeros(k) if t is None else t for k, t in enumerate(pushed)]
        return Expr(PACK, tuple(parts), (), (), dtypes.float64)

    @staticmethod
    def adjoint(g: Expr, *args: Expr, **attrs: Any) -> tuple[Expr | None, ...]:
        call = call_of_token(args[-1])
        node, cotangents = gathered(g, len(call.results))
        found = call.pull(node, cotangents)
        return (*found, *(None for _ in args[len(found) :]))

    @staticmethod
    def batched(count: int, *args: Expr) -> Expr:
        """The call for each element of a batch: its code runs on one, recorded for all."""
        token = args[-1]
        while token.op is not INPUT:
            (token,) = token.args
        call = _BatchedCall(count, call_of_token(token), args)
        fresh = _token(call)
        made = Expr(APPLY, (*args[:-1], fresh), (), (count,), dtypes.float64)
        made.requires_grad = STATE.grad and any(a.requires_grad for a in args)
        call.node = weakref.ref(made)
        return made


class _Result(Op):
    """One result of a call: the value of the first argument, the history of the second."""

    name = "result"
    family = "alias"
    rule = "adjoint"
    linear = "joint"
    attributes = ("number",)
    public = False

    def __call__(self, value: Any, call: Any, *, number: int = 0, **attrs: Any) -> Expr:
        if call.op is PACK:
            return call.args[number]
        if call.op is not APPLY:
            return full(0.0, value.shape, value.dtype)
        return Expr(RESULT, (value, call), (number,), value.shape, value.dtype, call.requires_grad)

    @staticmethod
    def adjoint(g: Expr, *args: Expr, **attrs: Any) -> tuple[Expr | None, ...]:
        call = args[1]
        return None, Expr(GATHER, (g, call), (attrs["number"],), call.shape, dtypes.float64)

    @staticmethod
    def batched(count: int, value: Expr, call: Expr, *, number: int) -> Expr:
        return Expr(RESULT, (value, call), (number,), value.shape, value.dtype, call.requires_grad)


class _Gather(Op):
    """The cotangent of one result on its way to the call."""

    name = "gather_results"
    family = "function"
    attributes = ("number",)
    differentiable = False
    public = False


class _Pack(Op):
    """The tangents of all results on their way to each."""

    name = "pack_results"
    family = "function"
    differentiable = False
    public = False


APPLY, RESULT, GATHER, PACK = _Apply(), _Result(), _Gather(), _Pack()


def _call_node(args: tuple[Expr, ...], attrs: tuple[Any, ...] = ()) -> Expr:
    """The node of a call. It counts as computed, so that evaluation does not go on behind it."""
    node = Expr(APPLY, args, (), (), dtypes.float64)
    node.requires_grad = STATE.grad and any(a.requires_grad for a in args)
    if not STATE.tracing:
        node.value = 0.0
    return node


# A call that is recorded again, on other arguments, is made by the same rule.
APPLY.rewrites = (_call_node,)


def _token(call: Call) -> Expr:
    token = Expr(INPUT, (), (), (), dtypes.int64, False, np.array(0))
    token.meta = call
    return token


def call_of_token(token: Expr) -> Call:
    """The call that a token stands for."""
    call = token.meta
    assert isinstance(call, Call)
    return call


def call_of(node: Expr) -> Call:
    """The call of an `APPLY` node."""
    return call_of_token(node.args[-1])


def gathered(g: Expr, count: int) -> tuple[Expr, list[Expr | None]]:
    """The call's node and the cotangents of its results, from their sum."""
    found: list[Expr | None] = [None] * count
    node: Expr | None = None
    stack = [g]
    while stack:
        part = stack.pop()
        if part.op is GATHER:
            cotangent, node = part.args
            number = part.attrs[0]
            before = found[number]
            found[number] = cotangent if before is None else add(before, cotangent)
        elif part.op is add:
            stack.extend(part.args)
        else:
            raise RuntimeError(
                f"apply: the results of a call have no cotangent of the form {part!r}; differentiate "
                "a result of the call"
            )
    assert node is not None
    return node, found


def apply(
    call: Call, operands: Sequence[Expr], saved: Sequence[Expr], values: Sequence[Expr]
) -> list[Expr]:
    """The results of a call.

    Parameters
    ----------
    call : Call
    operands : sequence of Expr
        What it is differentiated with respect to.
    saved : sequence of Expr
        Further nodes that its derivative reads.
    values : sequence of Expr
        What it computed, a node per result.
    """
    with grad_mode(True):
        node = _call_node((*operands, *saved, *values, _token(call)))
    call.node = weakref.ref(node)
    made = []
    for number, value in enumerate(values):
        differentiable = node.requires_grad and value.dtype.category >= 2
        result = Expr(RESULT, (value, node), (number,), value.shape, value.dtype, differentiable)
        result.value = value.value
        made.append(result)
    call.projections = [weakref.ref(r) for r in made]
    return made


def result_of(node: Expr, number: int) -> Expr:
    """A result of a call's node: the recorded one if it still lives."""
    call = call_of(node)
    if call.node() is node:
        found = call.projections[number]()
        if found is not None:
            return found
    value = node.args[len(node.args) - 1 - len(call.results) + number]
    return Expr(RESULT, (value, node), (number,), value.shape, value.dtype, node.requires_grad)


class _BatchedCall(Call):
    """A call repeated over a leading batch axis."""

    def __init__(self, count: int, inner: Call, args: Sequence[Expr]) -> None:
        shapes = [((count, *shape), dtype) for shape, dtype in inner.results]
        super().__init__(inner.name, inner.operands, shapes)
        self.inner = inner
        self.count = count

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """The derivative's code run once on placeholders, then batched."""
        own = [input_node(a.shape[1:], a.dtype, grad=a.requires_grad) for a in node.args[:-1]]
        inner = Expr(APPLY, (*own, _token(self.inner)), (), (), dtypes.float64, True)
        given = [None if c is None else input_node(c.shape[1:], c.dtype) for c in cotangents]
        before = STATE.tracing
        STATE.tracing = True
        try:
            found = self.inner.pull(inner, given)
        finally:
            STATE.tracing = before
        present = [f for f in found if f is not None]
        places = [*own, *(g for g in given if g is not None)]
        actual = [*node.args[:-1], *(c for c in cotangents if c is not None)]
        made = iter(batched(present, places, actual))
        results: list[Expr | None] = []
        for f in found:
            m = None if f is None else next(made)
            if m is not None and f is not None and m.ndim == f.ndim:
                m = add(full(0.0, (self.count, *f.shape), f.dtype), m)
            results.append(m)
        return results

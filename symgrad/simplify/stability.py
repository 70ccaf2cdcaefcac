"""Accuracy rules: naive compositions that overflow or cancel become their stable forms.

One table, `RULES`: op name -> rules. A rule gets the arguments of a node about to be recorded and
returns a better expression or None. It decides by ops, shapes and constants alone, never by what
happens to be computed already, so that looking at a value never changes a later bit.

=====================  ====================  =====================================
written                recorded              the naive form breaks at
=====================  ====================  =====================================
log(sigmoid(x))        -softplus(-x)         x < -745: log(0) = -inf
log(softmax(x))        log_softmax(x)        a gap above 745: log(0) = -inf, also
                                             through reshapes, transposes, slices
log(1 + exp(x))        softplus(x)           x > 709: inf; x < -37: 0
log1p(exp(x))          softplus(x)           x > 709: inf, derivative NaN
log(sum(exp(x)))       logsumexp(x)          x > 709: inf; x < -745: -inf
=====================  ====================  =====================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgrad import template
from symgrad.expr import Expr
from symgrad.family import Elementwise
from symgrad.op import CONSTANT, REGISTRY
from symgrad.ops.alias import head
from symgrad.ops.statistics import logsumexp

Rule = Callable[[tuple[Expr, ...], tuple[Any, ...]], Expr | None]


def _is(x: Expr, name: str) -> bool:
    return x.op is REGISTRY[name] and bool(x.args)


# -- what the rules look through --------------------------------------------------------
#
# Each function gives the direct argument if its node has the form in question. A computed node
# without derivative lets go of its arguments; these it keeps down to the direct argument, whose
# value is stored too. So a rule sees the same whether or not somebody looked.


def _of_sigmoid(x: Expr) -> Expr | None:
    return x.args[0] if _is(x, "sigmoid") else None


def _moved(x: Expr) -> tuple[Expr, list[Expr]]:
    """What `x` was before movement ops that place all their elements, and those steps."""
    steps = []
    while x.op.family == "movement" and x.args and not x.op.bounded and not x.op.pieces:
        steps.append(x)
        x = x.args[0]
    return x, steps


def _of_softmax(x: Expr) -> Expr | None:
    base, _ = _moved(x)
    return base.args[1] if base.op is head and base.args and base.attrs[0] == "softmax" else None


def _of_exp(x: Expr) -> Expr | None:
    return x.args[0] if _is(x, "exp") else None


def _of_one_plus_exp(x: Expr) -> Expr | None:
    if not _is(x, "add"):
        return None
    for one, other in (x.args, x.args[::-1]):
        if one.op is CONSTANT and one.attrs[0] == 1 and other.shape == x.shape:
            return _of_exp(other)
    return None


def _of_sum_of_exp(x: Expr) -> Expr | None:
    found = _summed(x)
    return None if found is None else found[0]


def _summed(outer: Expr) -> tuple[Expr, tuple[int, ...], bool] | None:
    """Exponent, axes and keepdim, if `outer` is a sum of exponentials."""
    shape = outer.shape
    x = outer
    while _is(x, "reshape"):
        x = x.args[0]
    dims: list[int] = []
    while _is(x, "sum_axis"):
        dims.append(x.attrs[0])
        x = x.args[0]
    exponent = _of_exp(x)
    if not dims or exponent is None:
        return None
    axes: list[int] = []
    # The innermost sum was the first: each axis counts what those before it removed.
    for d in reversed(dims):
        axis = d
        for taken in sorted(axes):
            if taken <= axis:
                axis += 1
        axes.append(axis)
    kept = tuple(1 if d in axes else s for d, s in enumerate(x.shape))
    bare = tuple(s for d, s in enumerate(x.shape) if d not in axes)
    if shape not in (kept, bare) or _is_shifted(exponent, kept):
        return None
    return exponent, tuple(axes), shape == kept and shape != bare


def _is_shifted(x: Expr, kept: tuple[int, ...]) -> bool:
    """Whether something constant along the summed axes is subtracted already."""
    return _is(x, "sub") and x.args[1].shape in (kept, ())


# -- rules ------------------------------------------------------------------------------


def _log_of_sigmoid(args: tuple[Expr, ...], attrs: tuple[Any, ...]) -> Expr | None:
    x = _of_sigmoid(args[0])
    return None if x is None else -REGISTRY["softplus"](-x)  # type: ignore[no-any-return]


def _log_of_softmax(args: tuple[Expr, ...], attrs: tuple[Any, ...]) -> Expr | None:
    x = _of_softmax(args[0])
    if x is None:
        return None
    base, steps = _moved(args[0])
    (dim,) = base.attrs[1]
    result = x - logsumexp(x, dim, True)
    for step in reversed(steps):
        result = step.op(result, **step.attributes())
    return result  # type: ignore[no-any-return]


def _log_of_one_plus_exp(args: tuple[Expr, ...], attrs: tuple[Any, ...]) -> Expr | None:
    x = _of_one_plus_exp(args[0])
    return None if x is None else REGISTRY["softplus"](x)


def _log1p_of_exp(args: tuple[Expr, ...], attrs: tuple[Any, ...]) -> Expr | None:
    x = _of_exp(args[0])
    return None if x is None else REGISTRY["softplus"](x)


def _log_of_sum_of_exp(args: tuple[Expr, ...], attrs: tuple[Any, ...]) -> Expr | None:
    found = _summed(args[0])
    return None if found is None else logsumexp(*found)  # type: ignore[no-any-return]


ANCHORS: dict[str, Callable[[Expr], Expr | None]] = {
    "sigmoid": _of_sigmoid,
    "head": _of_softmax,
    "exp": _of_exp,
    "add": _of_one_plus_exp,
    "sum_axis": _of_sum_of_exp,
    "reshape": lambda x: _of_softmax(x) or _of_sum_of_exp(x),
}
ANCHORS |= {
    name: _of_softmax
    for name, op in REGISTRY.items()
    if op.family == "movement" and not op.bounded and not op.pieces and name not in ANCHORS
}

RULES: dict[str, tuple[Rule, ...]] = {
    "log": (_log_of_sigmoid, _log_of_softmax, _log_of_one_plus_exp, _log_of_sum_of_exp),
    "log1p": (_log1p_of_exp,),
}


def set_enabled(enabled: bool) -> None:
    """Turn the accuracy rules on (the default) or off for expressions recorded from now on."""
    for name, rules in RULES.items():
        ruled = REGISTRY[name]
        assert isinstance(ruled, Elementwise)
        ruled.rewrites[:] = rules if enabled else ()
    for name, anchor in ANCHORS.items():
        REGISTRY[name].anchor = anchor if enabled else None
    template.forget()


set_enabled(True)

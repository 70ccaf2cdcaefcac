"""Expansions of composites, remembered.

What a composite is written with depends on the kinds of its arguments (shapes, dtypes, who records
derivatives) and on its options, not on numbers. So the second call of a kind is taken down as a
`Template`: which nodes to make, in order. From then on a call makes those nodes and nothing else.

Not remembered are expansions that look at values, draw random numbers, run a library routine that
can fail, or keep an array; and calls whose arguments an accuracy rule could recognise
(`symgrad.simplify`) or that are given numbers for tensors. Start reading at `expanded`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, INTERNING, STATE, Op, input_node

MAX_TEMPLATES = 4096

_EXACT = frozenset({int, bool, str, type(None), DType})
"""Types of options that are equal only if they are the same."""

_SEQUENCES = (tuple, list)

_SEEN_THROUGH = frozenset({"library", "index", "movement"})
"""Families of arguments that an expansion may look through."""


Step = tuple[
    Op,
    Callable[[list[Expr]], tuple[Expr, ...]],
    tuple[Any, ...],
    tuple[int, ...],
    DType,
    bool,
    Any,
]
"""One node to make: op, what picks its arguments among operands and nodes made so far, attributes,
shape, dtype, whether it records derivatives, the value of a number."""


class Template(NamedTuple):
    """The nodes of an expansion, in order, and where the results are found.

    Attributes
    ----------
    shared : tuple of Expr
        Numbers that all expressions share; they follow the operands.
    steps : tuple of Step
    results : tuple of int
        Positions among operands, shared numbers and made nodes.
    several : bool
        Whether the composite gives a tuple.
    """

    shared: tuple[Expr, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    several: bool

    def made_of(self, operands: list[Expr]) -> Any:
        """The composite of some operands."""
        nodes = [*operands, *self.shared]
        for op, pick, attrs, shape, dtype, requires_grad, value in self.steps:
            nodes.append(Expr(op, pick(nodes), attrs, shape, dtype, requires_grad, value))
        if self.several:
            return tuple([nodes[k] for k in self.results])
        return nodes[self.results[0]]


_TEMPLATES: dict[Any, Template | bool] = {}
"""By key. True: met once. False: an expansion that cannot be remembered."""


def forget() -> None:
    """Drop all templates, when they are many or what expansions are made of has changed."""
    _TEMPLATES.clear()


def expanded(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """``function(*args, **options)``, for a function of nodes that does nothing but record nodes."""
    operands: list[Expr] = []
    key = _key(function, args, options, operands)
    if key is None:
        return function(*args, **options)
    known = _TEMPLATES.get(key)
    if known is True:
        known, result = _taken_down(function, args, options, operands)
        _TEMPLATES[key] = known
        return result
    if known:
        return known.made_of(operands)
    if known is None:
        if len(_TEMPLATES) >= MAX_TEMPLATES:
            forget()
        _TEMPLATES[key] = True
    return function(*args, **options)


def _key(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    operands: list[Expr],
) -> tuple[Any, ...] | None:
    """What decides an expansion; None if more does. Arguments that are nodes go to `operands`."""
    if INTERNING or STATE.plain:
        return None
    parts: list[Any] = [function, STATE.grad, dtypes.get_default_dtype(), *options]
    for a in (*args, *options.values()):
        kind = type(a)
        if kind is Expr:
            if not _is_opaque(a):
                return None
            operands.append(a)
            parts += (a.shape, a.dtype, a.requires_grad)
        elif kind in _EXACT:
            parts += (kind, a)
        elif kind is float:
            # The zeros are equal, and are not the same; a NaN equals nothing.
            parts += (kind, a if a and a == a else repr(a))
        elif isinstance(a, _SEQUENCES):
            parts += (kind, len(a))
            for v in a:
                if type(v) is Expr:
                    if not _is_opaque(v):
                        return None
                    operands.append(v)
                    parts += (v.shape, v.dtype, v.requires_grad)
                elif type(v) is int:
                    parts.append(v)
                else:
                    return None
        else:
            return None
    if len(operands) > 1 and len(set(operands)) < len(operands):
        return None
    return tuple(parts)


def _is_opaque(node: Expr) -> bool:
    """Whether an expansion sees no more of an argument than its shape and dtype."""
    op = node.op
    if op is CONSTANT or node.dtype.category == 3:
        return False
    if op.family in _SEEN_THROUGH and node.args:
        if op.family != "movement" or node.args[0].op.family in _SEEN_THROUGH:
            return False
    return op.anchor is None or op.anchor(node) is None


def _taken_down(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    operands: list[Expr],
) -> tuple[Template | bool, Any]:
    """The template of a call, False if there is none, and the call's result."""
    looked, checked = STATE.looked, STATE.checked
    STATE.looked = STATE.checked = False
    since = input_node((), dtypes.float64).serial
    result = function(*args, **options)
    template = None if STATE.looked or STATE.checked else _template(result, operands, since)
    STATE.looked, STATE.checked = looked or STATE.looked, checked or STATE.checked
    return template or False, result


def _template(result: Any, operands: list[Expr], since: int) -> Template | None:
    """How a result is made of operands by nodes younger than `since`, if nothing else has a part."""
    several = type(result) is tuple
    roots = result if several else (result,)
    if not all(type(r) is Expr for r in roots):
        return None
    place = {id(n): k for k, n in enumerate(operands)}
    nodes = [n for n in ancestors(roots, lambda n: id(n) not in place) if id(n) not in place]
    shared = [n for n in nodes if n.serial < since]
    for n in shared:
        place[id(n)] = len(place)
    steps: list[Step] = []
    for n in nodes:
        is_number = n.op is CONSTANT
        is_known = n.value is not None or n.op.family == "leaf"
        if n.meta is not None or (is_known and not is_number):
            return None
        if n.serial < since:
            continue
        pick = _pick([place[id(a)] for a in n.args])
        value = n.value if is_number else None
        steps.append((n.op, pick, n.attrs, n.shape, n.dtype, n.requires_grad, value))
        place[id(n)] = len(place)
    return Template(tuple(shared), tuple(steps), tuple([place[id(r)] for r in roots]), several)


def _pick(places: list[int]) -> Callable[[list[Expr]], tuple[Expr, ...]]:
    """What takes the nodes at some places out of a list, as a tuple."""
    if not places:
        return lambda nodes: ()
    if len(places) == 1:
        (place,) = places
        return lambda nodes: (nodes[place],)
    return itemgetter(*places)

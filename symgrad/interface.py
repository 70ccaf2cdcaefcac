"""Functions and operators of tensors, made from the op registry.

For each public op and composite there is a function (`symgrad.exp`), which is a method too
(`Tensor.exp`, `symgrad.methods`), and, where torch has it, an in-place twin (`Tensor.exp_`). `call`
is the road from tensors to nodes and back: it unwraps arguments, records, notes views, and runs at
once what may fail on values. Ops on one or two floating tensors have a shorter one (`operator_of`).
Start reading at `call`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from symgrad import ops, runtime, simplify  # noqa: F401 (they attach their ops and rules)
from symgrad.expr import Expr
from symgrad.family import COMPOSITES, Composite, Elementwise
from symgrad.op import ACTIVE, INPUT, INTERNING, REGISTRY, STATE
from symgrad.ops.alias import clone
from symgrad.storage import WHOLE, Barrier, Group, Note, Part, Step, keeps_layout
from symgrad.tensor import Tensor, from_array, plain_array

VIEWS = frozenset(
    "reshape view view_as permute transpose swapaxes swapdims movedim moveaxis t adjoint squeeze "
    "unsqueeze expand expand_as broadcast_to narrow select split chunk tensor_split unbind diagonal "
    "flatten unflatten ravel unfold getitem real imag conj view_as_real view_as_complex".split()
)
"""Functions whose results share their argument's memory."""

RELIEF = 1024
"""How many nodes are recorded between two looks at how long the pending graph has become."""

_relief_at = RELIEF
_relieved = 0

Watcher = Callable[[Expr], Expr]
_watchers: list[Watcher] = []


def wrap(node: Expr) -> Tensor:
    """A new tensor for a recorded node; a pending graph that has grown too long is run."""
    if node.serial > _relief_at:
        node = _settled(node)
    return Tensor(node)


def _settled(node: Expr) -> Expr:
    """Look after a new node: run a long pending graph, and show it to those who watch."""
    global _relief_at, _relieved
    if node.serial > _relieved + RELIEF:
        _relieved = node.serial
        runtime.relieve(node)
    if not _watchers:
        _relief_at = node.serial + RELIEF
        return node
    for watcher in dict.fromkeys(_watchers):
        node = watcher(node)
    return node


def watch(watcher: Watcher) -> None:
    """Show every result of a public function to `watcher`, which may put another node in place."""
    global _relief_at
    _watchers.append(watcher)
    _relief_at = 0


def unwatch(watcher: Watcher) -> None:
    """Stop showing results to `watcher`."""
    _watchers.remove(watcher)


def unwrap(value: Any) -> Any:
    """Tensors (also in lists and tuples) and arrays as nodes; anything else as it is."""
    if isinstance(value, Tensor):
        return value.expr()
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor | list | tuple) for v in value):
        return type(value)(unwrap(v) for v in value) if type(value) in (list, tuple) else value
    if isinstance(value, np.ndarray):
        return from_array(np.array(plain_array(value))).expr()
    return value


def rewrap(result: Any) -> Any:
    """Nodes (also in tuples and lists) as tensors."""
    if isinstance(result, Expr):
        return wrap(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*[rewrap(r) for r in result])
    if isinstance(result, list | tuple):
        return type(result)(rewrap(r) for r in result)
    return result


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply a function of nodes to tensors."""
    nodes: list[Any] = []
    shared = False
    for a in args:
        if isinstance(a, Tensor):
            family = a._family
            nodes.append(a._node if family is None and not ACTIVE else a.expr())
            shared = shared or (family is not None and family.storage.outside is not None)
        else:
            nodes.append(unwrap(a))
    named = {k: unwrap(v) for k, v in kwargs.items()} if kwargs else kwargs
    STATE.checked = False
    made = function(*nodes, **named)
    if isinstance(made, Expr):
        if made.requires_grad and made in nodes:
            made = clone(made)
        result: Any = wrap(made)
    else:
        result = rewrap(made)
    if shared or STATE.checked:
        run_now(result)
    return result


def run_if_shared(args: Iterable[Any], result: Any) -> None:
    """Compute at once what reads memory that the outside may write."""
    for a in args:
        if isinstance(a, Tensor):
            family = a._family
            if family is not None and family.storage.outside is not None:
                run_now(result)
                return


def run_now(result: Any) -> None:
    """Compute tensors at once: their ops can fail on values, or read memory that others write."""
    if STATE.tracing:
        return
    if isinstance(result, Tensor):
        runtime.evaluate([result.expr()])
    elif isinstance(result, list | tuple):
        runtime.evaluate([r.expr() for r in result if isinstance(r, Tensor)])


def steps_between(base: Expr, node: Expr) -> tuple[Step, ...] | None:
    """The movement ops that lead from `base` to `node`, or None if something else does."""
    steps: list[Step] = []
    while node is not base:
        placed = hasattr(node.op, "placed")
        if (
            (node.op.family != "movement" and not placed)
            or node.op.bounded
            or node.op.pieces
            or not node.args
        ):
            return None
        steps.append((node.op, node.attrs))
        node = node.args[0]
    return tuple(reversed(steps))


def view_call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply a view function: results share the first argument's memory."""
    x = args[0]
    if not isinstance(x, Tensor):
        return call(function, *args, **kwargs)
    base = x.expr()
    name = getattr(function, "name", "")
    key = None if kwargs or INTERNING else _movement_key(function, base, args)
    path = None if key is None else _PATHS.get(key)
    if path is not None:
        return _as_view(x, base, _followed(base, *path), path[0], -1, name)
    result = function(
        base, *[unwrap(a) for a in args[1:]], **{k: unwrap(v) for k, v in kwargs.items()}
    )
    if key is not None and isinstance(result, Expr):
        _note_path(key, base, result)
    return _as_views(x, base, result, name=name)


_PATHS: dict[tuple[Any, ...], tuple[tuple[Step, ...], tuple[tuple[int, ...], ...]]] = {}
"""What a view function does to tensors of a shape: movements, and the shapes that come out.

By the function, the shape, whether it is complex, and the other arguments.
"""

MAX_PATHS = 4096

_PLAIN = frozenset({int, type(None), type(Ellipsis)})


def _movement_key(
    function: Callable[..., Any], base: Expr, args: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """What decides the movements of a view; None if more does."""
    # Of a complex tensor conj, real and adjoint are more than of a real one.
    parts: list[Any] = [function, base.shape, base.dtype.category == 3]
    for a in args[1:]:
        kind = type(a)
        if kind in _PLAIN:
            parts.append(a)
            continue
        if kind is not tuple and kind is not slice:
            return None
        listed = a if kind is tuple else (a,)
        parts += (kind, len(listed))
        for v in listed:
            own = (v.start, v.stop, v.step) if type(v) is slice else (v,)
            if not _PLAIN.issuperset(map(type, own)):
                return None
            parts.append(own)
    return tuple(parts)


def _note_path(key: tuple[Any, ...], base: Expr, result: Expr) -> None:
    """Remember the movements from `base` to `result`, if there is nothing else between them."""
    steps = steps_between(base, result)
    if steps is None or any(op.family != "movement" for op, _ in steps):
        return
    shapes = []
    while result is not base:
        if result.dtype is not base.dtype:
            return
        shapes.append(result.shape)
        result = result.args[0]
    if len(_PATHS) >= MAX_PATHS:
        _PATHS.clear()
    _PATHS[key] = steps, tuple(reversed(shapes))


def _followed(base: Expr, steps: tuple[Step, ...], shapes: tuple[tuple[int, ...], ...]) -> Expr:
    """What the movements of a path make of a node."""
    node, requires_grad = base, base.requires_grad and STATE.grad
    for (op, attrs), shape in zip(steps, shapes, strict=True):
        node = Expr(op, (node,), attrs, shape, base.dtype, requires_grad)
    return node


UNRECORDED = Barrier(
    "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Make "
    "the view and the change both inside the no_grad block, or both outside.",
    cut=True,
)
_RESHAPING = frozenset({"reshape", "view", "view_as", "flatten", "unflatten", "ravel"})
"""Functions whose result is a view only if the argument's layout allows it."""

_SEVERAL: dict[tuple[str, int], Barrier] = {}


_SHARED = {"chunk": "split", "hsplit": "split", "vsplit": "split", "dsplit": "split"}


def _several(name: str, number: int) -> Barrier:
    """The step that forbids writing through one of several views made by one call."""
    found = _SEVERAL.get((name, number))
    if found is None:
        found = _SEVERAL[name, number] = Barrier(
            f"Output {number} of {_SHARED.get(name, name).title()}Backward0 is a view and is being modified inplace. This "
            "view is the output of a function that returns multiple views. Such functions do not "
            "allow the output views to be modified inplace. You should replace the inplace operation "
            "by an out-of-place one."
        )
    return found


def _as_views(x: Tensor, base: Expr, result: Any, number: int = -1, name: str = "") -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_as_views(x, base, r, k, name) for k, r in enumerate(result))
    return _as_view(x, base, result, steps_between(base, result), number, name)


def _as_view(
    x: Tensor, base: Expr, result: Expr, steps: tuple[Step, ...] | None, number: int, name: str
) -> Tensor:
    """A tensor for the node that `steps` lead to from a tensor's own; a view unless there are none."""
    if steps and name in _RESHAPING and x._path and not keeps_layout(x.here(), steps):
        steps = None
        if name in ("view", "view_as"):
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension "
                "spans across two contiguous subspaces). Use .reshape(...) instead."
            )
    if steps is None:
        made = wrap(result)
        run_if_shared((x,), made)
        return made
    if base.requires_grad:
        if not STATE.grad:
            steps = (*steps, (UNRECORDED, ()))
            result = Expr(INPUT, (result,), (), result.shape, result.dtype, True)
        elif result is base:
            result = clone(base)
            steps = ((WHOLE, ()),)
        if number >= 0:
            steps = (*steps, (_several(name, number), ()))
    return x.alias(result, steps)


def in_place(function: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Apply a function and write its result into its first argument."""
    x.check_writable()
    operands = [a.expr() if isinstance(a, Tensor) else unwrap(a) for a in args]
    named = {k: unwrap(v) for k, v in kwargs.items()} if kwargs else kwargs
    return x.rebind(function(x.expr(), *operands, **named))


# -- making functions -------------------------------------------------------------------


def public_names() -> dict[str, Callable[..., Any]]:
    """Every public name, aliases included, with its function of nodes."""
    table: dict[str, Callable[..., Any]] = {}
    sources: list[Any] = [o for o in REGISTRY.values() if o.public and o.family != "leaf"]
    sources += list(COMPOSITES.values())
    for source in sources:
        for name in (source.name, *getattr(source, "aliases", ())):
            table.setdefault(name, source)
    return table


def _document(made: Any, name: str, source: Any) -> Any:
    made.__name__ = made.__qualname__ = name
    made.__doc__ = source.__doc__
    made.__module__ = "symgrad"
    made.__wrapped__ = getattr(source, "__wrapped__", source)
    return made


def make_function(name: str, source: Callable[..., Any]) -> Callable[..., Any]:
    """The public function of an op."""
    road = view_call if name in VIEWS else call
    plain, more = Note(name, False), Note(name, True)
    own = not isinstance(source, Composite) and name not in _NAMED_BY_CALL

    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.get("out") is not None:
            return _into(function, args, kwargs)
        result = road(source, *args, **kwargs)
        return result if own else noted(result, more if len(args) > 1 or kwargs else plain)

    made = function
    if isinstance(source, Elementwise) and road is call:
        if source.arity == 1:
            made = _quick_on_one(source, function)
        elif source.arity == 2:
            made = _quick_on_two(source, function)
    return _document(made, name, source)


_NOTHING = object()


def _quick_on_one(source: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """An op on one tensor by the shortest road; `function` takes all other calls."""
    single = source.single

    def quick(x: Any = _NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, Tensor) and not args and not kwargs:
            family = x._family
            node = single(x._node if family is None and not ACTIVE else x.expr())
            if node is not None:
                made = Tensor(node if node.serial <= _relief_at else _settled(node))
                if family is not None:
                    run_if_shared((x,), made)
                return made
        return function(*args, **kwargs) if x is _NOTHING else function(x, *args, **kwargs)

    return quick


def _quick_on_two(source: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """An op on a tensor and another or a number; `function` takes all other calls."""
    operator = operator_of(source)

    def quick(x: Any = _NOTHING, y: Any = _NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, Tensor) and not args and not kwargs:
            made = operator(x, y)
            if made is not NotImplemented:
                return made
        given = [a for a in (x, y) if a is not _NOTHING]
        return function(*given, *args, **kwargs)

    return quick


NUMBERS = (bool, int, float, complex)
ARRAYS = (np.ndarray, np.number, np.bool_)


def operator_of(source: Any, swapped: bool = False) -> Callable[[Tensor, Any], Any]:
    """An op as an operator: the shortest road from a tensor and another operand to a node."""
    pair = source.pair

    def operator(self: Tensor, other: Any) -> Any:
        family, other_family = self._family, None
        x = self._node if family is None and not ACTIVE else self.expr()
        if isinstance(other, Tensor):
            other_family = other._family
            y: Any = other._node if other_family is None and not ACTIVE else other.expr()
        elif type(other) is float or isinstance(other, NUMBERS):
            y = other
        elif isinstance(other, ARRAYS):
            y = unwrap(other)
        else:
            return NotImplemented
        node = pair(y, x) if swapped else pair(x, y)
        if node is None:
            node = source(y, x) if swapped else source(x, y)
        if node.serial > _relief_at:
            node = _settled(node)
        made = Tensor(node)
        if family is not None or other_family is not None:
            run_if_shared((self, other), made)
        return made

    return operator


_NAMED_BY_CALL = frozenset({"reshape", "permute", "expand", "swapaxes", "swapdims"})
"""Movements that torch's graph names by the function called."""


def noted(result: Any, note: Note) -> Any:
    """Remember on results that record derivatives which public function made them."""
    if isinstance(result, Tensor):
        node = result._node if not ACTIVE else result.here()._node
        if node.requires_grad and (node.meta is None or type(node.meta) is Note):
            node.meta = note
    elif isinstance(result, tuple):
        group = Group()
        for number, r in enumerate(result):
            if isinstance(r, Tensor) and r._node.requires_grad and r._node.meta is None:
                group.members.append(weakref.ref(r._node))
                r._node.meta = Part(note, number, group)
    return result


def _into(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A function with an ``out`` argument: its result is written there."""
    out = kwargs.pop("out")
    operands = [a for a in (*args, *kwargs.values(), out) if isinstance(a, Tensor)]
    if STATE.grad and any(t.requires_grad for t in operands):
        raise RuntimeError(
            f"{function.__name__}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )
    result = function(*args, **kwargs)
    if out.shape != result.shape:
        out.data = result.to(out.dtype)
        return out
    return out.write(result.expr())


def make_in_place(name: str, source: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place method of an op."""

    note = Note(name[:-1], False)
    own = not isinstance(source, Composite)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        changed = in_place(source, self, *args, **kwargs)
        return changed if own else noted(changed, note)

    return _document(method, name, source)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: make_function(name, source) for name, source in public_names().items()
}
_choose = FUNCTIONS["where"]


def _where_function(condition: Any, *args: Any, **kwargs: Any) -> Any:
    if not args and not kwargs:
        return FUNCTIONS["nonzero"](condition, as_tuple=True)
    return _choose(condition, *args, **kwargs)


FUNCTIONS["where"] = _document(_where_function, "where", public_names()["where"])

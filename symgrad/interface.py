"""Functions, methods and operators of tensors, made from the op registry.

For each public op and composite there is a function (`symgrad.exp`), a method (`Tensor.exp`), and,
where torch has it, an in-place twin (`Tensor.exp_`). `call` is the one road from tensors to nodes
and back: it unwraps arguments, records, notes views, and runs at once what may fail on values.
Start reading at `call`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad import dtypes, ops, runtime, simplify  # noqa: F401 (attaches its rules)
from symgrad.expr import Expr
from symgrad.family import COMPOSITES, Composite, Elementwise
from symgrad.op import INPUT, REGISTRY, STATE, cast_to, constant
from symgrad.ops import index
from symgrad.ops.alias import clone
from symgrad.ops.arithmetic import where
from symgrad.storage import SLICES, WHOLE, Barrier, Group, Note, Part, Step, keeps_layout
from symgrad.tensor import Tensor, from_array

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
        return from_array(np.array(value)).expr()
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
    nodes = [a.expr() if isinstance(a, Tensor) else unwrap(a) for a in args]
    named = {k: unwrap(v) for k, v in kwargs.items()} if kwargs else kwargs
    STATE.checked = False
    made = function(*nodes, **named)
    if isinstance(made, Expr) and made.requires_grad:
        for n in nodes:
            if made is n:
                made = clone(made)
                break
    result = rewrap(made)
    if STATE.checked and not STATE.tracing:
        run_now(result)
    for a in args:
        if (
            isinstance(a, Tensor)
            and a._family is not None
            and a._family.storage.outside is not None
        ):
            run_now(result)
            break
    return result


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
    result = function(
        base, *[unwrap(a) for a in args[1:]], **{k: unwrap(v) for k, v in kwargs.items()}
    )
    return _as_views(x, base, result, name=getattr(function, "name", ""))


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
    steps = steps_between(base, result)
    if steps and x._path and name in _RESHAPING and not keeps_layout(x, steps):
        steps = None
        if name in ("view", "view_as"):
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension "
                "spans across two contiguous subspaces). Use .reshape(...) instead."
            )
    if steps is None:
        made = wrap(result)
        if x._family is not None and x._family.storage.outside is not None:
            run_now(made)
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
    new = function(
        x.expr(), *[unwrap(a) for a in args], **{k: unwrap(v) for k, v in kwargs.items()}
    )
    return x.write(new)


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
    single = source.single if isinstance(source, Elementwise) and source.arity == 1 else None

    def function(*args: Any, **kwargs: Any) -> Any:
        if single is not None and len(args) == 1 and not kwargs and type(args[0]) is Tensor:
            node = single(args[0].expr())
            if node is not None:
                return from_one(args[0], node)
        if kwargs and kwargs.get("out") is not None:
            return _into(function, args, kwargs)
        result = road(source, *args, **kwargs)
        return result if own else noted(result, more if len(args) > 1 or kwargs else plain)

    return _document(function, name, source)


def from_one(x: Tensor, node: Expr) -> Tensor:
    """The tensor of a node whose only tensor from outside memory can be `x`."""
    made = wrap(node)
    if x._family is not None and x._family.storage.outside is not None:
        run_now(made)
    return made


_NAMED_BY_CALL = frozenset({"reshape", "permute", "expand", "swapaxes", "swapdims"})
"""Movements that torch's graph names by the function called."""


def noted(result: Any, note: Note) -> Any:
    """Remember on results that record derivatives which public function made them."""
    if isinstance(result, Tensor):
        node = result._node
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


def _binary(source: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    """An operator: the shortest road from two operands to a node."""
    pair = source.pair  # type: ignore[attr-defined]

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            y: Any = other.expr()
        elif isinstance(other, bool | int | float | complex):
            y = other
        elif isinstance(other, np.ndarray | np.number | np.bool_):
            y = unwrap(other)
        else:
            return NotImplemented
        x = self.expr()
        node = pair(y, x) if swapped else pair(x, y)
        if node is None:
            node = source(y, x) if swapped else source(x, y)
        made = from_one(self, node)
        if isinstance(other, Tensor):
            family = other._family
            if family is not None and family.storage.outside is not None:
                run_now(made)
        return made

    return method


def _general(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(
            other, Tensor | bool | int | float | complex | np.ndarray | np.number | np.bool_
        ):
            return NotImplemented
        function = FUNCTIONS[name]
        return function(other, self) if swapped else function(self, other)

    return method


def _augmented(source: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Tensor:
        return in_place(source, self, other)

    return method


_ITEM_NOTES = {
    name: Note(name, False) for name in ("select", "slice", "unsqueeze", "alias", "index")
}


def _item_note(key: Any) -> Note:
    """The note of an indexing: torch applies the parts of a key one by one, and the last names it."""
    last = "alias"
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, slice):
            last = "slice" if k != slice(None) or last == "alias" else last
        elif k is None:
            last = "unsqueeze"
        elif isinstance(k, int | np.integer) and not isinstance(k, bool):
            last = "select"
        elif k is not Ellipsis:
            return _ITEM_NOTES["index"]
    return _ITEM_NOTES[last]


def getitem(self: Tensor, key: Any) -> Any:
    """torch's indexing."""
    nodes = _key(key)
    result = view_call(index.getitem, self, nodes)
    return noted(result, _item_note(nodes)) if result._node.requires_grad else result


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """torch's indexed assignment."""
    self.check_writable()
    node = self.expr()
    new = unwrap(value)
    if isinstance(new, Expr):
        new = cast_to(new, node.dtype)
    noted(self.write(index.setitem(node, _key(key), new)), SLICES)


def _key(key: Any) -> Any:
    if isinstance(key, Tensor):
        return key.expr()
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    if isinstance(key, slice):
        parts = (key.start, key.stop, key.step)
        return slice(*[int(p) if isinstance(p, Tensor) else p for p in parts])
    if isinstance(key, list):
        return [_key(k) for k in key]
    return key


def attach() -> None:
    """Give `Tensor` its methods and operators."""
    table = public_names()
    skip = {"tensor", "arange", "linspace", "eye", "full", "zeros", "ones", "meshgrid", "where"}
    for name, source in table.items():
        if name in skip or hasattr(Tensor, name):
            continue
        setattr(Tensor, name, FUNCTIONS[name])
        twin = f"{name}_"
        if not hasattr(Tensor, twin) and not name.endswith("_"):
            setattr(Tensor, twin, make_in_place(twin, source))
    binary = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow",
        "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    }  # fmt: skip
    for word, name in binary.items():
        setattr(Tensor, f"__{word}__", _binary(table[name]))
    for word in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Tensor, f"__r{word}__", _binary(table[binary[word]], swapped=True))
        setattr(Tensor, f"__i{word}__", _augmented(table[binary[word]]))
    general = {
        "matmul": "matmul", "floordiv": "floor_divide", "mod": "remainder",
        "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    }  # fmt: skip
    for word, name in general.items():
        if name in table:
            setattr(Tensor, f"__{word}__", _general(name))
            setattr(Tensor, f"__r{word}__", _general(name, swapped=True))
            setattr(Tensor, f"__i{word}__", _augmented(table[name]))
    for word, name in {
        "neg": "neg",
        "abs": "abs",
        "invert": "bitwise_not",
        "pos": "positive",
    }.items():
        if name in table:
            setattr(Tensor, f"__{word}__", FUNCTIONS[name])
    Tensor.__getitem__ = getitem  # type: ignore[method-assign]
    Tensor.__setitem__ = setitem
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, getter in _PROPERTIES.items():
        setattr(Tensor, name, property(getter))


# -- methods with a form of their own ---------------------------------------------------


def _to(
    self: Tensor,
    *args: Any,
    dtype: Any = None,
    other: Tensor | None = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """The tensor in another dtype: `to(dtype)` or `to(other)`; devices are accepted and ignored.

    With `copy` the result never shares memory with the tensor.
    """
    wanted = dtype if other is None else other.dtype
    flags = [a for a in args if isinstance(a, bool)]  # non_blocking, copy
    for a in args:
        if isinstance(a, Tensor):
            wanted = a.dtype
        elif not isinstance(a, str | bool):
            wanted = a
    if wanted is None or dtypes.as_dtype(wanted) is self.dtype:
        return _clone(self) if copy or flags[1:] == [True] else self
    kind = dtypes.as_dtype(wanted)
    if self.dtype.is_complex and 0 < kind.category < 3:
        warnings.warn(
            "Casting complex values to real discards the imaginary part", UserWarning, stacklevel=2
        )
    return call(lambda x: cast_to(x, kind), self)


def _converter(dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return _to(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def _clone(self: Tensor) -> Tensor:
    """A copy with its own memory; derivatives flow through."""
    return call(ops.alias.clone, self)


def _copy(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Write the values of `source` into this tensor."""
    node = unwrap(source)
    if not isinstance(node, Expr):
        node = full_like(self.expr(), node)
    return _overwritten(self, cast_to(node, self.dtype), _COPY)


_COPY, _FILL, _ZERO = Note("copy", False), Note("fill", False), Note("zero", False)


def _overwritten(t: Tensor, new: Expr, note: Note) -> Tensor:
    """Write a value that does not depend on the old one, which keeps a gradient of zeros."""
    old = t.expr()
    if STATE.grad and old.requires_grad:
        t.check_writable()
        new = where(constant(False, dtypes.bool_), old, new)
        new.meta = note
    elif new.requires_grad and STATE.grad:
        new = clone(new)
        new.meta = note
    return t.write(new)


def full_like(x: Expr, value: float) -> Expr:
    """A constant of the shape and dtype of `x`."""
    return ops.movement.full(value, x.shape, x.dtype)


def _fill(self: Tensor, value: Any) -> Tensor:
    """Write one value into every element."""
    if isinstance(value, Tensor):
        return _overwritten(self, cast_to(value.expr(), self.dtype), _FILL)
    return _overwritten(self, full_like(self.expr(), value), _FILL)


def _zero(self: Tensor) -> Tensor:
    """Write zeros."""
    return _overwritten(self, full_like(self.expr(), 0), _ZERO)


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype of another."""
    return _to(self, other.dtype)


def _is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return self.shape == other.shape


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are equal within ``atol + rtol * abs(other)``."""
    close = FUNCTIONS["isclose"](input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return bool(FUNCTIONS["all"](close))


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements."""
    return input.shape == other.shape and bool(np.array_equal(input.look(), other.look()))


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return input.is_complex()


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is floating."""
    return input.is_floating_point()


def is_conj(input: Tensor) -> bool:
    """Whether the tensor shows the conjugate of its memory."""
    return input.is_conj()


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor in memory of its own if that holds the conjugate."""
    return input.resolve_conj()


for _function in (allclose, equal, is_complex, is_floating_point, is_conj, resolve_conj):
    FUNCTIONS[_function.__name__] = _function


def _same(self: Tensor, *_: Any, **__: Any) -> Tensor:
    """The tensor itself: there is one device."""
    return self


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, else `other`."""
    return FUNCTIONS["where"](condition, self, other)


_METHODS: dict[str, Callable[..., Any]] = {
    "to": _to,
    "type": _to,
    "double": _converter(dtypes.float64),
    "float": _converter(dtypes.float32),
    "cfloat": _converter(dtypes.complex64),
    "cdouble": _converter(dtypes.complex128),
    "long": _converter(dtypes.int64),
    "int": _converter(dtypes.int32),
    "short": _converter(dtypes.int16),
    "bool": _converter(dtypes.bool_),
    "clone": _clone,
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _zero,
    "type_as": _type_as,
    "is_same_size": _is_same_size,
    "cpu": _same,
    "allclose": allclose,
    "equal": equal,
    "where": _where,
}


def _matrix_transpose(x: Tensor) -> Any:
    return FUNCTIONS["transpose"](x, -2, -1)


def _reversed_axes(x: Tensor) -> Any:
    return FUNCTIONS["permute"](x, tuple(range(x.ndim))[::-1])


def _conjugate_transpose(x: Tensor) -> Any:
    return FUNCTIONS["adjoint"](x)


def _real(x: Tensor) -> Any:
    return FUNCTIONS["real"](x) if x.is_complex() else x


_PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "T": _reversed_axes,
    "mT": _matrix_transpose,
    "H": _conjugate_transpose,
    "mH": _conjugate_transpose,
    "real": _real,
    "imag": FUNCTIONS["imag"],
}

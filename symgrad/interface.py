"""Functions, methods and operators of tensors, made from the op registry.

For each public op and composite there is a function (`symgrad.exp`), a method (`Tensor.exp`), and,
where torch has it, an in-place twin (`Tensor.exp_`). `call` is the one road from tensors to nodes
and back: it unwraps arguments, records, notes views, and runs at once what may fail on values.
Start reading at `call`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad import dtypes, ops, runtime
from symgrad.expr import Expr
from symgrad.op import COMPOSITES, REGISTRY, STATE, cast_to
from symgrad.ops import index
from symgrad.tensor import Step, Tensor, from_array

VIEWS = frozenset(
    "reshape view view_as permute transpose swapaxes swapdims movedim moveaxis t adjoint squeeze "
    "unsqueeze expand expand_as broadcast_to narrow select split chunk tensor_split unbind diagonal "
    "flatten unflatten ravel unfold getitem".split()
)
"""Functions whose results share their argument's memory."""

RELIEF = 1024
"""How many nodes are recorded between two looks at how long the pending graph has become."""

_relief_at = RELIEF


def wrap(node: Expr) -> Tensor:
    """A new tensor for a recorded node; a pending graph that has grown too long is run."""
    global _relief_at
    if node.serial > _relief_at:
        _relief_at = node.serial + RELIEF
        runtime.relieve(node)
    return Tensor(node)


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
    result = rewrap(function(*nodes, **named))
    if STATE.checked and not STATE.tracing:
        run_now(result)
    for a in args:
        if isinstance(a, Tensor) and a._family is not None and a._family.storage.outside is not None:
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
        if node.op.family != "movement" or node.op.bounded or node.op.pieces or not node.args:
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
    result = function(base, *[unwrap(a) for a in args[1:]], **{k: unwrap(v) for k, v in kwargs.items()})
    return _as_views(x, base, result)


def _as_views(x: Tensor, base: Expr, result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_as_views(x, base, r) for r in result)
    steps = steps_between(base, result)
    if steps is None:
        made = wrap(result)
        if x._family is not None and x._family.storage.outside is not None:
            run_now(made)
        return made
    return x.alias(result, steps)


def in_place(function: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Apply a function and write its result into its first argument."""
    x.check_writable()
    new = function(x.expr(), *[unwrap(a) for a in args], **{k: unwrap(v) for k, v in kwargs.items()})
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

    def function(*args: Any, **kwargs: Any) -> Any:
        return road(source, *args, **kwargs)

    return _document(function, name, source)  # type: ignore[no-any-return]


def make_in_place(name: str, source: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place method of an op."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return in_place(source, self, *args, **kwargs)

    return _document(method, name, source)  # type: ignore[no-any-return]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: make_function(name, source) for name, source in public_names().items()
}


def _binary(source: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    """An operator: the shortest road from two operands to a node."""

    def method(self: Tensor, other: Any) -> Any:
        if type(other) is Tensor:
            y: Any = other.expr()
        elif isinstance(other, bool | int | float):
            y = other
        elif isinstance(other, Tensor | np.ndarray | np.number | np.bool_):
            y = unwrap(other)
        else:
            return NotImplemented
        x = self.expr()
        result = wrap(source(y, x) if swapped else source(x, y))
        family = self._family
        if family is not None and family.storage.outside is not None:
            run_now(result)
        return result

    return method


def _general(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor | bool | int | float | np.ndarray | np.number | np.bool_):
            return NotImplemented
        function = FUNCTIONS[name]
        return function(other, self) if swapped else function(self, other)

    return method


def _augmented(source: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Tensor:
        return in_place(source, self, other)

    return method


def getitem(self: Tensor, key: Any) -> Any:
    """torch's indexing."""
    return view_call(index.getitem, self, _key(key))


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """torch's indexed assignment."""
    self.check_writable()
    node = self.expr()
    new = unwrap(value)
    if isinstance(new, Expr):
        new = cast_to(new, node.dtype)
    self.write(index.setitem(node, _key(key), new))


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
    for word, name in {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}.items():
        if name in table:
            setattr(Tensor, f"__{word}__", FUNCTIONS[name])
    Tensor.__getitem__ = getitem  # type: ignore[method-assign]
    Tensor.__setitem__ = setitem  # type: ignore[attr-defined]
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, getter in _PROPERTIES.items():
        setattr(Tensor, name, property(getter))


# -- methods with a form of their own ---------------------------------------------------


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The tensor in another dtype: `to(dtype)` or `to(other)`; devices are accepted and ignored."""
    wanted = kwargs.get("dtype")
    for a in args:
        if isinstance(a, Tensor):
            wanted = a.dtype
        elif not isinstance(a, str | bool):
            wanted = a
    if wanted is None or dtypes.as_dtype(wanted) is self.dtype:
        return self
    return call(lambda x: cast_to(x, dtypes.as_dtype(wanted)), self)  # type: ignore[no-any-return]


def _converter(dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return _to(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def _clone(self: Tensor) -> Tensor:
    """A copy with its own memory; derivatives flow through."""
    return call(ops.alias.clone, self)  # type: ignore[no-any-return]


def _copy(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Write the values of `source` into this tensor."""
    node = unwrap(source)
    if not isinstance(node, Expr):
        node = full_like(self.expr(), node)
    return self.write(cast_to(node, self.dtype))


def full_like(x: Expr, value: float) -> Expr:
    """A constant of the shape and dtype of `x`."""
    return ops.movement.full(value, x.shape, x.dtype)


def _fill(self: Tensor, value: Any) -> Tensor:
    """Write one value into every element."""
    if isinstance(value, Tensor):
        return self.write(cast_to(value.expr(), self.dtype))
    return self.write(full_like(self.expr(), value))


def _zero(self: Tensor) -> Tensor:
    """Write zeros."""
    return _fill(self, 0)


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype of another."""
    return _to(self, other.dtype)


def _is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return self.shape == other.shape


def _same(self: Tensor, *_: Any, **__: Any) -> Tensor:
    """The tensor itself: there is one device."""
    return self


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, else `other`."""
    return FUNCTIONS["where"](condition, self, other)  # type: ignore[no-any-return]


_METHODS: dict[str, Callable[..., Any]] = {
    "to": _to,
    "type": _to,
    "double": _converter(dtypes.float64),
    "float": _converter(dtypes.float32),
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
    "where": _where,
}


def _matrix_transpose(x: Tensor) -> Any:
    return FUNCTIONS["transpose"](x, -2, -1)


def _reversed_axes(x: Tensor) -> Any:
    return FUNCTIONS["permute"](x, tuple(range(x.ndim))[::-1])


_PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "T": _reversed_axes,
    "mT": _matrix_transpose,
    "H": _matrix_transpose,
    "mH": _matrix_transpose,
    "real": lambda x: x,
}

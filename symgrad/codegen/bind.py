"""The native entry of a compiled function: from a recipe and sample arguments to an `EntrySpec`.

`bind_entry` makes a function that returns new arrays, `into_entry` one that writes into given ones.
Start reading at `_spec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.codegen import entry_class, interrupt, plan
from symgrad.codegen.entry import make_entry, make_into
from symgrad.codegen.entry_spec import (
    ArrayLeaf,
    DictOf,
    EntrySpec,
    FloatLeaf,
    Input,
    ListOf,
    NewArray,
    Same,
    Scalar,
    Static,
    TupleOf,
)
from symgrad.codegen.plan import RELEASE_GIL_NS, Plan


def bind_fallback(target: Any, fallback: Callable[..., Any]) -> None:
    """Let an object of a native class go straight to Python."""
    spec = EntrySpec(
        inputs=[Static(_NEVER)], output=Static(None), slots=0, plan=Plan([], []).address,
        run=plan.runner_symbols()["sg_run"], fallback=fallback,
    )  # fmt: skip
    entry_class.bind(target, make_entry(spec))


_NEVER = object()
_SCALARS = {"float64", "float32", "int64", "bool"}


def bind_entry(
    target: Any,
    recipe: Any,
    args: tuple[Any, ...],
    tree: Any,
    fallback: Callable[..., Any],
) -> Any:
    """Let an object of a native class run a recipe natively for arguments like these.

    Parameters
    ----------
    target : object of a native class
    recipe : Recipe
    args : tuple
        Sample arguments: their structure, dtypes and shapes are what the entry recognises.
    tree : object
        The result's tree as `symgrad.compiled` flattens it.
    fallback : callable
        For all other arguments.
    """
    spec = _spec(recipe, args, tree, fallback, False)
    if spec is None:
        return None
    made = make_entry(spec)
    entry_class.bind(target, made)
    return made


def into_entry(
    recipe: Any, args: tuple[Any, ...], tree: Any, fallback: Callable[..., Any]
) -> Callable[..., Any] | None:
    """A built-in function ``f(out, *args)`` that runs a recipe and writes into `out`.

    Parameters
    ----------
    recipe, args, tree, fallback
        As for `bind_entry`. The fallback gets `out` too.

    Returns
    -------
    callable or None
        None where a result is not an array of its own: an argument itself, or one met twice.
    """
    spec = _spec(recipe, args, tree, fallback, True)
    return None if spec is None else make_into(spec).function


def _spec(
    recipe: Any,
    args: tuple[Any, ...],
    tree: Any,
    fallback: Callable[..., Any],
    given: bool,
) -> EntrySpec | None:
    """What an entry takes, runs and gives; None if it cannot.

    Results are `given` arrays, 0-d ones too, or new arrays and Python numbers.
    """
    program = recipe.program
    slot_of_leaf: dict[int, int] = {}
    constants: list[tuple[int, int]] = []
    keep: list[Any] = [program]
    for slot, source in enumerate(recipe.sources):
        if isinstance(source, np.ndarray):
            array = np.ascontiguousarray(source)
            keep.append(array)
            constants.append((slot, array.ctypes.data))
        else:
            slot_of_leaf[source] = slot
    leaf_count = 0

    def argument(value: Any) -> Any:
        nonlocal leaf_count
        if isinstance(value, float):
            slot = slot_of_leaf.get(leaf_count)
            leaf_count += 1
            return FloatLeaf(slot)
        if isinstance(value, np.ndarray):
            slot = slot_of_leaf.get(leaf_count)
            leaf_count += 1
            return ArrayLeaf(value.dtype, value.shape, slot)
        if type(value) is tuple:
            return TupleOf(tuple(argument(v) for v in value))
        if type(value) is list:
            return ListOf(tuple(argument(v) for v in value))
        if type(value) is dict:
            return DictOf(tuple(value), tuple(argument(v) for v in value.values()))
        return Static(value)

    def unsupported(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return type(value) not in (list, tuple) or any(unsupported(v) for v in value)
        if isinstance(value, dict):
            plain = type(value) is dict and all(type(k) in (str, int) for k in value)
            return not plain or any(unsupported(v) for v in value.values())
        if isinstance(value, float):
            return type(value) is not float
        if isinstance(value, np.ndarray):
            return type(value) is not np.ndarray
        return type(value) not in (int, bool, str, type(None))

    if any(unsupported(a) for a in args):
        return None
    inputs = [argument(a) for a in args]
    first_output = len(program.inputs)
    met: dict[int, tuple[int, tuple[int, ...]]] = {}
    order = 0

    def result(part: Any) -> Any:
        nonlocal order
        if hasattr(part, "number"):
            is_input, number, shape = recipe.results[part.number]
            if given and (is_input or number in met):
                raise _NotNativeError
            if is_input:
                source = recipe.sources[number]
                if not isinstance(source, int):
                    raise _NotNativeError
                return Input(source)
            if number in met:
                if met[number][1] != shape:
                    raise _NotNativeError
                order += 1
                return Same(met[number][0])
            node = program.outputs[number]
            met[number] = (order, shape)
            order += 1
            if shape or given:
                return NewArray(node.dtype.numpy, shape, first_output + number)
            if node.dtype.name not in _SCALARS:
                raise _NotNativeError
            return Scalar(node.dtype.numpy, first_output + number)
        kind = part[0]
        if kind == "static" and not given:
            return Static(part[2])
        if kind == "tuple":
            return TupleOf(tuple(result(p) for p in part[1:]))
        if kind == "list":
            return ListOf(tuple(result(p) for p in part[1:]))
        if kind == "dict":
            return DictOf(tuple(k for k, _ in part[1:]), tuple(result(p) for _, p in part[1:]))
        raise _NotNativeError

    try:
        output = result(tree)
    except _NotNativeError:
        return None
    whole = program.whole_plan()
    keep.append(whole)
    first_piece = first_output + len(program.outputs)
    long = program.cost_ns > RELEASE_GIL_NS
    return EntrySpec(
        inputs=inputs,
        output=output,
        slots=first_piece + len(program.pieces) + (program.status_slot is not None),
        plan=whole.address,
        run=interrupt.runner() if long else plan.runner_symbols()["sg_run"],
        fallback=fallback,
        constants=constants,
        arena_bytes=program.arena_bytes,
        arena=list(enumerate(program.pieces, first_piece)),
        release_gil=long,
        status_slot=program.status_slot,
        keep=tuple(keep),
    )


class _NotNativeError(Exception):
    """A result that the native entry cannot give."""

"""The native entry of a compiled function: from a recipe and sample arguments to an `EntrySpec`.

`bind_entry` makes a function that returns new arrays, `into_entry` one that writes into given ones.
Start reading at `_spec`.
"""

from __future__ import annotations

import itertools
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
from symgrad.codegen.plan import RELEASE_GIL_NS
from symgrad.nesting import flatten, size, unflatten

_SCALARS = {"float64", "float32", "int64", "bool"}


def bind_entry(
    target: Any,
    recipe: Any,
    args: tuple[Any, ...],
    form: Any,
    fixed: dict[int, Any],
    fallback: Callable[..., Any],
) -> Any:
    """Let an object of a native class run a recipe natively for arguments like these.

    Parameters
    ----------
    target : object of a native class
    recipe : Recipe
    args : tuple
        Sample arguments: their structure, dtypes and shapes are what the entry recognises.
    form : object
        How the result is nested (`symgrad.nesting`).
    fixed : dict of int to object
        The result's leaves that are no outputs, by their places.
    fallback : callable
        For all other arguments.
    """
    spec = _spec(recipe, args, form, fixed, fallback, False)
    if spec is None:
        return None
    made = make_entry(spec)
    entry_class.bind(target, made)
    return made


def into_entry(
    recipe: Any,
    args: tuple[Any, ...],
    form: Any,
    fixed: dict[int, Any],
    fallback: Callable[..., Any],
) -> Callable[..., Any] | None:
    """A built-in function ``f(out, *args)`` that runs a recipe and writes into `out`.

    Parameters
    ----------
    recipe, args, form, fixed, fallback
        As for `bind_entry`. The fallback gets `out` too.

    Returns
    -------
    callable or None
        None where a result is not an array of its own: an argument itself, or one met twice.
    """
    spec = _spec(recipe, args, form, fixed, fallback, True)
    return None if spec is None else make_into(spec).function


def _spec(
    recipe: Any,
    args: tuple[Any, ...],
    form: Any,
    fixed: dict[int, Any],
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
    try:
        inputs = _arguments(args, slot_of_leaf)
        output = _result(recipe, form, fixed, given)
    except _NotNativeError:
        return None
    whole = program.whole_plan()
    keep.append(whole)
    first_piece = len(program.inputs) + len(program.outputs)
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


def _arguments(args: tuple[Any, ...], slot_of_leaf: dict[int, int]) -> list[Any]:
    """What an entry takes for arguments like these; leaves are counted where they have values."""
    leaves, form = flatten(args)
    count = itertools.count()
    taken: list[Any] = []
    for leaf in leaves:
        kind = type(leaf)
        if kind is float:
            taken.append(FloatLeaf(slot_of_leaf.get(next(count))))
        elif kind is np.ndarray:
            taken.append(ArrayLeaf(leaf.dtype, leaf.shape, slot_of_leaf.get(next(count))))
        elif kind in (int, bool, str, type(None)):
            taken.append(Static(leaf))
        else:
            raise _NotNativeError
    return list(unflatten(form, taken, _argument_container).items)


def _argument_container(kind: Any, names: Any, children: list[Any]) -> Any:
    if kind is dict and any(type(k) not in (str, int) for k in names):
        raise _NotNativeError
    return _container(kind, names, children)


def _container(kind: Any, names: Any, children: list[Any]) -> Any:
    """The specification of a tuple, list or dict."""
    if kind is tuple:
        return TupleOf(tuple(children))
    if kind is list:
        return ListOf(tuple(children))
    if kind is dict:
        return DictOf(names, tuple(children))
    raise _NotNativeError


def _result(recipe: Any, form: Any, fixed: dict[int, Any], given: bool) -> Any:
    """What an entry gives for a result of a form."""
    results = iter(recipe.results)
    met: dict[int, tuple[int, tuple[int, ...]]] = {}
    made: list[Any] = []
    for place in range(size(form)):
        if place not in fixed:
            made.append(_output(recipe, next(results), place, met, given))
        elif given:
            raise _NotNativeError
        else:
            made.append(Static(fixed[place]))
    return unflatten(form, made, _container)


def _output(
    recipe: Any,
    result: tuple[bool, int, tuple[int, ...]],
    place: int,
    met: dict[int, tuple[int, tuple[int, ...]]],
    given: bool,
) -> Any:
    """What an entry gives for one of a recipe's results, the leaf at `place`.

    `met` has the places and shapes of the outputs before it.
    """
    is_input, number, shape = result
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
        return Same(met[number][0])
    met[number] = (place, shape)
    program = recipe.program
    dtype = program.outputs[number].dtype
    slot = len(program.inputs) + number
    if shape or given:
        return NewArray(dtype.numpy, shape, slot)
    if dtype.name not in _SCALARS:
        raise _NotNativeError
    return Scalar(dtype.numpy, slot)


class _NotNativeError(Exception):
    """Arguments or a result that a native entry does not know."""

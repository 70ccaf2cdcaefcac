"""Modules as functions of their parameters.

Nothing here knows how modules are built, only that they list parameters and buffers by dotted name
and keep them in tables. Start reading at `functional_call`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from symgrad.interface import FUNCTIONS
from symgrad.tensor import Tensor

_MISSING = object()


def _merged(given: Any) -> dict[str, Tensor]:
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, Sequence) or not all(isinstance(d, Mapping) for d in given):
        raise ValueError(
            f"Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got {type(given)}"
        )
    merged: dict[str, Tensor] = {}
    for part in given:
        twice = merged.keys() & part.keys()
        if twice:
            raise ValueError(
                f"{sorted(twice)} appeared in multiple dictionaries; behavior of functional call is ambiguous"
            )
        merged.update(part)
    return merged


def _names(module: Any) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _table(module: Any, name: str) -> dict[str, Any]:
    """Where a module keeps an attribute of a name."""
    for table in (module._parameters, module._buffers):
        if name in table:
            return table
    return module.__dict__


@contextmanager
def replaced_state(module: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Within the block a module has other tensors in place of its parameters and buffers."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, value in values.items():
            place, _, name = path.rpartition(".")
            table = _table(module.get_submodule(place), name)
            before.append((table, name, table.get(name, _MISSING)))
            table[name] = value
        yield
    finally:
        for table, name, value in reversed(before):
            if value is _MISSING:
                del table[name]
            else:
                table[name] = value


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """What a module computes with other parameters and buffers; the module keeps its own.

    Parameters
    ----------
    module : Module
    parameter_and_buffer_dicts : dict of str to Tensor, or sequence of such dicts
    args : Any or tuple
        A value that is no tuple is the only argument.
    kwargs : dict, optional
    tie_weights : bool
        Whether parameters that the module has under several names are all replaced by the value of one.
    strict : bool
        Raise if names are missing or unknown.

    Examples
    --------
    >>> import symgrad as sg
    >>> module = sg.nn.Linear(1, 1, bias=False)
    >>> weights = {"weight": sg.tensor([[3.]])}
    >>> sg.func.functional_call(module, weights, (sg.tensor([[2.]]),))
    tensor([[6.]])
    """
    values = _merged(parameter_and_buffer_dicts)
    own = _names(module)
    if tie_weights:
        of_tensor = {id(own[name]): value for name, value in values.items() if name in own}
        for name, tensor in own.items():
            if id(tensor) in of_tensor:
                values.setdefault(name, of_tensor[id(tensor)])
    if strict:
        missing, unknown = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
        if missing or unknown:
            parts = [f"Unexpected key(s): {', '.join(map(repr, unknown))}."] if unknown else []
            parts += [f"Missing key(s): {', '.join(map(repr, missing))}."] if missing else []
            raise RuntimeError(
                f"Error(s) in reparametrizing for {type(module).__name__}:\n\t" + "\n\t".join(parts)
            )
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    with replaced_state(module, values):
        return module(*args, **(kwargs or {}))


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers of several modules of one kind, each stacked along a new first axis.

    Examples
    --------
    >>> import symgrad as sg
    >>> models = [sg.nn.Linear(2, 3) for _ in range(4)]
    >>> parameters, buffers = sg.func.stack_module_state(models)
    >>> def call(parameters, x):
    ...     return sg.func.functional_call(models[0], parameters, (x,))
    >>> sg.vmap(call, in_dims=(0, None))(parameters, sg.ones(5, 2)).shape
    symgrad.Size([4, 5, 3])
    """
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(m.training != models[0].training for m in models):
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = _stacked([dict(m.named_parameters()) for m in models])
    buffers = _stacked([dict(m.named_buffers()) for m in models])
    return parameters, buffers


def _stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Leaves of the tensors of each name, stacked."""
    made: dict[str, Any] = {}
    for name in tables[0]:
        tensors = [table[name] for table in tables]
        records = tensors[0].requires_grad
        if any(t.requires_grad != records for t in tensors):
            raise RuntimeError(
                f"Expected {name} from each model to have the same .requires_grad; set it on all of them"
            )
        stacked: Any = FUNCTIONS["stack"]([t.detach() for t in tensors])
        made[name] = stacked.requires_grad_(records)
    return made

"""A module's state: parameters and buffers by name, and how they are loaded.

Start reading at `load_state_dict`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from symgrad.autograd.grad_mode import no_grad
from symgrad.nn.parameter import Parameter, retype
from symgrad.tensor import Tensor

if TYPE_CHECKING:
    from symgrad.nn.module import Module


class IncompatibleKeys(NamedTuple):
    """Names that `load_state_dict` missed, and names that it did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def state_dict(module: Module, prefix: str, keep_vars: bool) -> OrderedDict[str, Tensor]:
    """Parameters and persistent buffers by dotted name."""
    found: OrderedDict[str, Tensor] = OrderedDict()
    for place, part in module.named_modules(prefix=prefix.rstrip("."), remove_duplicate=False):
        start = f"{place}." if place else ""
        for name, value in own_state(part).items():
            found[start + name] = value if keep_vars else value.detach()
    return found


def own_state(module: Module) -> dict[str, Tensor]:
    """A module's own parameters and persistent buffers."""
    found = {k: v for k, v in module._parameters.items() if v is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            found[name] = buffer
    return found


def load_state_dict(
    module: Module, given: Mapping[str, Any], strict: bool, assign: bool
) -> IncompatibleKeys:
    """Write values by name into a module's parameters and buffers."""
    if not isinstance(given, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(given)}.")
    missing, problems = [], []
    known = set()
    for place, part in module.named_modules(remove_duplicate=False):
        start = f"{place}." if place else ""
        for name, value in own_state(part).items():
            key = start + name
            known.add(key)
            if key not in given:
                missing.append(key)
                continue
            problem = _load(part, name, key, value, given[key], assign)
            if problem:
                problems.append(problem)
    unexpected = [key for key in given if key not in known]
    if strict:
        if missing:
            quoted = ", ".join(f'"{k}"' for k in missing)
            problems.insert(0, f"Missing key(s) in state_dict: {quoted}. ")
        if unexpected:
            quoted = ", ".join(f'"{k}"' for k in unexpected)
            problems.insert(0, f"Unexpected key(s) in state_dict: {quoted}. ")
    if problems:
        shown = "\n\t".join(problems)
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{shown}"
        )
    return IncompatibleKeys(missing, unexpected)


def _load(part: Module, name: str, key: str, value: Tensor, new: Any, assign: bool) -> str | None:
    """Load one value; returns what is wrong with it."""
    if not isinstance(new, Tensor):
        return (
            f'While copying the parameter named "{key}", expected symgrad.Tensor or Tensor-like object from '
            f"checkpoint but received {type(new)}"
        )
    if new.shape != value.shape:
        return (
            f"size mismatch for {key}: copying a param with shape {new.shape!r} from checkpoint, the shape "
            f"in current model is {value.shape!r}."
        )
    with no_grad():
        if not assign:
            value.copy_(new)  # type: ignore[attr-defined]
        elif isinstance(value, Parameter):
            made = new if isinstance(new, Parameter) else Parameter(new, value.requires_grad)
            part._parameters[name] = made
        else:
            part._buffers[name] = new
    return None


def converted(value: Tensor, dtype: Any) -> None:
    """Change a parameter's or buffer's dtype in place, and its gradient's."""
    gradient = value.grad if value.is_leaf else None
    with no_grad():
        retype(value, value.detach().to(dtype))  # type: ignore[attr-defined]
        if gradient is not None:
            value.slot().grad = gradient.detach().to(dtype)  # type: ignore[attr-defined]

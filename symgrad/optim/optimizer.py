"""The base of all optimisers: groups of parameters with settings, and state per parameter.

Structures: `Optimizer.param_groups`, dicts of settings with their parameters; `Optimizer.state`, a
dict per parameter. A subclass gives `update`, which changes one parameter. Start reading at
`Optimizer.step`.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.autograd.grad_mode import enable_grad, no_grad
from symgrad.autograd.hooks import RemovableHandle, added
from symgrad.creation import tensor
from symgrad.op import STATE, value_of
from symgrad.storage import title
from symgrad.tensor import Tensor, from_array

Closure = Callable[[], Any]
State = dict[str, Any]
Group = dict[str, Any]


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with the hooks that are registered around it."""

    @wraps(step)
    def hooked(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        for hook in list(self._step_pre_hooks.values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        self.stepped = True
        result = step(self, *args, **kwargs)
        for hook in list(self._step_post_hooks.values()):
            hook(self, args, kwargs)
        return result

    return hooked


def check_at_least_zero(what: str, value: Any) -> None:
    """Refuse a negative setting."""
    if not isinstance(value, Tensor) and not value >= 0.0:
        raise ValueError(f"Invalid {what}: {value}")


class Optimizer:
    """Changes parameters in place by their gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dicts with "params" and settings
    defaults : dict
        Settings of groups that do not give their own.

    Attributes
    ----------
    param_groups : list of dict
    state : dict
        What is remembered of each parameter.
    stepped : bool
        Whether a step was made.
    shared : dict
        What parameters share within one step.

    Notes
    -----
    A step may be part of a function that `symgrad.compile` compiles. A rate that
    changes from call to call is then to be a tensor, since numbers are as they were when the function
    was traced; schedulers write into it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"symgrad.{title(params.dtype)}Tensor"
            )
        if defaults.get("differentiable"):
            raise NotImplementedError(
                f"{type(self).__name__}: differentiable=True (got True, wanted False): a step is not "
                "recorded; write the update with sg.autograd.grad(..., create_graph=True)"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self.stepped = False
        self.shared: dict[Any, Any] = {}
        self._step_pre_hooks: dict[int, Any] = {}
        self._step_post_hooks: dict[int, Any] = {}
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with settings of their own."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        given = group["params"]
        if isinstance(given, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of "
                "tensors in sets will change between runs. Please use a list instead."
            )
        listed = [given] if isinstance(given, Tensor) else list(given)
        if listed and isinstance(listed[0], tuple):
            group["param_names"] = [name for name, _ in listed]
            listed = [p for _, p in listed]
        for p in listed:
            if not isinstance(p, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}"
                )
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        if len({id(p) for p in listed}) < len(listed):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause "
                "an error; each of them is changed as often as it is listed",
                UserWarning,
                stacklevel=3,
            )
        known = {id(p) for other in self.param_groups for p in other["params"]}
        if any(id(p) in known for p in listed):
            raise ValueError("some parameters appear in more than one parameter group")
        group["params"] = listed
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        self.param_groups.append(group)

    # -- stepping ---------------------------------------------------------------------

    def step(self, closure: Closure | None = None) -> Any:
        """Change every parameter that has a gradient.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and its gradients anew; its result is returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self.shared = {}
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        gradient = -p.grad if group.get("maximize") else p.grad
                        self.update(p, gradient, self.state[p], group)
        self.shared = {}
        return loss

    step = _with_hooks(step)

    def update(self, p: Any, gradient: Any, state: State, group: Group) -> None:
        """Change one parameter; subclasses define it, or `step` itself."""
        raise NotImplementedError

    def counted(self, state: State) -> Tensor:
        """The number of a parameter's step: ``state["step"]`` moved on by one.

        Parameters that were always changed together share one tensor, which is moved on once.
        """
        before: Any = state["step"]
        after = self.shared.get(("step", id(before)))
        if after is None:
            sharing = [p for p, values in self.state.items() if values.get("step") is before]
            if all(p.grad is not None for p in sharing):
                after = before.add_(1)
            else:
                refuse_tracing(type(self).__name__)
                after = before + 1
            self.shared["step", id(before)] = self.shared["step", id(after)] = after
        state["step"] = after
        return after

    def first_count(self) -> Tensor:
        """The count of parameters that are changed for the first time: it starts at 0."""
        count = self.shared.get("first")
        if count is None:
            count = self.shared["first"] = kept(tensor(0.0, dtype=dtypes.float64))
        return count

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all parameters' gradients, or write zeros into them."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    # Without asking what is there, on which a compiled function would depend.
                    p.grad = None
                elif p.grad is not None:
                    p.grad.detach_()
                    p.grad.zero_()

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step; it may return other arguments."""
        return added(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return added(self._step_post_hooks, hook)

    # -- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State and settings, with parameters as numbers."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            shown = {k: v for k, v in group.items() if k != "params"}
            shown["params"] = [numbers[id(p)] for p in group["params"]]
            groups.append(shown)
        state = {numbers[id(p)]: values for p, values in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state and settings from `state_dict` of an optimiser over the same parameters."""
        given = state_dict["param_groups"]
        if len(given) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        pairs = list(zip(self.param_groups, given, strict=True))
        if any(len(own["params"]) != len(new["params"]) for own, new in pairs):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        of_number: dict[Any, Tensor] = {}
        groups = []
        for own, new in pairs:
            of_number.update(zip(new["params"], own["params"], strict=True))
            groups.append(
                {
                    **deepcopy({k: v for k, v in new.items() if k != "params"}),
                    "params": own["params"],
                }
            )
        state: defaultdict[Tensor, State] = defaultdict(dict)
        counts: dict[float, Tensor] = {}
        for number, values in state_dict["state"].items():
            p = of_number[number]
            state[p] = {name: _own_copy(value, p) for name, value in values.items()}
            if "step" in values:
                reached = float(values["step"])
                state[p]["step"] = counts.setdefault(reached, tensor(reached, dtype=dtypes.float64))
        self.state = state
        self.param_groups = groups

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join([*lines, ")"])


def _own_copy(value: Any, p: Tensor) -> Any:
    """A copy of a remembered value, in the dtype of its parameter."""
    if not isinstance(value, Tensor):
        return deepcopy(value)
    copy: Any = value.detach()
    return copy.to(p.dtype).clone() if p.dtype.is_floating_point else copy.clone()


def kept(made: Tensor) -> Tensor:
    """State that outlives the step that makes it.

    Made while a function is traced, it counts as older than the trace: the compiled function reads it
    and writes it at each call.
    """
    if STATE.tracing:
        made = from_array(np.array(value_of(made.expr())))
        made._trace = 0
    return made


def refuse_tracing(name: str) -> None:
    """Refuse to trace a first step that is unlike all others."""
    if STATE.tracing:
        raise RuntimeError(
            f"{name}: the first step differs from all others and cannot be compiled for them; make one step "
            "outside of symgrad.compile first"
        )

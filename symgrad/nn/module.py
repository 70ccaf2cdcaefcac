"""`Module`: a function with parameters, made of other modules.

A module keeps three tables, as torch does: parameters, buffers and submodules; assignment of an
attribute sorts it into one of them. State is in `symgrad.nn.state`, gradient hooks in
`symgrad.nn.hooks`. Start reading at `Module.__setattr__`, then `Module.__call__`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from symgrad import dtypes
from symgrad.autograd.hooks import RemovableHandle
from symgrad.dtypes import DType
from symgrad.nn import state
from symgrad.nn.hooks import BackwardHooks, register
from symgrad.nn.parameter import Buffer, Parameter
from symgrad.storage import title
from symgrad.tensor import Tensor

M = TypeVar("M", bound="Module")


def _kind(value: object) -> str:
    """A value's type, for messages."""
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        return f"symgrad.{title(value.dtype)}Tensor"
    return type(value).__name__


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


class Module:
    """Base of all modules: subclass it, call ``super().__init__()``, and define `forward`.

    Attributes
    ----------
    training : bool
        Whether dropout and batch normalisation behave as in training.

    Examples
    --------
    >>> import symgrad as sg
    >>> class Line(sg.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.slope = sg.nn.Parameter(sg.tensor(2.))
    ...     def forward(self, x):
    ...         return self.slope * x
    >>> line = Line()
    >>> line(sg.tensor(3.)).item(), [name for name, _ in line.named_parameters()]
    (6.0, ['slope'])
    """

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _forward_hooks: dict[int, Any]
    _forward_pre_hooks: dict[int, Any]
    _backward_hooks: dict[int, Any]
    _backward_pre_hooks: dict[int, Any]

    def __init__(self) -> None:
        place = self.__dict__
        place["training"] = True
        place["_parameters"] = {}
        place["_buffers"] = {}
        place["_modules"] = {}
        place["_non_persistent_buffers_set"] = set()
        place["_forward_hooks"] = {}
        place["_forward_pre_hooks"] = {}
        place["_backward_hooks"] = {}
        place["_backward_pre_hooks"] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; to be defined by every subclass."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def extra_repr(self) -> str:
        """What `repr` says of the module's settings."""
        return ""

    # -- calling ----------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return self.forward(*args, **kwargs)
        return self._hooked_call(args, kwargs)

    def _hooked_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            found = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if found is None:
                continue
            if with_kwargs:
                if not isinstance(found, tuple) or len(found) != 2:
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                        f"{found}."
                    )
                args, kwargs = found
            else:
                args = found if isinstance(found, tuple) else (found,)
        gradients = None
        if self._backward_hooks or self._backward_pre_hooks:
            gradients = BackwardHooks(
                self, list(self._backward_hooks.values()), list(self._backward_pre_hooks.values())
            )
            args = gradients.around_inputs(args)
        result = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            found = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            if found is not None:
                result = found
        return result if gradients is None else gradients.around_outputs(result)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after `forward`; it may return another output."""
        return register(self._forward_hooks, (hook, with_kwargs), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before `forward`; it may return other arguments."""
        return register(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` once gradients of the inputs are known.

        It may return other gradients of the inputs, as a tuple.
        """
        return register(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` before gradients pass through the module."""
        return register(self._backward_pre_hooks, hook, prepend)

    # -- attributes -------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        place = self.__dict__
        parameters, buffers, modules = (
            place.get(t) for t in ("_parameters", "_buffers", "_modules")
        )
        if isinstance(value, Parameter):
            if parameters is None:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, parameters)
            self.register_parameter(name, value)
        elif parameters is not None and name in parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_kind(value)}' as parameter '{name}' (symgrad.nn.Parameter or None "
                    "expected)"
                )
            parameters[name] = None
        elif isinstance(value, Module):
            if modules is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, modules)
            modules[name] = value
        elif modules is not None and name in modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_kind(value)}' as child module '{name}' (symgrad.nn.Module or None "
                    "expected)"
                )
            modules[name] = None
        elif isinstance(value, Buffer) and buffers is not None:
            self._forget(name, buffers)
            self.register_buffer(name, value, value.persistent)
        elif buffers is not None and name in buffers:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{_kind(value)}' as buffer '{name}' (symgrad.nn.Buffer, symgrad.Tensor or "
                    "None expected)"
                )
            buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        tables = [*self._parameters, *self._buffers, *self._modules]
        return sorted({*object.__dir__(self), *(k for k in tables if k.isidentifier())})

    def _forget(self, name: str, kept: dict[str, Any]) -> None:
        """Take an attribute out of wherever it is but one table, where it keeps its place."""
        for table in (self.__dict__, self._parameters, self._buffers, self._modules):
            if table is not kept:
                table.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def _check_name(self, what: str, name: Any, own: Mapping[str, Any]) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(
                f'{what} name can\'t contain "."' + (f", got: {name}" if what == "module" else "")
            )
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in own:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None for one that is left out."""
        self._check_name("parameter", name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{_kind(param)}' object to parameter '{name}' (symgrad.nn.Parameter or None "
                "required)"
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but no parameter; part of `state_dict` if persistent."""
        self._check_name("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{_kind(tensor)}' object to buffer '{name}' (symgrad Tensor or None required)"
            )
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a submodule."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name("module", name, self._modules)
        self._modules[name] = module

    add_module = register_module

    # -- traversal --------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted names, parents first."""
        seen = set() if memo is None else memo
        pending: list[tuple[str, Module]] = [(prefix, self)]
        while pending:
            name, module = pending.pop()
            if remove_duplicate:
                if module in seen:
                    continue
                seen.add(module)
            yield name, module
            start = f"{name}." if name else ""
            below = [(start + k, m) for k, m in module._modules.items() if m is not None]
            pending += reversed(below)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        for _, module in self.named_children():
            yield module

    def _members(
        self, table: str, prefix: str, recurse: bool, unique: bool
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        places: Any = (
            self.named_modules(prefix=prefix, remove_duplicate=unique)
            if recurse
            else [(prefix, self)]
        )
        for place, module in places:
            start = f"{place}." if place else ""
            for name, value in getattr(module, table).items():
                if value is None or id(value) in seen:
                    continue
                if unique:
                    seen.add(id(value))
                yield start + name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names, each once."""
        return self._members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, of submodules too unless `recurse` is False."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names, each once."""
        return self._members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers, of submodules too unless `recurse` is False."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name."""
        module: Module = self
        for name in target.split(".") if target else []:
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted name."""
        place, _, name = target.rpartition(".")
        module = self.get_submodule(place)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        found = getattr(module, name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted name."""
        place, _, name = target.rpartition(".")
        module = self.get_submodule(place)
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return module._buffers[name]

    # -- what holds for all below -------------------------------------------------------

    def apply(self: M, fn: Callable[[Module], None]) -> M:
        """Call a function with every module, children before parents; returns the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self: M, mode: bool = True) -> M:
        """Behave as in training, or not."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: M) -> M:
        """Behave as in use, not as in training."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Record derivatives of all parameters, or stop it."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all parameters' gradients, or write zeros into them."""
        for parameter in self.parameters():
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.detach_()
                parameter.grad.zero_()  # type: ignore[attr-defined]

    def to(
        self: M,
        *args: Any,
        dtype: Any = None,
        tensor: Tensor | None = None,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> M:
        """Convert floating parameters and buffers to a dtype; devices are accepted and ignored."""
        wanted = dtype if tensor is None else tensor.dtype
        for a in args:
            if isinstance(a, Tensor):
                wanted = a.dtype
            elif isinstance(a, DType):
                wanted = a
        if wanted is None:
            return self
        kind = dtypes.as_dtype(wanted)
        if kind.category < 2:
            raise TypeError(
                "nn.Module.to only accepts floating point or complex dtypes, but got desired "
                f"dtype={kind!r}"
            )
        for value in [*self.parameters(), *self.buffers()]:
            if value.dtype.category >= 2 and value.dtype is not kind:
                state.converted(value, kind)
        return self

    def type(self: M, dst_type: Any) -> M:
        """Convert to a dtype, as `to`."""
        return self.to(dtype=dst_type)

    def float(self: M) -> M:
        """Convert to float32."""
        return self.to(dtypes.float32)

    def double(self: M) -> M:
        """Convert to float64."""
        return self.to(dtypes.float64)

    def cpu(self: M) -> M:
        """The module itself: there is one device."""
        return self

    # -- state ------------------------------------------------------------------------

    def state_dict(
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Tensor]:
        """Parameters and persistent buffers by dotted name; they share the module's memory."""
        found = state.state_dict(self, prefix, keep_vars)
        if destination is None:
            return found
        destination.update(found)
        return destination

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Write values by name into parameters and buffers.

        Parameters
        ----------
        state_dict : mapping of str to Tensor
        strict : bool
            Raise if names are missing or unknown.
        assign : bool
            Take the tensors themselves instead of writing into those that are there.
        """
        return state.load_state_dict(self, state_dict, strict, assign)

    # -- text ---------------------------------------------------------------------------

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [f"({name}): {_indented(repr(module))}" for name, module in self._modules.items()]
        if not lines:
            return (
                f"{self._get_name()}({extra})"
                if "\n" not in extra
                else f"{self._get_name()}(\n  {extra}\n)"
            )
        if extra:
            lines = [*extra.split("\n"), *lines]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"

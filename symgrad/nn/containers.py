"""Modules that hold modules or parameters: in sequence, in lists, in dicts.

All keep their entries in the tables of `symgrad.nn.module.Module`. Start reading at `Sequential`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor


def _place(index: int, count: int) -> str:
    """The name of the entry at an index."""
    at = int(index)
    if not -count <= at < count:
        raise IndexError(f"index {at} is out of range")
    return str(at % count)


class _Listed(Module):
    """A module whose submodules are numbered."""

    def _set_all(self, modules: Iterable[Any]) -> None:
        self._modules.clear()
        for number, module in enumerate(modules):
            self.register_module(str(number), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        names = list(self._modules)
        if isinstance(index, slice):
            return self._part([(n, self._modules[n]) for n in names[index]])
        return self._modules[names[int(_place(index, len(names)))]]

    def _part(self, entries: list[tuple[str, Any]]) -> Any:
        """A container of this kind with other entries."""
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        names = list(self._modules)
        setattr(self, names[int(_place(index, len(names)))], module)

    def __delitem__(self, index: int | slice) -> None:
        kept = list(self._modules.values())
        if isinstance(index, slice):
            del kept[index]
        else:
            del kept[int(_place(index, len(kept)))]
        self._set_all(kept)

    def __add__(self, other: Iterable[Any]) -> Any:
        return self._part([(str(k), m) for k, m in enumerate([*self, *other])])

    def __iadd__(self, other: Iterable[Any]) -> Any:
        return self.extend(other)

    def append(self, module: Module) -> Any:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before an index."""
        kept = list(self._modules.values())
        kept.insert(index, module)
        self._set_all(kept)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        """Add modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, index: int = -1) -> Any:
        """Take a module out."""
        found = self[index]
        del self[index]
        return found


class Sequential(_Listed):
    """Modules applied one after the other.

    Parameters
    ----------
    *args : Module, or one OrderedDict of modules by name

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.nn.Sequential(sg.nn.Linear(2, 3), sg.nn.ReLU())
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.register_module(name, module)
        else:
            self._set_all(args)

    def _part(self, entries: list[tuple[str, Any]]) -> Any:
        return Sequential(OrderedDict(entries))

    def forward(self, input: Any) -> Any:
        """The last module's result."""
        for module in self:
            input = module(input)
        return input


class ModuleList(_Listed):
    """A list of modules, all of which count as submodules."""

    def __init__(self, modules: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._set_all(modules or ())

    def _part(self, entries: list[tuple[str, Any]]) -> Any:
        return ModuleList([module for _, module in entries])

    def __repr__(self) -> str:
        shown = [repr(m) for m in self]
        lines = []
        first = 0
        for k, text in enumerate(shown):
            if k + 1 < len(shown) and shown[k + 1] == text:
                continue
            many = f"({first}-{k}): {k - first + 1} x " if k > first else f"({k}): "
            lines.append("  " + many + text.replace("\n", "\n  "))
            first = k + 1
        return (
            f"{self._get_name()}()"
            if not lines
            else f"{self._get_name()}(\n" + "\n".join(lines) + "\n)"
        )


class ModuleDict(Module):
    """Modules by name, all of which count as submodules."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Take a module out."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def items(self) -> Any:
        """The names with their modules."""
        return self._modules.items()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add modules from a mapping or from pairs."""
        for name, module in modules.items() if hasattr(modules, "items") else modules:
            self[name] = module


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join(map(str, value.shape))
    what = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{what} containing: [{value.dtype!r} of size {size}]"


def _as_parameter(value: Any) -> Any:
    return (
        Parameter(value)
        if isinstance(value, Tensor) and not isinstance(value, Parameter)
        else value
    )


class ParameterList(Module):
    """A list of parameters; tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(self._size)])

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList([self[k] for k in range(*index.indices(self._size))])
        return getattr(self, _place(index, self._size))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, _place(index, self._size), _as_parameter(value))

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in list(values):
            self.append(value)
        return self

    def __repr__(self) -> str:
        lines = [f"    ({k}): {_shown(value)}" for k, value in enumerate(self)]
        return f"{self._get_name()}(\n" + "\n".join(lines) + "\n)"


class ParameterDict(Module):
    """Parameters by name; tensors become parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """The names with their parameters."""
        return [(key, self[key]) for key in self._keys]

    def values(self) -> Iterable[Any]:
        """The parameters."""
        return [self[key] for key in self._keys]

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parameters from a mapping or from pairs."""
        pairs = (
            parameters.items() if isinstance(parameters, Mapping | ParameterDict) else parameters
        )
        for name, value in pairs:
            self[name] = value

    def __repr__(self) -> str:
        lines = [f"    ({key}): {_shown(value)}" for key, value in self.items()]
        return f"{self._get_name()}(\n" + "\n".join(lines) + "\n)"

"""Parameters and buffers: tensors that modules find by their type.

A `Parameter` is a leaf over the memory of the tensor it is made of. `retype` puts a value of
another dtype in a leaf, which keeps its identity. Start reading at `Parameter`.
"""

from __future__ import annotations

from typing import Any

from symgrad.creation import zeros
from symgrad.tensor import Tensor


def _share(made: Tensor, data: Tensor) -> None:
    """Make a new handle a detached one over the memory of `data`."""
    source = data.detach()
    Tensor.__init__(made, source.expr())
    made._family, made._path, made._seen = source._family, source._path, source._seen


class Parameter(Tensor):
    """A leaf tensor that a module registers when it is assigned as an attribute.

    Parameters
    ----------
    data : Tensor
        Its memory is shared. An empty tensor by default.
    requires_grad : bool

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.nn.Parameter(sg.ones(2))
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: data must be a Tensor (got {type(data).__name__}); make one with symgrad.tensor"
            )
        _share(self, zeros(0) if data is None else data)
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return _copied(self, super().__deepcopy__(memo), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild, parts = super().__reduce_ex__(protocol)
        return _rebuilt, (type(self), rebuild, parts, dict(self.__dict__))


class Buffer(Tensor):
    """A tensor that a module registers as a buffer when it is assigned as an attribute.

    Parameters
    ----------
    data : Tensor
    persistent : bool
        Whether it is part of the module's state.
    """

    __slots__ = ()

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        _share(self, zeros(0) if data is None else data)
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return _copied(self, super().__deepcopy__(memo), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild, parts = super().__reduce_ex__(protocol)
        return _rebuilt, (type(self), rebuild, parts, dict(self.__dict__))


def _as_kind(kind: type[Tensor], plain: Tensor, attributes: dict[str, Any]) -> Tensor:
    made: Tensor = kind.__new__(kind)
    _share(made, plain)
    made.__dict__.update(attributes)
    made._name = plain._name
    if plain.requires_grad:
        made.requires_grad_()
    if plain._slot is not None:
        made.grad = plain.grad
    return made


def _copied(original: Tensor, plain: Tensor, memo: dict[int, Any]) -> Tensor:
    made = _as_kind(type(original), plain, original.__dict__)
    memo[id(original)] = made
    return made


def _rebuilt(kind: type[Tensor], rebuild: Any, parts: Any, attributes: dict[str, Any]) -> Tensor:
    return _as_kind(kind, rebuild(*parts), attributes)


def retype(leaf: Tensor, value: Tensor) -> None:
    """Give a leaf a value of any shape and dtype; it stays the same object, with its hooks."""
    if leaf.here() is not leaf:
        raise RuntimeError(
            "a tensor from outside cannot change its shape or dtype inside a compiled or transformed function "
            f"(got a leaf of shape {tuple(leaf.shape)}, {leaf.dtype!r}); convert the module outside"
        )
    records = leaf.requires_grad
    leaf._family, leaf._path, leaf._seen = None, (), 0
    leaf._node = value.detach().expr()
    if records:
        leaf.requires_grad_()

"""torch.linalg's names: the registered ops whose names begin with ``linalg_``, without that prefix.

Examples
--------
>>> import symgrad as sg
>>> sg.linalg.det(sg.tensor([[1., 2.], [3., 4.]]))
tensor(-2.)
"""

from __future__ import annotations

from typing import Any

from symgrad.errors import LinAlgError
from symgrad.interface import FUNCTIONS

_PREFIX = "linalg_"
_NAMES = {
    name.removeprefix(_PREFIX): f for name, f in FUNCTIONS.items() if name.startswith(_PREFIX)
}

__all__ = ["LinAlgError", *sorted(_NAMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(
        f"module 'symgrad.linalg' has no function {name!r}; see dir(symgrad.linalg)"
    )


def __dir__() -> list[str]:
    return __all__

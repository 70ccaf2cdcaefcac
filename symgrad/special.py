"""torch.special's names for special functions.

Examples
--------
>>> import symgrad as sg
>>> sg.special.expit(sg.tensor(0.))
tensor(0.5000)
"""

from __future__ import annotations

from typing import Any

from symgrad.interface import FUNCTIONS

_SAME = (
    "digamma erf erfc erfinv exp2 expm1 i0 log1p log_ndtr log_softmax logit logsumexp multigammaln ndtr "
    "polygamma round sinc softmax xlog1py xlogy"
).split()
_OTHER = {"expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma"}
_NAMES = {name: FUNCTIONS[name] for name in _SAME if name in FUNCTIONS}
_NAMES |= {name: FUNCTIONS[other] for name, other in _OTHER.items() if other in FUNCTIONS}

__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(
        f"module 'symgrad.special' has no function {name!r}; see dir(symgrad.special)"
    )


def __dir__() -> list[str]:
    return __all__

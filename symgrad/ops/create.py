"""Tensors made from positions alone.

`iota` is the one primitive: the index along an axis. Ranges, identities and triangular masks are
written with it. Start reading at `iota`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.op import Case, Create, op, record


@op
class iota(Create):
    """The integers 0, 1, ..., n-1 as int64."""

    attributes = ("count",)
    nodiff = "does not depend on a tensor"
    samples = (Case(count=5), Case(count=0))

    def __call__(self, *, count: int) -> Expr:
        return record(self, (), (count,), (count,), dtypes.int64)  # type: ignore[arg-type]

    def ref(*, count: int) -> Any:
        return np.arange(count, dtype=np.int64)

    def sympy(sp: Any, *, count: int) -> Any:
        return sp.Symbol("i", integer=True)

"""Random numbers inside compiled functions: a draw as an op on its key.

Outside of tracing the value of a draw is made at once (`symgrad.random`) and the node is a leaf.
A compiled function that draws must give other numbers at each call, so there the draw is the op
`random_values` on a key, an int64 vector (seed, offset). Whoever runs the program fills the key
anew at each call, with `symgrad.random.Generator.next_key` (`key_array` gives it as an array);
the op's routine then makes the same numbers that the eager draw with that key makes. Start
reading at `random_values`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes, random
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Library, op
from symgrad.op import STATE, input_node
from symgrad.sample import Case, T

KINDS = ("uniform", "normal", "bits", "permutation")


def key_array(key: random.Key) -> np.ndarray:
    """A key as the operand that `random_values` takes."""
    return np.array(key, np.uint64).view(np.int64)


def key_node(key: random.Key | None = None) -> Expr:
    """A key as a leaf; without a value if `key` is None, for a program that gets it at each call."""
    return input_node((2,), dtypes.int64, None if key is None else key_array(key))


@op
class random_values(Library):
    """Random numbers of a key: "uniform" on [0, 1), standard "normal", "bits" or a "permutation".

    "bits" are integers uniform on [0, 2**63); the others have the floating `dtype`, a permutation
    int64.
    """

    public = False
    eager_check = False
    attributes = ("kind", "size", "dtype")
    nodiff = "independent of the key in law"
    samples = (
        Case(T(2, dtype="int", lo=0, hi=9), kind="uniform", size=(3, 2), dtype=dtypes.float64),
        Case(T(2, dtype="int", lo=0, hi=9), kind="normal", size=(5,), dtype=dtypes.float32),
        Case(T(2, dtype="int", lo=0, hi=9), kind="bits", size=(), dtype=dtypes.int64),
        Case(T(2, dtype="int", lo=0, hi=9), kind="permutation", size=(4,), dtype=dtypes.int64),
    )

    def shape(key: Expr, *, kind: str, size: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
        if kind not in KINDS:
            raise RuntimeError(
                f"random_values: unknown kind {kind!r}; use one of {', '.join(KINDS)}"
            )
        return size

    def result_dtype(self, key: Expr, *, kind: str, size: tuple[int, ...], dtype: DType) -> DType:
        return dtype if kind in ("uniform", "normal") else dtypes.int64

    def ref(key: np.ndarray, *, kind: str, size: tuple[int, ...], dtype: DType) -> Any:
        seed, offset = (int(k) for k in key)
        if kind == "uniform":
            return random.uniform_of((seed, offset), size, dtype.numpy)
        if kind == "normal":
            return random.normal_of((seed, offset), size, dtype.numpy)
        if kind == "bits":
            return random.bits_of((seed, offset), size)
        return random.permutation_of((seed, offset), size[0])


def draw(
    kind: str, size: tuple[int, ...], dtype: DType, generator: random.Generator | None = None
) -> Expr:
    """A draw of `random_values`: a value now, or at each call of the function being traced."""
    source = generator or random.default_generator
    if STATE.capture is not None:
        return random_values(STATE.capture.key(source), kind=kind, size=size, dtype=dtype)
    value = random_values.ref(key_array(source.next_key()), kind=kind, size=size, dtype=dtype)
    given = dtype if kind in ("uniform", "normal") else dtypes.int64
    return input_node(size, given, np.asarray(value, given.numpy))

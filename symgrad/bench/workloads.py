"""What is timed: programs on fixed inputs, in NumPy and as formulas that every library can run.

Structures:

* `Benchmark`: a title and `build`, which makes a `Case`.
* `Case`: inputs, NumPy's step, and a formula of a namespace with torch's names and the inputs.
* `BENCHMARKS`: all of them by name.

Derivatives on NumPy's side are written by hand. Start reading at `Case`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import symgrad as sg
from symgrad.timing import Step


@dataclass(frozen=True)
class Case:
    """A program on its inputs.

    Attributes
    ----------
    args : tuple of ndarray and float
    by_numpy : callable
        NumPy's step, without arguments.
    formula : callable
        ``formula(xp, *args)`` for a namespace `xp` of functions with torch's names.
    argnums : int, tuple of int or None
        If given, the step is the formula's value and its gradient by these arguments.
    """

    args: tuple[Any, ...]
    by_numpy: Step
    formula: Callable[..., Any]
    argnums: int | tuple[int, ...] | None = None

    def compiled(self) -> Any:
        """The step as symgrad compiles it, a function of the arguments."""
        function: Callable[..., Any] = partial(self.formula, sg)
        if self.argnums is not None:
            function = sg.func.value_and_grad(function, argnums=self.argnums)
        return sg.compile(function)


@dataclass(frozen=True)
class Benchmark:
    """What to time."""

    title: str
    build: Callable[[], Case]


def _tiny(xp: Any, x: Any, y: Any) -> Any:
    return x * y + xp.sin(x)


def _scalar() -> Case:
    return Case((1.5, 2.0), lambda: 1.5 * 2.0 + np.sin(1.5), _tiny)


def _vector() -> Case:
    x, y = np.random.default_rng(0).normal(size=(2, 10))
    return Case((x, y), lambda: x * y + np.sin(x), _tiny)


def _chain() -> Case:
    x = np.random.default_rng(1).normal(size=1_000_000)

    def formula(xp: Any, x: Any) -> Any:
        t = xp.tanh(x)
        u = xp.exp(-t * t)
        return xp.sin(3.0 * xp.log(1.5 + u + x * x)) * u

    return Case((x,), partial(formula, np, x), formula)


def _total() -> Case:
    x = np.random.default_rng(2).normal(size=(1000, 1000))

    def formula(xp: Any, x: Any) -> Any:
        return xp.sum((x - xp.mean(x, 1, keepdim=True)) ** 2)

    return Case((x,), lambda: np.sum((x - x.mean(1, keepdims=True)) ** 2), formula)


def _softmax() -> Case:
    x = np.random.default_rng(3).normal(size=(1000, 100)).astype(np.float32)

    def by_numpy() -> Any:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def formula(xp: Any, x: Any) -> Any:
        e = xp.exp(x - xp.amax(x, 1, keepdim=True))
        return e / xp.sum(e, 1, keepdim=True)

    return Case((x,), by_numpy, formula)


def _logistic() -> Case:
    rng = np.random.default_rng(4)
    n, d = 20_000, 50
    x, w = rng.normal(size=(n, d)), rng.normal(size=d) / 10
    y = np.where(x @ w + rng.logistic(size=n) > 0, 1.0, -1.0)

    def by_numpy() -> Any:
        z = y * (x @ w)
        return np.mean(np.log1p(np.exp(-z))), -(x.T @ (y / (1.0 + np.exp(z)))) / n

    def loss(xp: Any, w: Any, x: Any, y: Any) -> Any:
        return xp.mean(xp.log1p(xp.exp(-y * (x @ w))))

    return Case((w, x, y), by_numpy, loss, 0)


def _network() -> Case:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(256, 64))
    y = rng.normal(size=(256, 1))
    w = rng.normal(size=(64, 64)) / 8
    v = rng.normal(size=(64, 1)) / 8

    def by_numpy() -> Any:
        h = np.tanh(x @ w)
        e = h @ v - y
        g = 2.0 * e / e.size
        return np.mean(e * e), (x.T @ ((g @ v.T) * (1.0 - h * h)), h.T @ g)

    def loss(xp: Any, w: Any, v: Any, x: Any, y: Any) -> Any:
        return xp.mean((xp.tanh(x @ w) @ v - y) ** 2)

    return Case((w, v, x, y), by_numpy, loss, (0, 1))


def _rosenbrock() -> Case:
    x = np.random.default_rng(6).normal(size=1000)

    def by_numpy() -> Any:
        e, d = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
        g = np.zeros_like(x)
        g[:-1] = -400.0 * x[:-1] * e - 2.0 * d
        g[1:] += 200.0 * e
        return np.sum(100.0 * e**2 + d**2), g

    def value(xp: Any, x: Any) -> Any:
        return xp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    return Case((x,), by_numpy, value, 0)


BENCHMARKS: dict[str, Benchmark] = {
    "scalar": Benchmark("x*y + sin(x) of two floats", _scalar),
    "vector": Benchmark("x*y + sin(x) of two 10-vectors", _vector),
    "chain": Benchmark("elementwise chain, 1e6 elements", _chain),
    "deviations": Benchmark("sum of squared deviations from row means, 1000 x 1000", _total),
    "softmax": Benchmark("softmax of 1000 x 100, float32", _softmax),
    "rosenbrock": Benchmark("Rosenbrock value and gradient, n = 1000", _rosenbrock),
    "logistic": Benchmark("logistic regression loss and gradient, 20000 x 50", _logistic),
    "network": Benchmark("tanh network loss and gradients, 256 x 64 x 64", _network),
}

"""symgrad's own benchmarks next to NumPy: ``python -m symgrad bench``.

Structures:

* `Benchmark`: a title and `build`, which makes the inputs and gives two functions without arguments
  that compute the same outputs, one in NumPy and one compiled by symgrad.
* `BENCHMARKS`: all of them by name.
* `Row`: what was measured.

Derivatives on NumPy's side are written by hand. Start reading at `measure`, then `BENCHMARKS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import symgrad as sg
from symgrad.timing import Step, duration, medians


@dataclass(frozen=True)
class Benchmark:
    """What to time: `build` gives NumPy's step and symgrad's, in this order."""

    title: str
    build: Callable[[], tuple[Step, Step]]


@dataclass(frozen=True)
class Row:
    """One benchmark's result, in seconds; `ratio` above 1 means that symgrad is faster."""

    name: str
    title: str
    numpy_s: float
    symgrad_s: float
    first_s: float

    @property
    def ratio(self) -> float:
        return self.numpy_s / self.symgrad_s

    def text(self) -> str:
        """The row as a line of the table."""
        cells = [duration(s) for s in (self.numpy_s, self.symgrad_s, self.first_s)]
        return f"{self.name:<12}{cells[0]:>10}{cells[1]:>10}{cells[2]:>12}{self.ratio:>9.2f}  {self.title}"


HEADING = f"{'benchmark':<12}{'NumPy':>10}{'symgrad':>10}{'first call':>12}{'ratio':>9}"


def check(name: str) -> tuple[Step, Step, float]:
    """Build a benchmark and compare the outputs of its two sides.

    Returns
    -------
    numpy_step, symgrad_step, first_s
        The two sides, and how long symgrad's first call took.

    Raises
    ------
    AssertionError
        If the outputs differ by more than rounding.
    """
    numpy_step, symgrad_step = BENCHMARKS[name].build()
    start = time.perf_counter()
    found = symgrad_step()
    first_s = time.perf_counter() - start
    for a, b in zip(_listed(found), _listed(numpy_step()), strict=True):
        scale = float(np.max(np.abs(b), initial=0.0))
        tolerance = 1e-4 if np.asarray(b).dtype == np.float32 else 1e-9
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)
    return numpy_step, symgrad_step, first_s


def measure(name: str, seconds: float) -> Row:
    """Check one benchmark, then time it."""
    numpy_step, symgrad_step, first_s = check(name)
    numpy_s, symgrad_s = medians([numpy_step, symgrad_step], seconds)
    return Row(name, BENCHMARKS[name].title, numpy_s, symgrad_s, first_s)


def _listed(outputs: Any) -> list[Any]:
    """The arrays of nested tuples, in order."""
    if not isinstance(outputs, tuple):
        return [outputs]
    return [a for part in outputs for a in _listed(part)]


def run(names: Sequence[str] = (), seconds: float = 0.5, show: Callable[[str], Any] = print) -> None:
    """Run benchmarks, all of them by default, and show a line for each."""
    show(HEADING)
    for name in names or BENCHMARKS:
        show(measure(name, seconds).text())


# -- the benchmarks ---------------------------------------------------------------------


def _tiny(x: Any, y: Any) -> Any:
    return x * y + sg.sin(x)


def _scalar() -> tuple[Step, Step]:
    f = sg.compile(_tiny)
    return lambda: 1.5 * 2.0 + np.sin(1.5), lambda: f(1.5, 2.0)


def _vector() -> tuple[Step, Step]:
    x, y = np.random.default_rng(0).normal(size=(2, 10))
    f = sg.compile(_tiny)
    return lambda: x * y + np.sin(x), lambda: f(x, y)


def _chain() -> tuple[Step, Step]:
    x = np.random.default_rng(1).normal(size=1_000_000)

    def by_numpy() -> Any:
        t = np.tanh(x)
        u = np.exp(-t * t)
        return np.sin(3.0 * np.log(1.5 + u + x * x)) * u

    def formula(x: Any) -> Any:
        t = sg.tanh(x)
        u = sg.exp(-t * t)
        return sg.sin(3.0 * sg.log(1.5 + u + x * x)) * u

    f = sg.compile(formula)
    return by_numpy, lambda: f(x)


def _total() -> tuple[Step, Step]:
    x = np.random.default_rng(2).normal(size=(1000, 1000))
    f = sg.compile(lambda x: ((x - x.mean(1, keepdim=True)) ** 2).sum())
    return lambda: np.sum((x - x.mean(1, keepdims=True)) ** 2), lambda: f(x)


def _softmax() -> tuple[Step, Step]:
    x = np.random.default_rng(3).normal(size=(1000, 100)).astype(np.float32)

    def by_numpy() -> Any:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def formula(x: Any) -> Any:
        e = sg.exp(x - x.amax(1, keepdim=True))
        return e / e.sum(1, keepdim=True)

    f = sg.compile(formula)
    return by_numpy, lambda: f(x)


def _logistic() -> tuple[Step, Step]:
    rng = np.random.default_rng(4)
    n, d = 20_000, 50
    x, w = rng.normal(size=(n, d)), rng.normal(size=d) / 10
    y = np.where(x @ w + rng.logistic(size=n) > 0, 1.0, -1.0)

    def by_numpy() -> Any:
        z = y * (x @ w)
        return np.mean(np.log1p(np.exp(-z))), -(x.T @ (y / (1.0 + np.exp(z)))) / n

    def loss(w: Any, x: Any, y: Any) -> Any:
        return sg.log1p(sg.exp(-y * (x @ w))).mean()

    f = sg.compile(sg.func.value_and_grad(loss))
    return by_numpy, lambda: f(w, x, y)


def _network() -> tuple[Step, Step]:
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

    def loss(w: Any, v: Any, x: Any, y: Any) -> Any:
        return ((sg.tanh(x @ w) @ v - y) ** 2).mean()

    f = sg.compile(sg.func.value_and_grad(loss, argnums=(0, 1)))
    return by_numpy, lambda: f(w, v, x, y)


def _rosenbrock() -> tuple[Step, Step]:
    x = np.random.default_rng(6).normal(size=1000)

    def by_numpy() -> Any:
        e, d = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
        g = np.zeros_like(x)
        g[:-1] = -400.0 * x[:-1] * e - 2.0 * d
        g[1:] += 200.0 * e
        return np.sum(100.0 * e**2 + d**2), g

    def value(x: Any) -> Any:
        return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()

    f = sg.compile(sg.func.value_and_grad(value))
    return by_numpy, lambda: f(x)


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

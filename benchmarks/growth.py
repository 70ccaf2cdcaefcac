"""How time grows with the data: ``python benchmarks/growth.py``.

For three kinds of program the nanoseconds per element of the smallest data, and how many times that
an element takes at 10, 100 and 1000 times the data. The speed of a machine changes while one measures, and the
fastest of many short calls is found sooner than that of a few long ones. So each size is timed
between calls with the smallest one which together take as long, and the median ratio is shown.
`SYMGRAD_NUM_THREADS` says how many threads take part. Start reading at `growth`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import symgrad as sg
from symgrad.autograd import grad

Call = Callable[[], object]

SMALLEST = 10_000
TIMES = (10, 100, 1000)
SECONDS = 3.0
"""Time spent on each size."""


def option(S: sg.Tensor, T: sg.Tensor, r: sg.Tensor, v: sg.Tensor, K: sg.Tensor) -> object:
    """Black-Scholes price and derivatives: five arrays are read, six written."""
    spread = v * sg.sqrt(T)
    d1 = (sg.log(S / K) + (r + 0.5 * v * v) * T) / spread
    upper, lower = (0.5 * sg.erfc(-d * 0.5**0.5) for d in (d1, d1 - spread))
    price = S * upper - K * sg.exp(-r * T) * lower
    first = grad(price.sum(), (S, T, r, v), create_graph=True)
    return price, *first, grad(first[0].sum(), S)[0]


def chain(x: sg.Tensor) -> object:
    """A sum of functions, and its gradient."""
    total = (sg.sin(x) * sg.exp(-x * x) + sg.tanh(x)).sum()
    return total, grad(total, x)[0]


def mixture(x: sg.Tensor, means: sg.Tensor, scales: sg.Tensor) -> object:
    """The likelihood of a mixture of Gaussians, and its gradient: blocks of rows with products."""
    z = (x @ means.T) * scales - 0.5 * (x * x).sum(1, keepdim=True)
    total = sg.logsumexp(z, 1).sum()
    return total, *grad(total, (means, scales))


def program(kind: str, size: int) -> Call:
    """A call of one of the programs with so many elements or rows."""
    random = np.random.default_rng(0)
    if kind == "option":
        arrays = [random.uniform(0.5, 1.5, size) for _ in range(5)]
        function, wanted = option, 4
    elif kind == "chain":
        arrays, function, wanted = [random.normal(size=size)], chain, 1
    else:
        size //= 10
        arrays = [random.normal(size=shape) for shape in ((size, 20), (25, 20), (25,))]
        function, wanted = mixture, 3

    def traced(*tensors: sg.Tensor) -> object:
        for x in tensors[:wanted]:
            x.requires_grad_()
        return function(*tensors)

    compiled = sg.compile(traced)
    return lambda: compiled(*arrays)


def seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def growth(kind: str) -> None:
    """Print the table of one program."""
    small = program(kind, SMALLEST)
    seconds(small, 2)
    times: list[float] = []
    rows = []
    for factor in TIMES:
        large = program(kind, factor * SMALLEST)
        seconds(large, 2)
        ratios = []
        stop = time.perf_counter() + SECONDS
        while time.perf_counter() < stop or len(ratios) < 5:
            # Half of the small calls before, half of them behind.
            before, own, behind = (
                seconds(small, factor // 2), seconds(large, 1), seconds(small, factor - factor // 2)
            )  # fmt: skip
            ratios.append(own / (before + behind))
            times.append((before + behind) / factor)
        rows.append((factor, statistics.median(ratios)))
    each = statistics.median(times) / SMALLEST * 1e9
    print(f"{kind}: {each:.3g} ns per element")
    for factor, ratio in rows:
        print(f"  {factor:5d} times the data: {ratio:.3f} times that")


if __name__ == "__main__":
    for kind in ("option", "chain", "mixture"):
        growth(kind)

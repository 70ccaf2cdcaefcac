"""The profiler: which operations were recorded, which kernels ran, and for how long.

While a profile is taken, results of public functions are noted as ``aten::`` events, backward
passes take the general road and note each node, and every run of a compiled program is an event of
its own: since values are computed when looked at, that is where the time goes. Structures:
`Event`; `profile`, which collects them; `Averages`, events summed by name. Start reading at
`profile`.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from symgrad import interface, runtime
from symgrad.autograd import walk
from symgrad.autograd.engine import PROFILING
from symgrad.autograd.names import aten_name, node_name
from symgrad.expr import Expr

__all__ = ["Averages", "Event", "profile", "record_function"]


class Event:
    """Something that happened while a profile was taken.

    Attributes
    ----------
    name : str
    start_us, cpu_time_total : float
        Begin and duration in microseconds.
    input_shapes : list of list of int
        With ``record_shapes=True``.
    count : int
    """

    def __init__(self, name: str, start_us: float, duration_us: float, kind: str) -> None:
        self.name = name
        self.key = name
        self.start_us = start_us
        self.cpu_time_total = duration_us
        self.kind = kind
        self.thread = threading.get_ident()
        self.input_shapes: list[list[int]] = []
        self.count = 1

    @property
    def cpu_time(self) -> float:
        """Mean duration in microseconds."""
        return self.cpu_time_total / max(self.count, 1)

    cpu_time_str = property(lambda self: f"{self.cpu_time:.3f}us")

    @property
    def self_cpu_time_total(self) -> float:
        return self.cpu_time_total

    def __repr__(self) -> str:
        return f"<Event {self.name} x{self.count} {self.cpu_time_total:.3f} us>"


class Averages(list[Event]):
    """Events summed by name."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_: Any) -> str:
        """The events as a table, a line each."""
        rows = list(self)
        if sort_by is not None:
            rows.sort(key=lambda e: float(getattr(e, sort_by, 0.0)), reverse=True)
        width = max([len(e.key) for e in rows] + [4])
        lines = [f"{'Name':<{width}}  {'# of Calls':>10}  {'CPU total':>14}  {'CPU time avg':>14}"]
        lines.append("-" * len(lines[0]))
        for e in rows[:row_limit]:
            lines.append(
                f"{e.key:<{width}}  {e.count:>10}  {e.cpu_time_total:>12.3f}us  {e.cpu_time:>12.3f}us"
            )
        return "\n".join(lines)

    __str__ = table

    def total_average(self) -> Event:
        """All events as one."""
        total = Event("Total", 0.0, sum(e.cpu_time_total for e in self), "total")
        total.count = sum(e.count for e in self)
        return total


def _now() -> float:
    return time.perf_counter_ns() / 1e3


class profile:  # noqa: N801
    """Takes a profile of a with block.

    Parameters
    ----------
    enabled : bool
    record_shapes : bool
        Whether events carry the shapes of their inputs.

    Examples
    --------
    >>> import symgrad as sg
    >>> with sg.autograd.profiler.profile() as p:
    ...     _ = (sg.ones(3) * 2).sum().item()
    >>> "aten::mul" in [e.key for e in p.key_averages()]
    True
    """

    def __init__(self, enabled: bool = True, *, record_shapes: bool = False, **_: Any) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes
        self.function_events: Averages = Averages()
        self._last = 0.0
        self._run: Any = None
        self._walk: Any = None

    def __enter__(self) -> profile | None:
        if not self.enabled:
            return None
        PROFILING.append(self)
        interface.watch(self._recorded)
        self._last = _now()
        self._run = runtime.run_recipe
        self._walk = walk.contributions
        runtime.run_recipe = self._timed(self._run, self._kernel_name, "kernel")
        walk.contributions = self._timed(self._walk, self._backward_name, "backward")
        return self

    def __exit__(self, *_: object) -> None:
        if not self.enabled:
            return
        runtime.run_recipe = self._run
        walk.contributions = self._walk
        interface.unwatch(self._recorded)
        PROFILING.remove(self)

    def _recorded(self, node: Expr) -> Expr:
        now = _now()
        event = Event(aten_name(node), self._last, now - self._last, "cpu_op")
        self._last = now
        if self.record_shapes:
            event.input_shapes = [_shape_of(a, node) for a in _operands(node)]
        self.function_events.append(event)
        return node

    def _timed(self, function: Callable[..., Any], name: Callable[[Any], str], kind: str) -> Any:
        @functools.wraps(function)
        def timed(subject: Any, *args: Any) -> Any:
            start = _now()
            try:
                return function(subject, *args)
            finally:
                self._last = _now()
                self.function_events.append(Event(name(subject), start, self._last - start, kind))
                if kind == "backward":
                    self._note_derivative(subject, start)

        return timed

    def _note_derivative(self, node: Expr, start: float) -> None:
        """A derivative's own operations, as torch's backward would run them."""
        name = aten_name(node)
        for a in node.args:
            if a.requires_grad:
                self.function_events.append(Event(name, start, 0.0, "cpu_op"))

    @staticmethod
    def _kernel_name(recipe: Any) -> str:
        return f"kernels[{len(recipe.program.schedule.steps)} steps]"

    @staticmethod
    def _backward_name(node: Expr) -> str:
        return f"autograd::engine::evaluate_function: {node_name(node)}"

    # -- reading ----------------------------------------------------------------------

    def key_averages(self, group_by_input_shape: bool = False, **_: Any) -> Averages:
        """Events summed by name (and input shapes)."""
        found: dict[Any, Event] = {}
        for e in self.function_events:
            key = (e.name, str(e.input_shapes)) if group_by_input_shape else e.name
            total = found.get(key)
            if total is None:
                total = found[key] = Event(e.name, e.start_us, 0.0, e.kind)
                total.input_shapes = e.input_shapes
                total.count = 0
            total.count += 1
            total.cpu_time_total += e.cpu_time_total
        return Averages(found.values())

    def table(self, sort_by: str | None = None, **kwargs: Any) -> str:
        """The summed events as a table."""
        return self.key_averages().table(sort_by, **kwargs)

    def total_average(self) -> Event:
        """All events as one."""
        return self.key_averages().total_average()

    @property
    def self_cpu_time_total(self) -> float:
        return self.total_average().cpu_time_total

    def export_chrome_trace(self, path: str) -> None:
        """Write the events in the format of Chrome's trace viewer."""
        events = [
            {
                "ph": "X", "name": e.name, "cat": e.kind, "ts": e.start_us, "dur": e.cpu_time_total,
                "pid": 0, "tid": e.thread, "args": {"Input Dims": e.input_shapes},
            }
            for e in self.function_events
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def _operands(node: Expr) -> Sequence[Expr]:
    """What a result was made from: through the reshapes around a product."""
    inner = node
    while (
        inner.op.family == "movement"
        and inner.args
        and inner.args[0].op.family in ("movement", "contract")
    ):
        inner = inner.args[0]
    return inner.args if inner.op.family == "contract" else node.args


def _shape_of(a: Expr, node: Expr) -> list[int]:
    if a.op.family == "movement" and a.args and node.op.family in ("movement", "contract"):
        a = a.args[0]
    return list(a.shape)


class record_function:  # noqa: N801
    """An event of one's own: for a with block, or for calls of a decorated function.

    Parameters
    ----------
    name : str
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._start = 0.0

    def __enter__(self) -> record_function:
        self._start = _now()
        return self

    def __exit__(self, *_: object) -> None:
        for taken in PROFILING:
            taken.function_events.append(
                Event(self.name, self._start, _now() - self._start, "user_annotation")
            )

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name):
                return function(*args, **kwargs)

        return inside

"""Switching recording on and off: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`.

Each is a context manager and a decorator (of functions and of generators); the state is per
thread. Start reading at `_Mode`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from symgrad.op import STATE


def is_grad_enabled() -> bool:
    """Whether operations are recorded for derivatives in this thread."""
    return STATE.grad


class _Mode:
    """A grad mode as context manager and decorator; re-entrant."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(STATE.grad)
        STATE.grad = self.enabled

    def __exit__(self, *_: object) -> None:
        STATE.grad = self._before.pop()

    def _fresh(self) -> _Mode:
        return _Mode(self.enabled)

    def __call__(self, function: Callable[..., Any]) -> Any:
        if inspect.isclass(function):
            raise TypeError(
                "no_grad: decorating a class has no effect on its methods; decorate the methods"
            )
        if inspect.isgeneratorfunction(function):
            return self._around_generator(function)

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return inside

    def _around_generator(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            step: Callable[..., Any] = generator.send
            sent: Any = None
            while True:
                try:
                    with self._fresh():
                        item = step(sent)
                except StopIteration as stop:
                    return stop.value
                step = generator.send
                try:
                    sent = yield item
                except GeneratorExit:
                    with self._fresh():
                        generator.close()
                    raise
                except BaseException as error:
                    step, sent = generator.throw, error

        return inside


class no_grad(_Mode):  # noqa: N801
    """Within it nothing is recorded for derivatives.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.ones(2, requires_grad=True)
    >>> with sg.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        _Mode.__init__(made, False)
        return made(function)

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Mode):  # noqa: N801
    """Within it operations are recorded, even inside `no_grad`."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        _Mode.__init__(made, True)
        return made(function)

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_Mode):  # noqa: N801
    """Set grad mode: at once as a function, until the end of the block as a context manager."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._previous = STATE.grad
        STATE.grad = self.enabled

    def __enter__(self) -> None:
        self._before.append(self._previous)
        STATE.grad = self.enabled

    def __call__(self, function: Callable[..., Any]) -> Any:
        STATE.grad = self._previous
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801
    """`no_grad` for code that never differentiates; here the two are the same."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)

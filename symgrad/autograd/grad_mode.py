"""Switching recording on and off: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`.

Each is a context manager and a decorator (of functions and of generators); the state is per
thread. Start reading at `_Mode`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from symgrad import interface
from symgrad.expr import Expr
from symgrad.op import STATE
from symgrad.storage import INFERENCE, MODES


def is_grad_enabled() -> bool:
    """Whether operations are recorded for derivatives in this thread."""
    return STATE.grad


def is_inference_mode_enabled() -> bool:
    """Whether inference mode is on in this thread."""
    return MODES.inference


class _Mode:
    """A grad mode as context manager and decorator; re-entrant."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(STATE.grad)
        STATE.grad = self.enabled and not MODES.inference

    def __exit__(self, *_: object) -> None:
        STATE.grad = self._before.pop()

    def _fresh(self) -> _Mode:
        return _Mode(self.enabled)

    def __call__(self, function: Callable[..., Any]) -> Any:
        if inspect.isclass(function):
            return self._around_class(function)
        if inspect.isgeneratorfunction(function):
            return self._around_generator(function)

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return inside

    def _around_class(self, decorated: Any) -> Any:
        warnings.warn(
            "Decorating classes is deprecated and will be disabled in future versions. You should only "
            "decorate functions or methods. To preserve the current behavior of class decoration, you "
            "can directly decorate the `__init__` method and nothing else.",
            FutureWarning,
            stacklevel=3,
        )
        decorated.__init__ = self(decorated.__init__)
        return decorated

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
        if not isinstance(mode, bool):
            raise TypeError(f"set_grad_enabled(): mode must be bool, not {type(mode).__name__}")
        super().__init__(mode)
        self._previous = STATE.grad
        STATE.grad = self.enabled and not MODES.inference

    def __enter__(self) -> None:
        self._before.append(self._previous)
        STATE.grad = self.enabled and not MODES.inference

    def __call__(self, function: Callable[..., Any]) -> Any:
        STATE.grad = self._previous
        return super().__call__(function)


def _mark(node: Expr) -> Expr:
    """Mark a result as made in inference mode."""
    if MODES.inference and node.meta is None and not node.requires_grad:
        node.meta = INFERENCE
    return node


class inference_mode(_Mode):  # noqa: N801
    """`no_grad` for code that never differentiates: what it makes cannot be changed outside of it.

    Parameters
    ----------
    mode : bool or callable
        False switches it off inside another block; a function is decorated.
    """

    def __new__(cls, mode: Any = True) -> Any:
        made = super().__new__(cls)
        if isinstance(mode, bool):
            return made
        inference_mode.__init__(made, True)
        return made(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)
        self.mode = mode
        self._outer: list[bool] = []

    def __enter__(self) -> None:
        self._outer.append(MODES.inference)
        MODES.inference = self.mode
        super().__enter__()
        if self.mode:
            interface.watch(_mark)

    def __exit__(self, *_: object) -> None:
        if self.mode:
            interface.unwatch(_mark)
        super().__exit__()
        MODES.inference = self._outer.pop()

    def _fresh(self) -> _Mode:
        return inference_mode(self.mode)


class set_multithreading_enabled:  # noqa: N801
    """Accepted as in torch: a backward pass runs in the thread that calls it, its kernels in all."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

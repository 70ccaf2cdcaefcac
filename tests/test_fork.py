"""A forked child runs whatever the other threads of its parent were in the middle of."""

import importlib
import os
import pkgutil
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import emission, jit, pool
from symgrad.locks import RenewedLock

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


def _renewed_locks():
    for module in pkgutil.walk_packages(sg.__path__, "symgrad."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, RenewedLock):
                    yield pytest.param(value, id=f"{module.name}.{name}")


RENEWED = list(_renewed_locks())
HELD = [
    pytest.param(jit._LOCK, id="jit"),
    pytest.param(pool._LOCK, id="pool"),
    pytest.param(emission._INNER, id="emission"),
    pytest.param(emission._SEATS[0].lock, id="seat"),
]


def _is_right():
    """Whether programs that no one has built yet give what NumPy gives."""
    scale = 2.5
    a = np.eye(3) * 4 + scale
    x = sg.tensor(a, requires_grad=True)
    value = (sg.linalg.solve(x, sg.tensor(a)) + scale * sg.sin(x)).sum()
    value.backward()
    x.sum().backward()
    drawn = sg.rand(3).numpy()
    compiled = sg.compile(lambda v: sg.exp(v) * scale)(a)
    return (
        np.allclose(value.item(), 3 + scale * np.sin(a).sum())
        and x.grad.numpy().shape == a.shape
        and ((drawn >= 0) & (drawn < 1)).all()
        and np.allclose(compiled, np.exp(a) * scale)
    )


def _child_is_right():
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        right = False
        try:
            right = _is_right()
        finally:
            os._exit(0 if right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _holder(lock, seconds):
    """A thread that holds a lock until the event is set or the seconds are over."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return thread, over


def test_locks_are_made_in_one_place():
    package = Path(sg.__file__).parent
    makers = [p.name for p in package.rglob("*.py") if re.search(r"\bR?Lock\(\)", p.read_text())]
    assert makers == ["locks.py"]
    assert len(RENEWED) >= 7


@pytest.mark.parametrize("lock", RENEWED)
def test_a_child_runs_while_another_thread_holds_a_lock(lock):
    thread, over = _holder(lock, 60)
    right = _child_is_right()
    over.set()
    thread.join()
    assert right


@pytest.mark.parametrize("lock", HELD)
def test_a_fork_waits_for_a_step_of_foreign_code(lock):
    thread, _ = _holder(lock, 0.2)
    right = _child_is_right()
    thread.join()
    assert right


def test_a_child_keeps_the_lock_that_its_own_thread_holds():
    lock = RenewedLock()
    with lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            other, over = threading.Event(), threading.Event()

            def want():
                with lock:
                    other.set()
                over.set()

            threading.Thread(target=want, daemon=True).start()
            waits = not other.wait(0.1)
            lock.__exit__(None, None, None)
            os._exit(0 if waits and over.wait(5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_has_the_values_that_another_thread_was_tracing():
    weight = sg.tensor([1.0, 2.0])
    met, over = threading.Event(), threading.Event()

    def traced(x):
        y = weight * x
        weight.add_(1.0)
        met.set()
        over.wait(60)
        return y

    thread = threading.Thread(target=lambda: sg.compile(traced)(sg.tensor(1.0)))
    thread.start()
    met.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        right = False
        try:
            right = (weight * 2.0).tolist() == [2.0, 4.0]
        finally:
            os._exit(0 if right else 1)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert weight.tolist() == [2.0, 3.0]

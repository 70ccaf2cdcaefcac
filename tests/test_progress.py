"""The progress line: on a terminal, after a second, and gone at the end."""

from __future__ import annotations

import io

import pytest

import symgrad.progress
from symgrad.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(symgrad.progress, "time", made)
    return made


def run(stream, clock):
    with Progress("compiling loops", 3, stream) as progress:
        for number, now in enumerate([0.9, 1.5, 12.0]):
            clock.now = now
            progress.step(number + 1)


def test_a_line_after_a_second(clock):
    stream = Terminal()
    run(stream, clock)
    shown = stream.getvalue().split("\r")
    assert shown[1] == "symgrad: compiling loops, 2 of 3, 2 s"
    assert shown[2] == "symgrad: compiling loops, 3 of 3, 12 s"
    assert shown[3].strip() == "" and shown[-1] == ""


def test_nothing_where_there_is_no_terminal(clock):
    stream = io.StringIO()
    run(stream, clock)
    assert stream.getvalue() == ""

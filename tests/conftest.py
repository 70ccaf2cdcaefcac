"""Settings of the whole test suite: the `nightly` marker for what takes long."""

from __future__ import annotations


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes long; run with -m nightly")

"""Settings of the whole test suite: the `nightly` marker, off unless asked for with ``-m nightly``."""

from __future__ import annotations

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: thorough and slow; run with -m nightly")


def pytest_collection_modifyitems(config, items):
    if "nightly" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="nightly; run with -m nightly")
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(skip)

# make run    the example: reads data, prints a formula, compiles it, fits a model
# make test   linters, types, import directions, tests
# make bench  symgrad's own benchmarks next to NumPy
# Each makes .venv on first use; the stamp files in it say what was installed.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test bench clean

run: .venv/installed
	$(BIN)/python examples/gmm.py

test: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2

bench: .venv/installed
	$(BIN)/python -m symgrad bench

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(BIN)/python -m compileall -q symgrad
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

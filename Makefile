PYTHON ?= python3
BIN := .venv/bin

.PHONY: test check benchmarks clean

# Everything on a fresh machine: environment, linters, the built package, all tests.
test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 15

check: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Bytecode is left to the first import: of what the frameworks install, most is never imported.
.venv/ready: requirements-test.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-test.txt
	touch $@

benchmarks: check
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/cpu.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

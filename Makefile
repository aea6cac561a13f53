PYTHON ?= python3
BIN := .venv/bin

.PHONY: test check benchmarks clean

# Everything on a fresh machine: environment, linters, the built package, all tests.
test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready: requirements-test.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	touch $@

benchmarks: check
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/dispatch.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

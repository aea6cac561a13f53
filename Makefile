PYTHON ?= python3
BIN := .venv/bin

.PHONY: test check compiler browser docs benchmarks fuzz clean

# Everything on a fresh machine: environment, linters, the built package, all tests. Bytecode is written even where the environment forbids it,
# as in many containers: the tests start dozens of processes, and half the time of importing a framework is compiling its modules.
test: check browser
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 15

# What setuptools has built before would be installed with the rest, files that are no longer there among it.
check: .venv/ready compiler
	rm -rf build/lib* build/temp* build/bdist*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Comparisons have a kernel in C, which is tested; an installation does without.
compiler:
	@command -v cc >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev >/dev/null; \
	else echo "The tests need a C compiler: sudo apt-get install gcc libc6-dev, or put cc on the PATH" >&2; exit 1; fi

# Reports are tested in a real Chromium; playwright drives the system's.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else echo "The tests of reports need Chromium: sudo apt-get install chromium, or put chromium on the PATH" >&2; exit 1; fi

# Bytecode is left to the first import: of what the frameworks install, most is never imported.
.venv/ready: requirements-test.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-test.txt
	# Apart from the rest: TensorFlow and Triton in one process end it, since each brings its own LLVM.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/triton triton==3.9.0
	touch $@

# Every example of the documentation is run; a broken one, or a broken link, ends this.
docs: check
	$(BIN)/python -m pytest -q tests/test_docs_examples.py
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/site
	@echo "build/site/index.html"

benchmarks: check
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/estimators.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/dispatch.py

# Hostile inputs, generated for as long as asked, on all cores. Failures go to build/fuzz, each with the line that replays it.
MINUTES ?= 10
fuzz: check
	$(BIN)/python tests/hostile/fuzz.py --minutes $(MINUTES)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

PYTHON ?= python3
BIN := .venv/bin
# For example numpy,torch. Empty: every framework.
export KULLBACK_TEST_FRAMEWORKS
READY := .venv/ready$(addprefix -,$(KULLBACK_TEST_FRAMEWORKS))
# Bytecode is written even where the environment forbids it, as many containers do. The tests start dozens of processes, and
# compiling its modules is half the time it takes to import a framework. Two arenas keep glibc from holding memory for each thread that
# ever compiled something.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 MALLOC_ARENA_MAX=2 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: test check check-fast compiler browser docs benchmarks fuzz clean

# XLA optimises only in the first part, whose tests judge its arithmetic. Elsewhere it compiles in 40% of the time.
# The second part needs neither JAX nor TensorFlow in its own process. Memory is given back between the parts.
DATA := $(addprefix tests/,command compare foreign hostile kernels lint tables)
OTHERS := $(filter-out $(addprefix tests/,exactness gpu helpers scripts __pycache__) $(DATA),$(patsubst %/,%,$(wildcard tests/*/)))

# Everything on a fresh machine: environment, linters, the built package, all tests.
test: check browser
	failed=0; \
	$(PYTEST) --durations 15 tests/exactness || failed=1; \
	$(PYTEST) --durations 15 $(DATA) || failed=1; \
	$(PYTEST) --durations 15 --quick-xla $(OTHERS) || failed=1; \
	exit $$failed

# While working: linters, types, and the tests of NumPy and PyTorch that compile nothing.
check-fast: check
	KULLBACK_TEST_FRAMEWORKS=numpy,torch $(PYTEST) -m "not compiler"

# What setuptools has built before would be installed with the rest, files that are no longer there among it.
check: $(READY) compiler
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

# The sections of requirements-test.txt that were asked for. Bytecode is left to the first import, since most modules of the frameworks are
# never imported.
$(READY): requirements-test.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	awk -v chosen=",$(KULLBACK_TEST_FRAMEWORKS)," '/^# \[/ { name = substr($$2, 2, length($$2) - 2) } \
	  chosen == ",," || name == "" || name == "tools" || index(chosen, "," name ",")' $< > .venv/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r .venv/requirements.txt
	# Triton stays out of the environment: it brings its own LLVM, as TensorFlow does, and both in one process abort it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/triton triton==3.9.0
	touch $@

# Every example of the documentation is run; a broken one, or a broken link, ends this.
docs: check
	$(BIN)/python -m pytest -q tests/project/test_docs_examples.py
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/site
	@echo "build/site/index.html"

benchmarks: check
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/estimators.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/walks.py

# Hostile inputs, generated for as long as asked, on all cores. Failures go to build/fuzz, each with the line that replays it.
MINUTES ?= 10
fuzz: check
	$(BIN)/python tests/hostile/fuzz.py --minutes $(MINUTES)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

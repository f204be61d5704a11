# Everything a newcomer needs: `make run` and `make test` work on a machine with only
# python3, make and a network. Each group of packages is installed once, into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test tests test-slow coverage test-lowest test-python lint format bench docs notebooks numbers words clean

# Types and pages keep one core busy: the next target begins beside them.
MAKEFLAGS += --jobs=2

# `make run SEEDS=1` is the smallest there is.
run: $(VENV)/.run
	$(BIN)/pinfactory reproduce --scale quick --out out $(if $(SEEDS),--seeds $(SEEDS))

# The tests of a file stay with one worker: they share fixtures and compiled programs.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile

test: lint tests

tests: $(VENV)/.dev
	$(PYTEST)

# Most compile longer than they compute. Those that do not, and pages that show the digits of
# trainings, have the effort of the compiler that users have. The others often wait for
# processes they start, so that three of them fill two cores. The run-time checks of types and
# shapes, which take time in every call, are left to the fast tests.
SLOW := $(BIN)/pytest --jaxtyping-packages= --dist worksteal
OPTIMISED := --xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1

test-slow: $(VENV)/.dev
	$(SLOW) -n 3 -m 'slow and not optimised'
	XLA_FLAGS='$(OPTIMISED)' $(SLOW) -n 2 -m 'slow and optimised'

# Tracing every line takes a good part of the time of all tests.
coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term:skip-covered

# Other environments than .venv, each in a folder of its own: the oldest versions that
# pyproject.toml allows, and another Python: `make test-python PYTHON=python3.13`. With
# `TESTS=tests/persistence` only some of the tests; with `TESTS='--record results …'` their numbers
# become a result.
OTHER ?= .venv-$(notdir $(PYTHON))

test-lowest: OTHER = .venv-lowest
test-lowest:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet --upgrade pip
	$(OTHER)/bin/python tools/lowest_versions.py > $(OTHER)/constraints.txt
	$(OTHER)/bin/pip install --quiet -e '.[dev,rl,report]' -c $(OTHER)/constraints.txt
	$(OTHER)/bin/python tools/tested_versions.py -n 2 --dist loadfile $(TESTS)

test-python:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet --upgrade pip
	$(OTHER)/bin/pip install --quiet -e '.[dev,rl,report]'
	$(OTHER)/bin/python tools/tested_versions.py -n 2 --dist loadfile $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/pinfactory reproduce --kind benchmark --scale quick --out out
	$(BIN)/pinfactory results --out out

docs: $(VENV)/.dev
	$(BIN)/python tools/readme_results.py --check
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

# Which result each number of README and docs comes from, and which come from none.
numbers:
	$(PYTHON) tools/docs_numbers.py

# Words, executed blocks and pages without an example.
words: $(VENV)/.dev
	$(BIN)/python tools/docs_words.py --most 1200

# The pages of docs/notebooks as notebooks.
notebooks:
	$(PYTHON) tools/notebooks.py

clean:
	rm -rf $(VENV) .venv-* out docs/_build .mypy_cache .ruff_cache .pytest_cache .coverage*

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet -e '.[report,rl]'
	touch $@

# Each group needs the one before, so that no two are installed at the same time.
$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet -e '.[dev,docs,rl,report]'
	touch $@

# Benchmarks go without peers that cannot be installed, and say so. PyTorch is pinned to the release
# the comparisons were measured with.
$(VENV)/.bench: $(VENV)/.dev
	-$(BIN)/pip install --quiet torch==2.13.0
	-$(BIN)/pip install --quiet -e '.[baselines]'
	-$(BIN)/pip install --quiet -e '.[peers]'
	touch $@

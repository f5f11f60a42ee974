# userdp: `make demo` and `make test` do everything on a fresh clone. Benchmarks and the papers' figures:
# `python -m benchmarks.accounting | step | gpu | data | recipe`, `python -m papers`.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints-cpu.txt
# Two workers with one thread each: faster than one with two, and steadier on a busy machine.
PYTEST_FLAGS ?= -n 2
DEMO ?= runs/demo
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs

# Idle OpenMP threads that spin slow every other process on a busy machine several-fold.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export TOKENIZERS_PARALLELISM := true
export HF_HUB_OFFLINE ?= 1
# Else every process of the tests compiles the package anew, where an environment forbids keeping it.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format docs influence faults release-check clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install userdp with the CPU build of PyTorch

# What a user installs; developers need some 40 packages more, Flower among them, the slow tests Spark
# (456 MB), and the site 40 again. Python compiles a module when it is first imported: compiling all of
# torch and transformers takes longer. The pip of an older Python takes half as long again.
$(STAMP): EXTRAS := [dev]
$(DOCS): EXTRAS := [dev,docs,spark]
$(RUNTIME) $(STAMP) $(DOCS): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.$(EXTRAS)'
	touch $(RUNTIME) $@

demo: $(RUNTIME)  ## prepare, train by the preset, evaluate and report, in about a minute
	test ! -f $(DEMO)/demo.json || rm -r $(DEMO)  # an earlier demo
	$(BIN)/userdp demo --out $(DEMO)

# The linters run beside the tests, and say what they found behind them.
test: $(STAMP)  ## linters, type checker, import rules, and a fast test of every kind, in about five minutes
	@mkdir -p runs; $(MAKE) --no-print-directory lint > runs/lint.txt 2>&1 & lint=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" $(PYTEST_FLAGS); tests=$$?; \
	wait $$lint; linted=$$?; cat runs/lint.txt; exit $$((tests + linted))

test-slow: $(DOCS)  ## all other tests: kills, Spark, many processes, every model family, large random cases
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(PYTEST_FLAGS)

lint: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS)  ## the documentation site, in build/docs; warnings and dead links are errors
	$(BIN)/python -m sphinx -b html -E -W --keep-going -n -q -d build/doctrees docs build/docs

influence: $(STAMP)  ## by how much one user moves the sum: families, random cases, accidents (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gradients.campaign --page docs/results/engines.md

faults: $(STAMP)  ## plants faults one at a time; the tests of its invariant must notice each (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults

release-check: $(STAMP)  ## build wheel and sdist, install each into an empty environment, run the demo there
	$(BIN)/python scripts/check_release.py
	$(BIN)/python scripts/check_release.py --lowest

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

# userdp: `make demo` and `make test` do everything on a fresh clone.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints-cpu.txt
PYTEST_FLAGS ?=
DEMO ?= runs/demo
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Idle OpenMP threads that spin slow every other process on a busy machine several-fold.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export TOKENIZERS_PARALLELISM := true
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench-accounting clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install userdp with the CPU build of PyTorch

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

demo: $(STAMP)  ## prepare, plan, train ULS and ELS, evaluate and report, in about a minute
	$(BIN)/userdp demo --out $(DEMO) --overwrite

test: $(STAMP) lint  ## run linters, type checker, import rules and all tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-accounting: $(STAMP)  ## our accountant beside dp-accounting, in one run
	$(BIN)/python -m benchmarks.accounting

clean:  ## remove the virtual environment and what runs left
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

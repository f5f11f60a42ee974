# userdp: `make demo` and `make test` do everything on a fresh clone.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints-cpu.txt
# Two workers with one thread each: faster than one with two, and steadier on a busy machine.
PYTEST_FLAGS ?= -n 2
DEMO ?= runs/demo
BIN := $(VENV)/bin
# `make gpu` installs nothing: torch, transformers, peft, numpy, scipy and pyarrow are enough. What else
# it can use (opacus, cyclopts) may lie in a folder on PYTHONPATH. Parts: `make gpu GPU_FLAGS="--only reads"`.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed

# Idle OpenMP threads that spin slow every other process on a busy machine several-fold.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export TOKENIZERS_PARALLELISM := true
export HF_HUB_OFFLINE ?= 1
# Else every process of the tests compiles the package anew, where an environment forbids keeping it.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lives lint format selftest gpu docs linkcheck pictures fuzz audit-campaign bench-accounting accounting-campaign prove-accounting bench-data bench-step bench-distributed influence mutants mutants-drawn crash soak hostile many release-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install userdp with the CPU build of PyTorch

# What a user installs; developers need some 60 packages more, Spark and Flower among them. Python
# compiles a module when it is first imported: compiling all of torch and transformers takes longer.
$(RUNTIME): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable .
	touch $@

$(STAMP): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

demo: $(RUNTIME)  ## prepare, plan, train ULS and ELS, evaluate and report, in about two minutes
	$(BIN)/userdp demo --out $(DEMO) --overwrite

test: $(STAMP) lint  ## linters, type checker, import rules, and a fast test of every kind, in about nine minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" $(PYTEST_FLAGS)

test-slow: $(STAMP)  ## all other tests: kills, Spark, many processes, every model family, large random cases
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(PYTEST_FLAGS)

lives: $(STAMP)  ## 200 random lives of stores, whose every claim is held against what was paid (half an hour)
	USERDP_LIVES=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(PYTEST_FLAGS) tests/claims/test_lives.py

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

accounting-campaign: $(STAMP)  ## 100,000 random lines and 1,000 corners of the contour accountant; goes on where it stopped
	mkdir -p runs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.accounting lines --results runs/accounting-lines.jsonl
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.accounting corners --settings 1000 \
		--results runs/accounting-corners.jsonl

prove-accounting: $(STAMP)  ## enclose 300 random settings by ball arithmetic; goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.accounting prove --settings 300

bench-data: $(STAMP)  ## records to a user store: ours beside a naive grouping, and reading back
	$(BIN)/python -m benchmarks.data

bench-step: $(STAMP)  ## the clipped sum of a step beside plain training (12 minutes)
	$(BIN)/python -m benchmarks.step

bench-distributed: $(STAMP)  ## several processes beside one, and two passes beside one
	$(BIN)/python -m benchmarks.distributed --set run.sharded=true

# Anchors and files are checked by the build itself: a link that leads nowhere is a warning, and
# warnings are errors. Links to other sites need the network, and have a target of their own.
pictures: $(STAMP)  ## make the pictures in docs/images anew; wants Chromium, poppler-utils and pngquant
	$(BIN)/python scripts/pictures.py --work build/pictures

docs: $(STAMP)  ## the documentation site, in build/docs; warnings and dead links are errors
	$(BIN)/python -m sphinx -b html -E -W --keep-going -n -q -d build/doctrees docs build/docs

linkcheck: $(STAMP)  ## whether the documentation's links to other sites are alive (needs the network)
	$(BIN)/python -m sphinx -b linkcheck -q -d build/doctrees docs build/linkcheck

influence: $(STAMP)  ## by how much one user moves the sum: families, random cases, accidents (40 minutes); goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gradients.campaign --page docs/results/engines.md

mutants: $(STAMP)  ## plants faults one at a time; the tests of its invariant must notice each; goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults --page docs/results/reliability.md

mutants-drawn: $(STAMP)  ## 600 mutants drawn by a seed; the tests that run their lines must notice (hours); goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.drawn.covering
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.drawn --page docs/results/reliability.md

crash: $(STAMP)  ## kills every command at 500 moments, fails its disk, goes on, and checks what is left; goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.crashes --page docs/results/reliability.md

many: $(STAMP)  ## eight processes at once on one store for ten minutes: ledgers hold every charge, each claim is right
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.many --page docs/results/reliability.md

soak: $(STAMP)  ## 20,000 steps, 200 runs in a store, 10^6 users, a user of 10^6 records (PART=name); goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.soak $(PART) --page docs/results/reliability.md \
		--plot docs/images/soak.png

hostile: $(STAMP)  ## two hours of broken and hostile files for everything that reads files; goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.hostile --page docs/results/reliability.md \
		--results docs/results/reliability/hostile.jsonl

selftest: $(STAMP)  ## every check of the mechanism, for every engine, on this machine
	$(BIN)/userdp selftest

gpu:  ## all that wants a GPU, 8 minutes a call, then what is left: docs/results/gpu.json and gpu.md
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) -m benchmarks.gpu \
		--out docs/results/gpu.json $(GPU_FLAGS)

fuzz: $(STAMP)  ## 10,000 random inputs to `userdp prepare`, some killed; goes on where it stopped
	USERDP_FUZZ_INPUTS=$${USERDP_FUZZ_INPUTS:-10000} \
		$(BIN)/python -m pytest -m slow tests/data/test_fuzz_campaign.py -s $(PYTEST_FLAGS)

audit-campaign: $(STAMP)  ## 20 right runs and 3 broken ones, each audited; goes on where it stopped
	OMP_NUM_THREADS=1 USERDP_AUDIT_RUNS=$${USERDP_AUDIT_RUNS:-20} \
		$(BIN)/python -m pytest -m slow tests/auditing/test_audit_campaign.py -s

release-check: $(STAMP)  ## build wheel and sdist, install each into an empty environment, run the demo there
	$(BIN)/python scripts/check_release.py
	$(BIN)/python scripts/check_release.py --lowest

clean:  ## remove the virtual environment and what runs left
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Everything runs inside .venv, made once from the exact versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
# Neighbours stay together, so that what a file of tests shares is made once.
PARALLEL := -n $(WORKERS) --dist worksteal

# Nothing is assumed of HOME: what would be written there goes into the environment's own folder.
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/cache/matplotlib
export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/$(VENV)/cache/inductor
export NO_MKDOCS_2_WARNING := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Two workers on two cores: more threads each would only make them wait for one another.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install test test-all lint types layers docs size unit demo laws fuzz benchmark zoo gpu clean tutorials extras

help: ## Say what each target does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

install: $(STAMP) ## Make the virtual environment, once

# torch comes first and alone, so that the build which the pin names is the one taken;
# torchvision and timm without their dependencies, so that they cannot replace torch.
$(STAMP): constraints.txt pyproject.toml paper/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet hatchling editables
	$(PIP) install --quiet --no-build-isolation -e '.[cli,tensorboard,lightning,transformers,export,dev,bench]' -e ./paper
	$(PIP) install --quiet --no-deps torchvision==0.28.0 timm==1.0.30
	@$(BIN)/python -m benchmarks.torchvision_import
	mkdir -p $(MPLCONFIGDIR) $(TORCHINDUCTOR_CACHE_DIR)
	touch $@

test: $(STAMP) ## Checks and the fast tests: within 5 minutes on two quiet cores
	$(MAKE) --jobs=$(WORKERS) lint types layers docs size
	$(MAKE) unit

test-all: $(STAMP) ## What CI runs after them: slow tests, all random networks, the paper's tests
	$(BIN)/python -m pytest $(PARALLEL) -m "slow or hypothesis" tests paper/tests
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not hypothesis" paper/tests

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/basedpyright

layers: $(STAMP)
	$(BIN)/lint-imports

size: $(STAMP) ## Count lines of code by part; fail where one has grown
	$(BIN)/python -m benchmarks.size --check

docs: $(STAMP) ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

# Properties are tried on a tenth of their examples here, and on all of them by test-all.
unit: $(STAMP)
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest $(PARALLEL) -m "not slow"

# FILES: a folder with minilm, sst2 and resnet20.safetensors, which two of the pages need.
tutorials: $(STAMP) ## Run the code on the tutorial pages and write down what it prints
	$(BIN)/python -m benchmarks.tutorials $(FILES)

demo: $(STAMP) ## Learn a small network on real data and show the result
	$(BIN)/archlearn demo

laws: $(STAMP) ## Check every law on 10,000 random networks (hours)
	$(BIN)/python tests/laws/run_thorough.py --examples 10000 --workers $(WORKERS) --out results/laws.md

fuzz: $(STAMP) ## Read 100,000 mutated files and 1,000 hostile ones (minutes)
	$(BIN)/python -m benchmarks.fuzz_files --out results/fuzz.md

benchmark: $(STAMP) ## Run the benchmarks that need no GPU and print their tables
	$(BIN)/python -m benchmarks.step_cost
	$(BIN)/python -m benchmarks.torchvision_models

# Without their dependencies, so that none of them can replace torch.
zoo: $(STAMP) ## Compact 332 real models of other packages (hours): results/zoo.md, docs/support.md
	$(PIP) install --quiet --no-deps -r benchmarks/zoo/requirements.txt
	$(BIN)/python -m benchmarks.zoo --sides archlearn torch-pruning "torch-pruning heads" --jobs $(WORKERS) --out results/zoo.jsonl --matrix docs/support.md

# With the Python and the torch that are there: .venv has a torch without CUDA.
gpu: ## Learn and cut 530 networks on a GPU (minutes): results/gpu.md
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_sweep --jobs 14 --out results/gpu.jsonl --page results/gpu.md

extras: $(STAMP) ## Install the wheel with each extra into an empty environment (minutes)
	sh benchmarks/try_extras.sh $(PYTHON)

clean: ## Remove the environment and everything built
	rm -rf $(VENV) site .pytest_cache .ruff_cache .hypothesis .import_linter_cache

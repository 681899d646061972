# The two commands: `make train` (everything from nothing), `make test`.
# OPENFORGERL_CACHE (default ~/.cache/openforgerl) holds what is downloaded; PYTHON is the interpreter to build on.

SHELL := /bin/bash
PYTHON ?= python3
CONFIG ?= examples/shell_tasks/train.toml
BIN := .venv/bin

# Spinning OpenMP threads starve the harnesses and sandboxes that run beside the model.
export OMP_WAIT_POLICY ?= PASSIVE
export KMP_BLOCKTIME ?= 0

.PHONY: setup train test test-real check format lock clean

setup: ## packages, model, node and pi; a second run takes a second
	@$(PYTHON) scripts/setup.py

train: setup ## CONFIG=..., ARGS="--set harness.name=react", ARGS="--run runs/X --resume"
	$(BIN)/openforgerl train $(CONFIG) $(ARGS)

test: ## all that needs no big environment
	@$(PYTHON) scripts/setup.py --test
	$(BIN)/pytest -m "not real" -rsfE

test-real: ## what installs and runs big foreign programs; WITHOUT=vllm leaves out the largest
	@$(PYTHON) scripts/setup.py --real $(if $(WITHOUT),--without-$(WITHOUT))
	$(BIN)/pytest -m "real$(if $(WITHOUT), and not $(WITHOUT))" -rsfE

check: setup ## style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/architecture

format:
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: ## write requirements/dev.lock and the pins anew
	$(BIN)/python scripts/lock.py

clean: ## this clone's environment and caches; the shared cache stays
	rm -rf .venv .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

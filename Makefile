# hive: everything a developer types. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE ?=
# How many processes share the tests, each with stores of its own.
WORKERS ?= 2

.PHONY: help setup run test check bench chaos lock config clean

help: ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(VENV)/.ready ## make .venv with everything in it, from the lock file

$(VENV)/.ready: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "hive needs $(PYTHON); set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: setup ## set up and start hive with its own documentation as a first source
	@exec $(BIN)/hive run --demo

test: setup ## set up and run the whole suite (WORKERS=1 in one process)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: setup ## lint, strict types, import direction, config and docs drift
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m hive.config_file --check config.toml

config: setup ## write config.toml anew from the settings in code
	@$(BIN)/python -m hive.config_file --write config.toml

bench: setup ## measure hive (CASES=a,b QUICK=1)
	@$(BIN)/python tests/bench/run.py $(if $(CASES),--cases $(CASES)) $(if $(QUICK),--quick)

chaos: setup ## kill, freeze, cut and wipe while work runs, then count lost and doubled effects
	@$(BIN)/python tests/chaos/chaos.py $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(CARRIER),--carrier $(CARRIER)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(PEER),--peer $(PEER))

lock: setup ## resolve the dependencies anew into requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra embedded --extra dev --python-version 3.11 --universal \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --quiet \
	  --custom-compile-command "make lock" -o requirements.lock

clean: ## remove what the commands above made
	@rm -rf $(VENV) .hive .bench

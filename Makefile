# Every target sets up what it needs on a machine with Python >= 3.11 and make. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := build/models/SmolLM2-135M-Instruct
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format bench clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvferry needs Python 3.11 or newer, found " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -c 'import ensurepip' || { echo "this Python has no ensurepip: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --editable '.[operator,sidecar,engine,router,demo,dev]'
	@touch $@

$(MODEL)/config.json: | $(VENV)/.installed
	$(BIN)/kvferry-runtime model prepare smollm2 --output $(MODEL)

demo: $(VENV)/.installed  ## run the main job: one prefill, one decode, real model, KV carried by UCX (ARGS="--compression none")
	$(BIN)/kvferry demo $(ARGS)

lint: $(VENV)/.installed  ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint $(MODEL)/config.json  ## lint, then all tests: the fast ones first, then those with real engines
	$(BIN)/python -m pytest -m "not slow" $(ARGS)
	$(BIN)/python -m pytest -m slow $(ARGS)

test-fast: $(VENV)/.installed  ## only the tests that need no model
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

bench: $(VENV)/.installed  ## measure transfers and the router against limits of the same run, into build/bench/
	mkdir -p build/bench
	$(BIN)/kvferry-runtime bench transfer --json build/bench/transfer.jsonl $(ARGS)
	$(BIN)/kvferry-runtime bench router --json build/bench/router.jsonl

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

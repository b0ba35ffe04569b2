# What can be made here. Needs make, and Python 3.11 to 3.14 with pip and venv; the rest is installed into .venv.

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip --disable-pip-version-check install --quiet
PYTEST = $(BIN)/python -m pytest
# With a process for each core, threads of BLAS would only take each other's time: they wait by spinning.
# Bytecode is written whatever the environment says: hundreds of processes import the package.
SPREAD = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile

TORCH = 2.13.0
JAX = 0.10.2

# Kernels of the wheel: all, or few for a test of it.
KERNELS = all

.PHONY: help demo test test-all lint gpu-test test-interop kernels-wheel pages docs clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	    printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo ## multiply real data and a large product, check both, draw a picture
	$(BIN)/python demo/run.py

test: $(VENV)/.dev ## the tests that need little time, no GPU and neither PyTorch nor JAX, on all cores
	$(SPREAD) -m "not gpu and not slow" --ignore tests/gpu --ignore tests/interop

test-all: $(VENV)/.dev ## the slow tests too, and those for a GPU where there is one
	$(PYTEST)

gpu-test: $(VENV)/.dev ## the tests for a GPU; without one they fail
	GEMMULE_REQUIRE_GPU=1 $(PYTEST) -m gpu

test-interop: $(VENV)/.interop ## the tests with PyTorch and JAX, on the CPU
	$(SPREAD) tests/interop tests/docs/test_docs.py::test_code_blocks_run tests/examples

lint: $(VENV)/.dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

kernels-wheel: $(VENV)/.dev ## compile the kernels for Hopper GPUs into a wheel, on all cores
	PYTHONPATH=tools $(BIN)/python -m kernels_wheel . $(KERNELS)

pages: $(VENV)/.dev ## make the generated tables and plots of the documentation anew
	PYTHONPATH=tools $(BIN)/python -m pages .

docs: $(VENV)/.docs ## build the site of the documentation into build/site, with warnings as errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/site-cache docs build/site
	@echo "build/site/index.html"

clean: ## remove the environment, caches and everything that was built
	rm -rf $(VENV) build dist docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests demo -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is made once, and an extra installed again when pyproject.toml, or what an editable install copies, changes.
INSTALLED := pyproject.toml src/gemmule_command.py

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "make: $(PYTHON) was not found; install Python 3.11 to 3.14, or name one: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || { \
	    echo "make: $$($(PYTHON) --version) does not fit; gemmule needs Python 3.11 to 3.14:" \
	        "make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "make: $(PYTHON) has no venv; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo: $(INSTALLED) | $(VENV)/.made
	$(INSTALL) --editable '.[compiler,demo]'
	@touch $@

# Processes of the tests compile the modules that they import, side by side: pip would compile all, one after the other.
$(VENV)/.dev: $(INSTALLED) | $(VENV)/.made
	$(INSTALL) --no-compile --editable '.[compiler,dev]'
	@touch $@

$(VENV)/.interop: $(VENV)/.dev
	$(INSTALL) 'torch==$(TORCH)' 'jax==$(JAX)'
	@touch $@

# Gemmule itself stays as it is installed.
$(VENV)/.docs: $(VENV)/.interop
	$(INSTALL) $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

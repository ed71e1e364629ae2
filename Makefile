# Every target makes the environment it needs: a fresh machine wants only Python >= 3.10, pip and make.
# ARGS goes to the command a target ends in, as in: make pytest ARGS="-k sampler -x"

PYTHON ?= python3
ARGS ?=

VENV := .venv
BARE := .venv-bare
TRAINERS := .venv-integrations
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c constraints.txt -e

define CHECK_PYTHON
@found="$$($(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 10))')" || { \
	echo "headrace needs Python 3.10 or newer, found $${found:-none that runs} as '$(PYTHON)'; set PYTHON=/path/to/python" >&2; exit 1; }
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test pytest test-ray test-bare test-integrations test-pythons hunt lint types format bench chaos docs release-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## Train a small model on text, kill a worker, resume; writes demo-output/
	$(VENV)/bin/headrace demo $(ARGS)

test: lint types pytest test-ray test-bare ## Run everything CI runs: lint, types, all tests, with and without torch

pytest: $(VENV)/.installed-dev ## Run the tests with torch and JAX installed
	$(VENV)/bin/python -m pytest -n 4 --ignore=tests/ray $(ARGS)

# One cluster of three small nodes serves all of these tests, so they run in one process.
test-ray: $(VENV)/.installed-dev ## Run the tests of workers on a Ray cluster, which is started for them
	$(VENV)/bin/python -m pytest tests/ray -n 0 $(ARGS)

# Orders, and what becomes of workers that fail, are the same with and without torch: tested once.
test-bare: $(BARE)/.installed ## Run the tests with neither torch nor JAX
	$(BARE)/bin/python -m pytest -n 4 --ignore=tests/order --ignore=tests/failures --ignore=tests/ray $(ARGS)

test-pythons: ## Run the torch-free tests on every CPython >= 3.10 of this machine
	$(CHECK_PYTHON)
	$(PYTHON) tools/test_pythons.py $(ARGS)

# Trainers pin what they need: they have an environment of their own. A file of tests starts its trainer once, for all of
# them; trainers warn of many things, in the pages of the documentation too.
test-integrations: $(TRAINERS)/.installed ## Run the tests with real trainers: Lightning, Accelerate, Ray Train and others
	$(TRAINERS)/bin/python -m pytest tests/integrations -n 2 --dist loadfile --timeout 600 $(ARGS)
	$(TRAINERS)/bin/python -m pytest tests/test_docs.py -k "test_code_runs and trainers" -n 2 --timeout 600 -W ignore

hunt: $(VENV)/.installed-dev ## Run the property tests with new random examples
	HEADRACE_EXAMPLES=hunt $(VENV)/bin/python -m pytest -n 4 -m hypothesis $(ARGS)

lint: $(VENV)/.installed-dev ## Check code and format with ruff
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/.installed-dev ## Check types with mypy
	$(VENV)/bin/mypy

format: $(VENV)/.installed-dev ## Fix what ruff can fix, and format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(VENV)/.installed-dev ## Run the benchmarks
	$(VENV)/bin/python -m benchmarks $(ARGS)

chaos: $(VENV)/.installed-dev ## Disturb, stop, resume and mislead random loaders for ten minutes, and compare all batches
	$(VENV)/bin/python -m tools.chaos $(ARGS)

docs: $(VENV)/.installed-dev ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

release-check: $(VENV)/.installed-dev ## Build the packages, install them into empty environments, list what a release still needs
	$(VENV)/bin/python tools/release_check.py $(ARGS)

clean: ## Remove environments, caches and build output
	rm -rf .venv* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from; a failed installation leaves none.
$(VENV)/bin/python $(BARE)/bin/python $(TRAINERS)/bin/python:
	$(CHECK_PYTHON)
	@echo "Creating $(@:/bin/python=)"
	@$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing headrace and torch into $(VENV) (a minute or two the first time)"
	@$(VENV)/bin/python $(PIP_INSTALL) '.[cli,plot,torch]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing headrace, torch, JAX and the development tools into $(VENV) (a few minutes the first time)"
	@$(VENV)/bin/python $(PIP_INSTALL) '.[torch,jax,dev]'
	@touch $@ $(VENV)/.installed-demo

$(BARE)/.installed: pyproject.toml constraints.txt | $(BARE)/bin/python
	@echo "Installing headrace without torch and JAX into $(BARE)"
	@$(BARE)/bin/python $(PIP_INSTALL) '.[test]'
	@touch $@

$(TRAINERS)/.installed: pyproject.toml constraints.txt $(wildcard tests/integrations/*.txt) | $(TRAINERS)/bin/python
	@echo "Installing headrace and the trainers into $(TRAINERS)"
	@$(TRAINERS)/bin/python $(PIP_INSTALL) '.[torch,test]'
	@$(TRAINERS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -r tests/integrations/constraints.txt
	@$(TRAINERS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r tests/integrations/without-dependencies.txt
	@touch $@

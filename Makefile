# Everything a newcomer needs; each target sets up what is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two stamps: all that work and tests need, and just what `make run` runs.
READY := $(VENV)/.ready
GATEWAY := $(VENV)/.gateway
LOWEST := .venv-lowest
# Diana is installed again when the C part changes: that is when it is compiled.
BUILT_FROM := pyproject.toml .ci/install $(wildcard setup.py native/*.[ch])
# Without a compiler Diana counts in Python, and what else needs one is left out.
COMPILED = $(shell command -v cc >/dev/null && echo --group compiled)
# How many processes run tests at once; each has servers and ports of its own. Six, on two processors too: many tests wait for something.
WORKERS ?= 6
# Where a test is marked so: to look for them in all files takes longer than some of them do.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
# Tests start hundreds of Pythons: what one of them has compiled the next need not, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
# The site's builder has an environment of its own: nothing of it is needed for work or tests.
SITE := build/site-venv

# What meets other packages; `make test` runs it against the newest of them, `make lowest` against the lowest.
INTEGRATION := tests/web tests/gateway tests/telemetry tests/cli

.DEFAULT_GOAL := help
.PHONY: help setup run test lowest shake soak fuzz import-diff lint bench docs site clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 12

setup: $(READY)  ## create .venv and install Diana with all it needs for work and tests

run: $(GATEWAY)  ## run the gateway in front of a small sample service
	$(BIN)/diana gateway --sample --rules examples/diana.yaml

test: $(READY) lint  ## lint, type-check and run all tests
	./.ci/install servers
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone $(ALONE)

lowest: $(LOWEST)/.ready  ## run the integration tests against the lowest versions that pyproject.toml allows
	./.ci/install servers
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not alone" $(INTEGRATION)

shake: $(READY)  ## run all tests again and again on a machine that misbehaves; ARGS="--seconds 600 tests/gateway" chooses
	./.ci/install servers
	$(BIN)/python -m tests.shake $(or $(ARGS),-n 4)

soak: $(READY)  ## random faults under load with exact accounting; ARGS="--minutes 15 --seed 7"
	./.ci/install servers
	$(BIN)/python -m tests.soak $(ARGS)

fuzz: $(READY)  ## the same random histories on all back ends, every decision compared; ARGS="--minutes 30 --seed 7"
	./.ci/install servers
	$(BIN)/python -m tests.fuzz $(ARGS)

import-diff: $(READY)  ## the real nginx beside the rules that are imported from 1,000 random configurations; ARGS="--count 100 --seed 7"
	./.ci/install servers
	$(BIN)/python -m tests.nginx.import_diff $(ARGS)

lint: $(READY)  ## ruff, format check, mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure; ARGS="local --quick" picks and hurries
	-./.ci/install bench
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)  ## run every example of README and docs/, check every link
	$(BIN)/python -m pytest tests/project/test_docs.py

site: $(SITE)/.ready  ## build the documentation as a web site with a search, into site/; a broken link is an error
	$(SITE)/bin/python .ci/site.py
	@echo 'Read it with: python3 -m http.server --directory site'

clean:  ## remove what was made
	rm -rf $(VENV) $(LOWEST) build dist site src/*.egg-info src/diana/_native*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(BUILT_FROM)
	@echo "installing Diana and all that work and tests need into $(VENV); this takes minutes"
	./.ci/install python
	-./.ci/install compiler
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev --group bench $(COMPILED)
	@touch $@ $(GATEWAY)

$(GATEWAY): $(BUILT_FROM)
	@echo "installing Diana's gateway into $(VENV); what work and tests need comes with make setup"
	./.ci/install python
	-./.ci/install compiler
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[gateway]'
	@touch $@

$(LOWEST)/.ready: $(BUILT_FROM) .ci/lowest
	@echo "installing the lowest versions that pyproject.toml allows into $(LOWEST); this takes minutes"
	./.ci/install python
	-./.ci/install compiler
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PYTHON) .ci/lowest > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --editable '.[all]' --group dev $(COMPILED) --constraint $(LOWEST)/lowest.txt
	@touch $@

$(SITE)/.ready: pyproject.toml
	./.ci/install python
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SITE)/bin/python -m pip install --quiet --group site
	@touch $@

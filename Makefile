# Everything a newcomer needs; each target sets up what is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# How many processes run tests at once; each has servers and ports of its own.
WORKERS ?= 2
# The site's builder has an environment of its own: nothing of it is needed for work or tests.
SITE := build/site-venv

.DEFAULT_GOAL := help
.PHONY: help setup run test shake soak lint bench docs site clean

help:  ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 12

setup: $(READY)  ## create .venv and install Diana with all it needs for work and tests

run: $(READY)  ## run the gateway in front of a small sample service
	$(BIN)/diana gateway --sample --rules examples/diana.yaml

test: $(READY) lint  ## lint, type-check and run all tests
	./.ci/install servers
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

shake: $(READY)  ## run tests again and again on a machine that misbehaves; ARGS="--seconds 600 tests/gateway" chooses
	./.ci/install servers
	$(BIN)/python -m tests.shake $(ARGS)

soak: $(READY)  ## random faults under load with exact accounting; ARGS="--minutes 15 --seed 7"
	./.ci/install servers
	$(BIN)/python -m tests.soak $(ARGS)

lint: $(READY)  ## ruff, format check, mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure; ARGS="local --quick" picks and hurries
	-./.ci/install bench
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)  ## run every example of README and docs/, check every link
	$(BIN)/python -m pytest tests/test_docs.py

site: $(SITE)/.ready  ## build the documentation as a web site with a search, into site/; a broken link is an error
	$(SITE)/bin/python .ci/site.py
	@echo 'Read it with: python3 -m http.server --directory site'

clean:  ## remove what was made
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/install
	./.ci/install python
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev --group bench
	@touch $@

$(SITE)/.ready: pyproject.toml
	./.ci/install python
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SITE)/bin/python -m pip install --quiet --group site
	@touch $@

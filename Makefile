.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types test-unit test-browser screenshots test-integration chaos soak bench clean \
  docs references recording manifests dist sbom vulnerabilities matrix

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3
MINUTES ?= 10
RATE ?= 2000

help: ## explain the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BIN)/.ready ## make the virtual environment with everything that tests and demo need

$(BIN)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable '.[demo,compression,speed,aws,otel]' --group test --group lint --group docs
	touch $@

demo: setup ## see the relay at work on embedded servers: a rollback, an outage, a crash
	$(BIN)/cdc-outbox demo

# Tests of browser and servers mostly wait, so three workers keep two cores busy; lint, types and units need a core each.
SPREAD = -n $(WORKERS) --dist loadgroup
TOGETHER = --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync)

test: setup $(BIN)/.servers ## everything that CI checks, on real servers
	$(MAKE) $(TOGETHER) lint types test-unit
	$(BIN)/pytest tests/browser tests/integration $(SPREAD)
	$(BIN)/pytest tests/chaos

lint: setup ## style, formatting, and the walls between the rooms
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: setup ## the strict type checker
	$(BIN)/mypy

test-unit: setup ## unit and property tests: a minute, no servers
	$(BIN)/pytest tests/unit tests/property

test-browser: setup ## the status page in a real browser (Chromium and its driver)
	$(BIN)/pytest tests/browser

screenshots: setup ## photograph the status page for docs/images/
	$(BIN)/python -m tests.browser.screenshots

manifests: ## make what Kubernetes gets from what Prometheus gets: the alerts
	$(PYTHON) docker/kubernetes/monitoring/prometheusrule.py

$(BIN)/.servers: $(BIN)/.ready
	$(BIN)/python -m tests.servers
	touch $@

test-integration: setup $(BIN)/.servers ## against real PostgreSQL 15 to 18 and Kafka 4
	$(BIN)/pytest tests/integration $(SPREAD)

docs: setup ## the site, into .cache/site: links checked, nothing loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

recording: setup ## record the demo into docs/images/demo.svg
	$(BIN)/python -m tests.documents.recording

references: setup ## write docs/reference/{cli,settings,errors}.md and the manual page from the code
	$(BIN)/python -m tests.documents

dist: setup ## wheel and sdist into dist/, the same bytes wherever they are built
	rm -rf dist
	$(BIN)/hatchling build

$(BIN)/.release: $(BIN)/.ready
	$(PYTHON) -m venv --clear .cache/release
	.cache/release/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.cache/release/bin/python -m pip install --quiet --group release
	touch $@

sbom: dist $(BIN)/.release ## a bill of materials (CycloneDX) of the wheel with its extras, into dist/
	$(PYTHON) -m venv --clear .cache/installed
	.cache/installed/bin/python -m pip install --quiet "$$(echo dist/*.whl)[demo,compression,speed,aws,otel]"
	.cache/installed/bin/python -m pip uninstall --quiet --yes pip setuptools
	.cache/release/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --output-format JSON --output-file dist/cdc-outbox.cdx.json .cache/installed/bin/python
	$(BIN)/python -c 'import json, cdc_outbox; name = "dist/cdc-outbox.cdx.json"; bill = json.load(open(name)); \
	  bill["metadata"]["component"]["version"] = cdc_outbox.__version__; \
	  json.dump(bill, open(name, "w"), indent=2)'

vulnerabilities: setup ## known ones in all that is installed, from PyPI's database, which has to be reached
	$(BIN)/python -m tests.vulnerabilities

matrix: setup $(BIN)/.servers $(BIN)/.release ## each Python from 3.11 to 3.14 that can be had, lowest and newest dependencies, Kafka 3.9 beside 4
	$(BIN)/python -m tests.matrix

chaos: setup $(BIN)/.servers ## a minute of kills, freezes and cuts under load
	$(BIN)/pytest tests/chaos

soak: setup $(BIN)/.servers ## MINUTES (10) at RATE (2000) events/s with a kill -9 every 20 s
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) --rate $(RATE)

bench: setup $(BIN)/.servers ## drain, latency, CPU and memory, as ratios to a raw reader, pg_recvlogical and a polling relay
	$(BIN)/python -m tests.benchmarks

clean: ## remove the virtual environment and the servers that the tests installed
	rm -rf $(VENV) .cache

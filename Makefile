# Everything starts here. `make help` lists the targets; each sets up what it needs by itself.

PYTHON ?= python3.11
VENV   := .venv
PROCESSES ?= 4
STAMP  := $(VENV)/.stamp
BIN    := $(VENV)/bin
PAGES  := $(wildcard *.md docs/*.md docs/*/*.md)

# Python keeps the bytecode of what it imports: the tests start a thousand processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench docs check lock crash visibility races soak peer clean java

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: $(STAMP) java ## flights into a table and its log, a crash, a recovery; under two minutes
	@$(BIN)/python examples/flights.py

test: $(STAMP) java lint types ## everything that CI checks
	@$(BIN)/tablestore prepare >/dev/null # the tests start Spark 27 times
	@$(BIN)/python -m pytest -q --numprocesses $(PROCESSES)

check: test docs ## everything before a commit: test and docs

lint: $(STAMP) ## style, layers, structure, spelling
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/lint-imports --no-cache >$(VENV)/layers.log 2>&1 || { cat $(VENV)/layers.log; exit 1; }
	@$(BIN)/python tests/harness/check_structure.py
	@$(BIN)/codespell

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy --no-error-summary

bench: $(STAMP) java ## the side-by-side measurements, small
	@$(BIN)/python -m benchmarks --small

crash: $(STAMP) java ## the crash matrix; replay by SEED=..., part of it by ONLY=... or EVERY=...
	@$(BIN)/python -m tests.crash.matrix.run $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(if $(EVERY),--every $(EVERY))

visibility: $(STAMP) java ## who sees what when, while small snapshots are written; COMMITS=... of them
	@$(BIN)/python -m tests.crash.visibility $(if $(COMMITS),--commits $(COMMITS))

races: $(STAMP) java ## several writers on one table, for speed, then with kills, readers and compaction
	@$(BIN)/python -m tests.crash.races

soak: $(STAMP) java ## brokers killed and partitions moved beside writers, then beside streams and sinks, publishers stopped, retention in the way, random SQL queries, for SECONDS=... each; SEED=... ONLY=... FIRST=...
	@$(BIN)/python -m tests.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(FIRST),--first $(FIRST))

peer: $(STAMP) java ## the crash points against Delta's sink and a plain producer in foreachBatch
	@$(BIN)/python -m tests.crash.peers

docs: $(STAMP) ## the documentation site in build/site; a link that leads nowhere is an error
	@$(BIN)/python tests/harness/check_links.py $(PAGES)
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html -d build/doctrees docs build/site
	@echo "The site is in build/site/index.html."

lock: ## resolve the dependencies anew into requirements.lock, and the jars' digests into log_system/jars.sha256
	@test -x $(BIN)/pip-compile || $(MAKE) --no-print-directory $(STAMP)
	@env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL CUSTOM_COMPILE_COMMAND="make lock" \
	  $(BIN)/pip-compile --quiet --upgrade --extra demo --extra dev --extra docs --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml
	@$(BIN)/python -m tablestore.jar_digests
	@echo "requirements.lock and log_system/jars.sha256 are up to date."

clean: ## remove what the targets made
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
	  spark-warehouse metastore_db derby.log demo-output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is not on the PATH."; \
	  echo "  Debian, Ubuntu:  apt-get install python3.11 python3.11-venv"; \
	  echo "  macOS:           brew install python@3.11"; \
	  echo "Another name or version:  make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) from requirements.lock (about a minute, once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@{ $(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock && \
	   $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	 } >$(VENV)/setup.log 2>&1 || { tail -20 $(VENV)/setup.log; echo "Setting up failed; all of it: $(VENV)/setup.log"; exit 1; }
	@touch $@
	@echo "Ready."

# Spark and Kafka run on Java; better to say so now than in the middle of a test.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found=$$("$$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -1); \
	test "$${found:-0}" -ge 17 || { \
	  echo "Java 17 or newer is needed; found: $${found:-none}."; \
	  echo "  Debian, Ubuntu:  apt-get install openjdk-17-jre-headless"; \
	  echo "  macOS:           brew install openjdk@17"; \
	  echo "If it is installed elsewhere, set JAVA_HOME to its folder."; exit 1; }

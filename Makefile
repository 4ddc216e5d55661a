# Everything a checkout can do. Each target makes the environment by itself when it is missing or older than the lock.
#
#   make demo     the main job, end to end; ends in `demo: OK`     (DAYS=365 for the whole year, METADATA=etcd)
#   make pipeline Spark's streams over the same flights; ends in `pipeline: OK`   (DAYS=31)
#   make check    format, lint, generated code, types, layers, tests
#   make help     the rest

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
# `check` means its steps in this order, whatever -j says: two cores are better spent inside a step than between them.
.NOTPARALLEL:
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.complete
# The folders that ruff formats and lints; generated code is excluded in pyproject.toml.
SOURCES := broker dispatch storage txn tidewire pyspark_tidewire examples tests scripts
# Days of flights that the demo streams.
DAYS ?= 31
# Where the demo's broker keeps its metadata: embedded, or etcd to install and start one for it.
METADATA ?= embedded
# Further arguments for pytest (check, interop, thorough-..., coverage) and for the broker (run).
ARGS ?=

.PHONY: help env java demo pipeline run check format-check lint generated types layers tests interop \
	thorough thorough-examples thorough-kills coverage format against-pulsar wheel generate bench attack docs lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

env: $(STAMP) ## make .venv from requirements.lock
	@echo "env: OK"

$(STAMP): requirements.lock pyproject.toml scripts/environment.sh
	@scripts/environment.sh .venv
	@touch $@

java:
	@scripts/java.sh

demo: java $(STAMP) ## stream flights in transactions, split, kill, restart, read with Spark (DAYS=31)
	@if [[ $(METADATA) == etcd ]]; then $(BIN)/python scripts/need.py etcd; fi
	@$(BIN)/tidewire demo --days $(DAYS) --metadata $(METADATA) $(ARGS)

# The demo's default is a month; a job of several streams gets two weeks, unless DAYS is given.
pipeline: java $(STAMP) ## flights through Spark's streams and back, killed on the way, compared, and a page of it (DAYS=14)
	@$(BIN)/python -m examples.flights.run --days $(if $(filter file,$(origin DAYS)),14,$(DAYS)) $(ARGS)

run: $(STAMP) ## start a broker in ./data (ARGS="--http 127.0.0.1:0")
	@$(BIN)/tidewire broker $(ARGS)

check: java $(STAMP) format-check lint generated types layers tests ## all that must pass before a change lands
	@echo "check: OK"

format-check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)

generated: $(STAMP)
	$(BIN)/python scripts/generate.py --check

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports
	$(BIN)/python scripts/import_graph.py --check

# The judge of histories, compiled once, and the etcd that one of the metadata stores is on: asking again takes no time.
tests: $(STAMP)
	$(BIN)/python scripts/need.py porcupine etcd
	$(BIN)/python -m pytest -m "not interop and not thorough" --durations=10 -rsfE $(ARGS)

interop: java $(STAMP) ## tests with other systems' clients: Java, Spark, and what the README shows
	$(BIN)/python scripts/need.py pulsar-java-client
	$(BIN)/python -m pytest -m interop --timeout=600 --durations=10 -rsfE $(ARGS)

thorough: thorough-examples thorough-kills ## both of the next two, one after the other
	@echo "thorough: OK"

thorough-examples: java $(STAMP) ## the tests with drawn examples and schedules, with many more of them
	$(BIN)/python scripts/need.py porcupine etcd
	$(BIN)/python -m pytest -m "(hypothesis or thorough) and not interop and not kills" --hypothesis-profile=thorough \
		--timeout=3600 --durations=10 -rsfE $(ARGS)

thorough-kills: java $(STAMP) ## brokers, metadata stores and Spark jobs, each killed by the hundred
	$(BIN)/python scripts/need.py porcupine etcd
	$(BIN)/python -m pytest -m kills --timeout=7200 --durations=10 -rsfE $(ARGS)

against-pulsar: java $(STAMP) ## the Python client's tests against a real Apache Pulsar 5.0.0-M1
	@scripts/against_pulsar.sh $(ARGS)

coverage: java $(STAMP) ## which lines and branches `make check` reaches
	$(BIN)/python scripts/need.py porcupine etcd
	$(BIN)/coverage run -m pytest -m "not interop and not thorough" $(ARGS)
	$(BIN)/coverage report --show-missing --skip-covered --skip-empty

format: $(STAMP) ## rewrite the sources as ruff wants them
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

wheel: $(STAMP) ## build the wheel and try it in a clean environment
	@scripts/check_wheel.sh

generate: $(STAMP) ## rebuild generated code from its sources
	$(BIN)/python scripts/generate.py

bench: java $(STAMP) ## every scripts/bench_*.py, one after another
	@for bench in scripts/bench_*.py; do \
		echo "== $$bench"; \
		$(BIN)/python "$$bench"; \
	done

# Minutes that all attacks take together.
MINUTES ?= 2
attack: $(STAMP) ## attack a broker and hold it to its word (MINUTES=30, ARGS="--seed 7 --only wire")
	$(BIN)/python scripts/attack.py --minutes $(MINUTES) $(ARGS)

# Any warning fails it: a broken link, a missing page, an unknown anchor. It needs no network.
docs: $(STAMP) ## build the documentation into dist/site
	$(BIN)/python scripts/docs_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: OK, open dist/site/index.html"

lock: $(STAMP) ## bring requirements.lock up to pyproject.toml (ARGS=--upgrade: and to the newest versions)
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --generate-hashes --no-header \
		--quiet --output-file requirements.lock $(ARGS)

clean: ## remove what make made, but neither downloads (.cache) nor data
	rm -rf .venv dist build tests/interop/*/target .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

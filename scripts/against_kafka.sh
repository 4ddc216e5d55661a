#!/usr/bin/env bash
# The scenarios of Kafka's clients, the very tests that run against Tidewire, against a real Apache Kafka 4.3.0 from
# Maven: scripts/against_kafka.sh [PYTEST ARGUMENT...]
#
# What may fail there is listed with its cause in tests/interop/kafka/kafka_differences.py: Kafka answers before the
# change is visible, so a fast client sees the state before it. docs/compatibility.md tells about them.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
"$python" scripts/need.py maven:org.apache.kafka:kafka_2.13:4.3.0 maven:org.apache.kafka:kafka-tools:4.3.0 \
    kafka-java-4.3 kafka-java-3.9 debian:kcat \
    spark:4.0.5 maven:org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0
"$python" -m pytest tests/interop/kafka --kafka-broker kafka --timeout=300 --durations=10 -rxX "$@"
echo "against_kafka: OK"

#!/usr/bin/env bash
# The suite of the client tidewire.client, the very tests that run against Tidewire, against a real Apache Pulsar
# 5.0.0-M1 from Maven: scripts/against_pulsar.sh [PYTEST ARGUMENT...]
#
# What fails there is listed with its cause in tests/scenarios/client/pulsar_differences.py and must fail: a test that is
# listed and passes is an error too. docs/python-against-pulsar.md tells about them.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
"$python" scripts/need.py maven:org.apache.pulsar:pulsar-broker:5.0.0-M1 pulsar-java-client
# A test may wait for one of Pulsar's grace periods, of a minute.
"$python" -m pytest tests/scenarios/client --against pulsar --timeout=300 --durations=10 -rxX "$@"
echo "against_pulsar: OK"

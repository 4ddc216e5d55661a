#!/usr/bin/env bash
# Says in one sentence what is wrong when there is no Java 17 or newer; Spark and the Java clients run on it.
set -euo pipefail

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
if ! version=$("$java" -version 2>&1); then
    echo "Tidewire needs Java 17 or newer for Spark, and $java does not run: install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME." >&2
    exit 1
fi
# The first line ends in the quoted version: "17.0.15", or "1.8.0_402" for the old way of counting.
major=$(sed -nE '1,3s/.* version "([0-9]+).*/\1/p' <<<"$version")
if ((${major:-0} < 17)); then
    echo "Tidewire needs Java 17 or newer for Spark, and $java is version ${major:-unknown}: install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME." >&2
    exit 1
fi

"""Install what tests need and the Python environment does not have, by name: scripts/need.py NAME...

    pulsar-java-client        the Java v5 client and the scenarios in tests/interop/java-v5, compiled
    kafka-java-4.3            Kafka's Java client 4.3 and the program in tests/interop/java-kafka, compiled
    kafka-java-3.9            the same with the client 3.9
    porcupine                 the checker of histories in tests/linearizability/judge, compiled
    etcd                      the command etcd
    maven:GROUP:ARTIFACT:VERSION   this artifact with its run-time dependencies
    jar:GROUP:ARTIFACT:VERSION     this artifact alone
    debian:PACKAGE            this Debian package
    python:PACKAGE==VERSION   this Python package in an environment of its own, for what does not fit beside the others
    spark:VERSION             this version of pyspark and what Tidewire needs beside it, in an environment of its own

Tests and fixtures never install anything: they call `place(name)` to find it. What is installed is left unchanged, so a
second call takes no time. Maven and Go download into their usual local repositories. Build results go to .cache/ or to
the module's own target/. Debian packages (including Maven, the JDK and Go) are installed if this runs as root.
Otherwise a message says which command to run.
"""

import argparse
import fcntl
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.need_kinds import (
    JDK,
    MAVEN,
    Command,
    DebianPackage,
    GoModule,
    MavenArtifact,
    MavenJar,
    MavenModule,
    Need,
    NeedError,
    PythonPackage,
    SparkEnvironment,
)

ROOT: Final = Path(__file__).resolve().parent.parent

_COORDINATES = re.compile(r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)", re.ASCII)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_PYTHON_PACKAGE = re.compile(r"(?P<package>[\w.-]+)==(?P<version>[\w.]+)", re.ASCII)
_SPARK_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)

_JAVA_KAFKA: Final = ROOT / "tests" / "interop" / "java-kafka"

NAMED: Final[dict[str, Need]] = {
    "pulsar-java-client": MavenModule(ROOT / "tests" / "interop" / "java-v5"),
    "kafka-java-4.3": MavenModule(_JAVA_KAFKA, "kafka.version", "4.3.0"),
    "kafka-java-3.9": MavenModule(_JAVA_KAFKA, "kafka.version", "3.9.1"),
    "porcupine": GoModule(ROOT / "tests" / "linearizability" / "judge"),
    "etcd": Command("etcd", "etcd-server"),
    "maven": MAVEN,
    "jdk": JDK,
}


def need_of(name: str) -> Need:
    """Return what a name stands for.

    Raises:
        NeedError: the name is unknown or malformed.
    """
    if name in NAMED:
        return NAMED[name]
    kind, _, rest = name.partition(":")
    if kind == "maven" and (match := _COORDINATES.fullmatch(rest)):
        return MavenArtifact(match["group"], match["artifact"], match["version"])
    if kind == "jar" and (match := _COORDINATES.fullmatch(rest)):
        return MavenJar(match["group"], match["artifact"], match["version"])
    if kind == "debian" and _PACKAGE.fullmatch(rest):
        return DebianPackage(rest)
    if kind == "python" and (match := _PYTHON_PACKAGE.fullmatch(rest)):
        return PythonPackage(match["package"], match["version"])
    if kind == "spark" and _SPARK_VERSION.fullmatch(rest):
        return SparkEnvironment(rest)
    known = ", ".join(NAMED)
    coordinates = "GROUP:ARTIFACT:VERSION"
    raise NeedError(
        f"{name} is unknown. Known are {known}, maven:{coordinates}, jar:{coordinates}, debian:PACKAGE, "
        "python:PACKAGE==VERSION and spark:VERSION."
    )


def place(name: str) -> Path:
    """Return the place of something that is installed; for fixtures.

    Raises:
        NeedError: it is not installed; the message has the command that installs it.
    """
    found = need_of(name).present()
    if found is None:
        raise NeedError(f"{name} is not installed. Run .venv/bin/python scripts/need.py {name}")
    return found


def install(name: str) -> Path:
    """Return the place of something, and install it first if it is missing.

    Raises:
        NeedError: it cannot be installed.
    """
    need = need_of(name)
    found = need.present()
    if found is not None:
        return found
    print(f"installing {name}", file=sys.stderr, flush=True)
    need.install()
    found = need.present()
    if found is None:
        raise NeedError(f"{name} is still missing after its installation.")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Install what is named. Return the exit status."""
    parser = argparse.ArgumentParser(description="Install by name what a test needs.")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(NAMED)}, or see the file's beginning")
    options = parser.parse_args(arguments)
    try:
        with _one_at_a_time():
            for name in options.names:
                print(f"{name}: {install(name)}")
    except NeedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "need.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The lock is released when the file is closed, in any case.
        yield


if __name__ == "__main__":
    sys.exit(main())

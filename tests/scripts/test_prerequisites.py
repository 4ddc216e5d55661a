"""The shell scripts that make and .ci/run start with report a missing prerequisite in one sentence."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(script: str, **environment: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines on standard error, with the ordinary commands and the given ones."""
    done = subprocess.run(
        ["/bin/bash", str(ROOT / script)],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.fixture
def java_home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path


def pretend_java(java_home: Path, script: str) -> None:
    java = java_home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_17_or_newer_will_do(java_home: Path, version: str) -> None:
    pretend_java(java_home, f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")
    assert run("scripts/java.sh", JAVA_HOME=str(java_home)) == (0, [])


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "is version 11"),
        ("""echo 'java version "1.8.0_402"' >&2""", "is version 1"),
        ("echo 'hello' >&2", "is version unknown"),
        ("exit 1", "does not run"),
    ],
)
def test_any_other_java_is_one_sentence(java_home: Path, script: str, problem: str) -> None:
    pretend_java(java_home, script)
    status, lines = run("scripts/java.sh", JAVA_HOME=str(java_home))
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("Tidewire needs Java 17 or newer")
    assert problem in lines[0]


def test_no_java_is_one_sentence(tmp_path: Path) -> None:
    status, lines = run("scripts/java.sh", JAVA_HOME=str(tmp_path))
    assert status == 1
    assert len(lines) == 1
    assert "does not run: install it" in lines[0]


@pytest.mark.parametrize("python", ["/no/such/python", "false"])
def test_no_python_that_is_new_enough_is_one_sentence(python: str) -> None:
    status, lines = run("scripts/environment.sh", PYTHON=python)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("Tidewire needs Python 3.11 or newer")
    assert python in lines[0]

"""What `tidewire demo` says if it cannot start."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidewire.cli.app import app
from tidewire.cli.demo import command


def complaint(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr


def fake_java(folder: Path, version: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EXTRAS", ("pandas", "tidewire_no_such_package"))
    assert complaint() == (
        "demo: The demo needs tidewire_no_such_package. Install them with `pip install 'tidewire[demo]'`.\n"
    )


def test_a_missing_or_old_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert complaint().startswith("demo: Spark needs Java, and no Java was found. Install Java 17 or newer")
    fake_java(tmp_path, "1.8.0_402")
    assert complaint().startswith(f"demo: Spark needs Java 17, but {tmp_path}/bin/java is older")


def test_days_are_those_of_one_year() -> None:
    for days in ("0", "366", "x"):
        assert "--days" in complaint("--days", days)


def test_the_command_line_imports_neither_pandas_nor_the_client_before_they_are_needed() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tidewire.cli.app; print(*sys.modules)"], capture_output=True, check=True
    ).stdout.split()
    assert not {b"pandas", b"pyspark", b"anyio", b"trio", b"tidewire.client"} & set(loaded)

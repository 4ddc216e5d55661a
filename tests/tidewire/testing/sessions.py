"""Runs sessions of pytest with the plugin, in processes of their own, as its users do."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
SESSION_SECONDS_MAX: Final = 240.0
LINE_SECONDS_MAX: Final = 120.0

# The plugin is named, so that it is this checkout's, whatever is installed.
PLUGIN: Final = ("-p", "tidewire.testing.plugin")


def environment() -> Mapping[str, str]:
    """What the sessions need. An empty `CI` lets pytest print the same summary everywhere: a line for each test."""
    return {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "", "BUILD_NUMBER": ""}


def run(users: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run their tests to the end."""
    return users.runpytest_subprocess(*PLUGIN, *arguments, timeout=SESSION_SECONDS_MAX)


class Session:
    """A session that runs. Its tests and the caller talk in lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> str:
        """Return the next line that a test said after `> `. Fails with the session's output if there is none."""
        assert self.process.stdout is not None
        others = []
        for line in self.process.stdout:
            if line.startswith("> "):
                return line.removeprefix("> ").rstrip("\n")
            others.append(line)
        raise AssertionError("".join(others))

    def tell(self, line: str) -> None:
        """Let a test read this line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait for the session's end. Return its status and what else it printed."""
        printed, _ = self.process.communicate(timeout=SESSION_SECONDS_MAX)
        return self.process.returncode, printed


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Session]:
    """Run the tests of a folder while the caller does something. Leaving the block kills what still runs."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "no:cacheprovider",
        *PLUGIN,
        "--basetemp",
        str(folder / "tmp"),
    ]
    process = subprocess.Popen(
        [*command, *arguments, str(folder)],
        cwd=folder,
        env={**os.environ, **environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Session(process)
    finally:
        process.kill()
        process.communicate()

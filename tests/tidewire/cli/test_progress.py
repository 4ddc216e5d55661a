"""The progress bar: only on a terminal, only for long work, and removed afterwards."""

import os
import pty
import subprocess
import sys

import pytest

from tidewire.cli.progress import progress_bar

STORY = """
import time
from tidewire.cli import progress
progress.QUIET_SECONDS = {quiet}
with progress.progress_bar("verifying", 1000) as advance:
    for _ in range(10):
        advance(100)
"""


def on_a_terminal(quiet: float) -> bytes:
    """Return what a terminal shows."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-c", STORY.format(quiet=quiet)], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 4096):
            seen += data
    except OSError:
        # A terminal whose other side is closed says so in this way.
        pass
    os.close(ours)
    return seen


def test_what_takes_long_is_shown() -> None:
    assert b"verifying" in on_a_terminal(quiet=0.0)


def test_what_is_quick_is_not() -> None:
    assert b"verifying" not in on_a_terminal(quiet=1e9)


def test_without_a_terminal_nothing_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("verifying", 1000) as advance:
        advance(1000)
    assert capfd.readouterr() == ("", "")

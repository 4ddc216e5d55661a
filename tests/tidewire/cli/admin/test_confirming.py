"""Questions before something is destroyed, asked at a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tidewire.cli.admin.confirming import confirm
from tidewire.cli.endings import UsageError

STORY = """
from tidewire.cli.admin.confirming import confirm
from tidewire.cli.endings import one_sentence
with one_sentence("tidewire topics"):
    confirm("All messages of a will be lost", False)
    print("done")
"""


def test_without_a_standard_input_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may start the command with its standard input closed."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="Confirm it with --yes"):
        confirm("All messages of a will be lost", False)


@pytest.mark.parametrize(
    ("answer", "status", "said"), [("y\n", 0, "done"), ("n\n", 1, "Nothing was changed."), ("\n", 1, "Nothing")]
)
def test_a_terminal_is_asked(answer: str, status: int, said: str) -> None:
    """Only a clear yes goes on."""
    terminal, other_end = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", STORY],
            stdin=other_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        ) as process:
            os.write(terminal, answer.encode())
            printed, complained = process.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(other_end)
    assert process.returncode == status
    assert complained.startswith("All messages of a will be lost. Go on? [y/N] ")
    assert said in printed + complained
    assert printed in {"", "done\n"}, "the question is on standard error"

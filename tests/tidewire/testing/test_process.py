"""The start of a broker's process, with a stand-in that fails, hangs or says something else."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tidewire.testing.sessions import environment
from tidewire.testing import BrokerFailed, process


def children() -> set[int]:
    """The processes that this one has started, also those that have ended and were not waited for."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        # The thread that started a broker ends soon after it. Its children are those of another thread then.
        with suppress(FileNotFoundError):
            found.update(map(int, file.read_text().split()))
    return found


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("mood", "complaint"),
    [
        ("unable", "The Tidewire broker did not start. It ended with status 3:\nthis is unable"),
        ("silent", "The Tidewire broker was not ready within 0.2 s:\n"),
        ("odd", "The Tidewire broker said 'hello\\n' instead of its addresses:\nthis is odd"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_no_process(tmp_path: Path, mood: str, complaint: str) -> None:
    others = children()
    seconds_max = 0.2 if mood == "silent" else process.START_SECONDS_MAX
    with pytest.raises(BrokerFailed) as raised:
        process.start(["--mood", mood], tmp_path / "log", os.environ, seconds_max=seconds_max)
    assert str(raised.value).startswith(complaint)
    # Others may have ended meanwhile.
    assert children() <= others


@pytest.mark.usefixtures("stand_in")
def test_a_broker_may_say_more_than_a_pipe_holds(tmp_path: Path) -> None:
    """Otherwise it would stand still, and never end."""
    started = process.start(["--mood", "talkative"], tmp_path / "log", os.environ)
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    assert started.status == 0


def test_modules_of_the_tested_application_do_not_shadow_those_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker comes as far as its settings, and refuses one."""
    (tmp_path / "typer.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BrokerFailed, match="status 2"):
        process.start(["--kafka-partitions", "none"], tmp_path / "log", {**os.environ, **environment()})


def test_a_command_that_cannot_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (str(tmp_path / "missing"),))
    with pytest.raises(FileNotFoundError, match="missing"):
        process.start([], tmp_path / "log", os.environ)

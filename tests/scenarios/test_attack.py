"""Attacks on a broker started as users start it, for some seconds each (scripts/attack.py, docs/attacks.md)."""

from pathlib import Path

import pytest

from tests.support.attacks.table import run

SEED = 11
SECONDS = 2
DAMAGES = ["files.flip", "files.delete", "files.swap"]


@pytest.mark.parametrize(
    "name", ["wire.together", "http.together", "bounds.together", "crowds.together", "kafka.together"]
)
def test_a_besieged_broker_keeps_its_promises(tmp_path: Path, name: str) -> None:
    """E8, E9, E11, E12: nothing acknowledged is lost, nothing aborted is shown, and the process continues."""
    verdicts = list(run(tmp_path, [name], SEED, SECONDS))
    assert [verdict.line() for verdict in verdicts if verdict.complaints] == []
    assert [verdict.name for verdict in verdicts] == [name, "all.after-kill-9"]


def test_a_damaged_file_is_named_or_does_no_harm(tmp_path: Path) -> None:
    """E3, E10: refused, reported to readers, or without effect; no wrong data, no silent loss. One kind per damage."""
    verdicts = list(run(tmp_path, DAMAGES, SEED, 0))
    assert [verdict.line() for verdict in verdicts if verdict.complaints] == []
    assert [verdict.name for verdict in verdicts] == DAMAGES

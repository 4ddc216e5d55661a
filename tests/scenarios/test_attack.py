"""Attacks on a broker, started as a user starts it, for some seconds each (scripts/attack.py, docs/attacks.md)."""

from pathlib import Path

import pytest

from tests.support.attacks.table import run

SEED = 11
SECONDS = 3


@pytest.mark.parametrize("name", ["wire.together", "http.together"])
def test_a_besieged_broker_keeps_its_promises(tmp_path: Path, name: str) -> None:
    """E8, E9, E11, E12: nothing acknowledged is lost, nothing aborted is shown, and the process goes on; also later."""
    verdicts = list(run(tmp_path, [name], SEED, SECONDS))
    assert [verdict.line() for verdict in verdicts if verdict.complaints] == []
    assert [verdict.name for verdict in verdicts] == [name, "all.after-kill-9"]

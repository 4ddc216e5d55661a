"""Data that one release wrote is read by the next one, which `scripts/try_upgrade.py` tries for any commit.

Here the earlier release is the last commit. docs/operations/upgrade.md has what older ones give.
"""

import subprocess
import sys

import pytest

from tests.scripts.test_pages import ROOT

SECONDS_MAX = 540

pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]


def test_the_last_commits_data_is_upgraded_and_goes_back() -> None:
    """After a stop and after a kill, no message is lost, doubled or shown too early."""
    played = subprocess.run(
        [sys.executable, "scripts/try_upgrade.py", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    print(played.stderr)
    assert played.stdout.splitlines() == [
        "HEAD stopped: upgraded; the earlier one starts again, and reads all",
        "HEAD killed: upgraded; the earlier one starts again, and reads all",
        "well: every message is there once after each upgrade",
    ]
    assert played.returncode == 0

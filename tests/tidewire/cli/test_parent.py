"""A broker that belongs to another process. `tests/tidewire/testing/test_sessions.py` kills such processes."""

import subprocess
from pathlib import Path
from typing import Final

from tests.support.processes import BROKER_COMMAND, FREE_PORTS

SECONDS_MAX: Final = 60


def test_a_broker_without_its_parent_does_not_start(tmp_path: Path) -> None:
    """The parent may end before the process can ask the kernel to be told."""
    ended = subprocess.run(
        [*BROKER_COMMAND, "--parent", "1", "--data-dir", str(tmp_path / "data"), *FREE_PORTS],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 1
    assert ended.stderr == "tidewire broker: The process 1, for which this broker was to run, is not its parent.\n"
    assert not (tmp_path / "data").exists()

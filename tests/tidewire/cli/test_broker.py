"""How a broker's process ends."""

import subprocess
import sys
from pathlib import Path

from tests.support.processes import running_broker

STUCK = """
from tidewire.cli.broker import end_within
end_within(0.01)
while True:
    pass
"""


def test_a_stop_ends_the_process_whatever_its_loop_is_doing() -> None:
    """E17: this includes a process that never returns to its event loop."""
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr == (
        "tidewire broker: Stopped before all cursors were written. Some acknowledged messages will be redelivered.\n"
    )


def test_a_broker_with_nothing_to_do_stops_by_itself(tmp_path: Path) -> None:
    """E17: the thread that ends a stuck process logs it; here it must log nothing."""
    with running_broker(tmp_path / "data") as broker:
        broker.stop()
        assert "Stopped before" not in broker.stderr

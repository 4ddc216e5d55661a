"""How a broker's process ends."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidewire.cli.broker
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


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_signal_does_not_spoil_an_orderly_stop(tmp_path: Path, processes: str) -> None:
    """E17: the process is stopped meanwhile, so both signals wait for it, and it sees them at the same moment."""
    with running_broker(tmp_path / "data", "--processes", processes) as broker:
        for each in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            broker.process.send_signal(each)
        assert broker.wait_ended() == 0


def test_no_error_of_the_start_is_raised_where_python_wraps_it() -> None:
    """E11: before 3.11.4, what is raised inside `except*` ends in a group, and a traceback follows the message."""
    tree = ast.parse(Path(tidewire.cli.broker.__file__).read_text())
    handlers = [handler for node in ast.walk(tree) if isinstance(node, ast.TryStar) for handler in node.handlers]
    inside = [node for handler in handlers for node in ast.walk(handler)]
    called = {node.func.id for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert handlers
    assert called == {"operator_message"}
    assert [node for node in inside if isinstance(node, ast.Raise) and node.exc is not None] == []

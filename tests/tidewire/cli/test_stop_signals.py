"""What the first and the second signal do to a process."""

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.support.processes import END_SECONDS_MAX

PROGRAM = """
import os, signal, sys
import trio
from tidewire.cli.stop_signals import StopSignals

mode, seconds = sys.argv[1], float(sys.argv[2])
signals = StopSignals(seconds, lambda: os._exit(7))

def ready():
    print("ready", flush=True)
    return sys.stdin.readline()

async def main():
    async with trio.open_nursery() as nursery:
        @nursery.start_soon
        async def stop():
            await signals.wait()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        if mode == "standing":
            ready()
        elif mode == "parked":
            await trio.to_thread.run_sync(ready, abandon_on_cancel=True)
        await trio.sleep_forever()

import trio.testing
signals.take()
if mode == "early":
    ready()
elif mode == "late":
    signal.raise_signal(signal.SIGTERM)
trio.run(main)
if mode == "late":
    signals.ignore()
    ready()
print("orderly", flush=True)
"""


def ended(mode: str, seconds: float, told: Sequence[signal.Signals]) -> tuple[int, list[str]]:
    """Run the program, send it these signals at once, let it go on, and return its status and what it said."""
    command = [sys.executable, "-c", PROGRAM, mode, str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # A stopped process gets all of them when it continues, however busy the machine is.
        for each in (signal.SIGSTOP, *told, signal.SIGCONT):
            process.send_signal(each)
        said, _ = process.communicate("\n", timeout=END_SECONDS_MAX)
        return process.returncode, said.split()


@pytest.mark.parametrize("told", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
@pytest.mark.parametrize("mode", ["parked", "early", "late"])
def test_the_first_signal_begins_the_stop_and_a_second_one_changes_nothing(
    mode: str, told: Sequence[signal.Signals]
) -> None:
    """E17: also if they come before the event loop runs, or after it has ended."""
    assert ended(mode, END_SECONDS_MAX, told) == (0, ["orderly"])


def test_a_second_signal_ends_a_process_whose_loop_never_noticed_the_first() -> None:
    """E17: the loop stands in a read here, so nothing but the second signal can end the process."""
    assert ended("standing", 0.0, [signal.SIGTERM, signal.SIGINT]) == (7, [])

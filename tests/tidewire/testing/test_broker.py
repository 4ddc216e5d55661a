"""The states of the tests' broker, with a stand-in for its process."""

import os
import signal
from pathlib import Path

import pytest

from tidewire.testing import BrokerFailed, TidewireBroker


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def end(broker: TidewireBroker) -> None:
    """Let the broker end by itself, as it seems to it."""
    pid = broker.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.usefixtures("stand_in")
def test_the_states_of_a_broker_are_those_of_the_table(tmp_path: Path) -> None:
    """Every method in every state; `BrokerFailed` is what the table calls refused."""
    broker = TidewireBroker(tmp_path)

    def bring(state: str) -> None:
        broker.restart()
        if state == "paused":
            broker.pause()
            assert state_of(broker.pid) == "T"
        elif state == "killed":
            broker.kill()
        elif state == "ended":
            end(broker)

    def state() -> str:
        try:
            return {"T": "paused"}.get(state_of(broker.pid), "running")
        except BrokerFailed as failure:
            return "killed" if "was killed" in str(failure) else "ended"

    table = {
        "running": ("killed", "running", "paused", "running", "running"),
        "paused": ("killed", "running", "paused", "running", "running"),
        "killed": ("killed", "running", "refused", "refused", "running"),
        "ended": ("killed", "running", "refused", "refused", "refused"),
    }
    found = {}
    try:
        for before in table:
            row = []
            for method in (broker.kill, broker.restart, broker.pause, broker.resume, broker.mend):
                bring(before)
                try:
                    method()
                    row.append(state())
                except BrokerFailed:
                    row.append("refused")
            found[before] = tuple(row)
    finally:
        broker.close()
    assert found == table


@pytest.mark.usefixtures("stand_in")
def test_a_broker_that_ended_by_itself_is_a_failure_with_its_log(tmp_path: Path) -> None:
    broker = TidewireBroker(tmp_path)
    end(broker)
    with pytest.raises(BrokerFailed) as raised:
        broker.mend()
    assert str(raised.value).startswith("The Tidewire broker ended by itself with status -9:\nthis is ")
    broker.close()


@pytest.mark.usefixtures("stand_in")
def test_a_paused_broker_aborts_nothing_and_ends(tmp_path: Path) -> None:
    """The call would wait until the test's own time limit."""
    broker = TidewireBroker(tmp_path)
    broker.pause()
    with pytest.raises(BrokerFailed, match="paused"):
        broker.abort_transactions()
    broker.restart()
    # It is asked again. The stand-in listens nowhere.
    with pytest.raises(ConnectionRefusedError):
        broker.abort_transactions()
    pid = broker.pid
    broker.close()
    assert not Path(f"/proc/{pid}").exists()

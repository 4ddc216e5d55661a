"""The fixture that runs a broker, with a stand-in that is ready, fails, hangs or refuses to end."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import BrokerFailure, running_broker

_STAND_IN = """
import argparse, signal, socket, sys
parser = argparse.ArgumentParser()
for flag in ("--data-dir", "--pulsar", "--http", "--kafka", "--mood"):
    parser.add_argument(flag, default="")
told = parser.parse_args()
print("this is", told.mood, file=sys.stderr, flush=True)
if told.mood == "unable":
    sys.exit("cannot start")
if told.mood == "silent":
    signal.pause()
if told.mood == "odd":
    print("hello", flush=True)
    signal.pause()
listeners = [socket.create_server((told.pulsar.split(":")[0], int(address.split(":")[1])))
             for address in (told.pulsar, told.http, told.kafka)]
signal.signal(signal.SIGTERM, lambda *_: None if told.mood == "stubborn" else sys.exit(told.mood == "failing"))
pulsar, http, kafka = (":".join(map(str, listener.getsockname())) for listener in listeners)
print(f"ready pulsar={pulsar} http={http} kafka={kafka} data={told.data_dir}", flush=True)
print("more than a pipe holds " * 10_000, flush=True)
while True:
    signal.pause()
"""

COMMAND = (sys.executable, "-c", _STAND_IN)


def test_gives_the_addresses_and_ends_cleanly(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", command=COMMAND) as broker:
        assert broker.service_url == f"pulsar://127.0.0.1:{broker.pulsar.port}"
        assert broker.http_url == f"http://127.0.0.1:{broker.http.port}"
        socket.create_connection(broker.pulsar).close()
        process = broker.process
    assert process.returncode == 0
    assert not broker.is_running


def test_restarts_under_the_same_addresses(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", command=COMMAND) as broker:
        before = broker.pulsar, broker.http, broker.pid
        killed = broker.process
        broker.kill()
        assert killed.returncode == -signal.SIGKILL
        broker.restart()
        assert (broker.pulsar, broker.http) == before[:2]
        assert broker.pid != before[2]
        socket.create_connection(broker.http).close()
        broker.restart()


def test_a_broker_that_was_killed_is_not_missed_at_the_end(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", command=COMMAND) as broker:
        broker.kill()


@pytest.mark.parametrize(
    ("mood", "complaint"),
    [
        ("unable", "ended with status 1 instead of becoming ready; its standard error:\nthis is unable\ncannot start"),
        ("odd", "said 'hello' instead of its ready line"),
        ("silent", "not ready within 0.1 s"),
    ],
)
def test_says_why_it_did_not_start(tmp_path: Path, mood: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mood == "silent":
        monkeypatch.setattr(processes, "START_SECONDS_MAX", 0.1)
    with (
        pytest.raises(BrokerFailure) as raised,
        running_broker(tmp_path / "data", "--mood", mood, command=COMMAND),
    ):
        pass
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("mood", "complaint"),
    [
        ("failing", "ended with status 1 after SIGTERM; its standard error:\nthis is failing"),
        ("stubborn", "still running 0.1 s after SIGTERM"),
    ],
)
def test_says_that_it_did_not_end_well(
    tmp_path: Path, mood: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS_MAX", 20.0 if mood == "failing" else 0.1)
    with (
        pytest.raises(BrokerFailure) as raised,
        running_broker(tmp_path / "data", "--mood", mood, command=COMMAND),
    ):
        pass
    assert complaint in str(raised.value)


def test_a_broker_that_ended_by_itself_is_a_failure(tmp_path: Path) -> None:
    def story() -> None:
        with running_broker(tmp_path / "data", command=COMMAND) as broker:
            broker.process.kill()
            broker.process.wait()

    with pytest.raises(BrokerFailure, match="ended by itself with status -9"):
        story()


def test_a_failing_test_shows_what_the_broker_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running: list[subprocess.Popen[str]] = []

    def story() -> None:
        with running_broker(tmp_path / "data", "--mood", "moody", command=COMMAND) as broker:
            running.append(broker.process)
            raise LookupError("nothing to do with the broker")

    with pytest.raises(LookupError):
        story()
    assert "this is moody" in capsys.readouterr().err
    assert running[0].returncode == -signal.SIGKILL

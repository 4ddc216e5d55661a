"""Runs the programs of the benchmarks. Each measures one phase, and prints its result as JSON on its last line."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from scripts.need import place

PROGRAM_SECONDS_MAX: Final = 1_800


def java_v5(program: str) -> Sequence[str]:
    """Return the command of a program in tests/interop/java-v5."""
    target = place("pulsar-java-client")
    return ("java", "-cp", f"{target}/classes:{target}/lib/*", f"tidewire.interop.{program}")


def start(command: Sequence[str], *arguments: object) -> "subprocess.Popen[str]":
    """Start a program. The caller may write to it and read what it prints."""
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def measure(
    command: Sequence[str],
    *arguments: object,
    heard: Callable[[str], object] = lambda _line: None,
    seconds_max: float = PROGRAM_SECONDS_MAX,
) -> Any:  # noqa: ANN401 - each phase has a shape of its own
    """Run a program and return what it measured.

    Args:
        command: the program.
        arguments: its further arguments.
        heard: is called with each line as it comes.
        seconds_max: after this time, the program is killed.

    Raises:
        SystemExit: it failed.
    """
    last = ""
    with start(command, *arguments) as program:
        assert program.stdout is not None
        limit = threading.Timer(seconds_max, program.kill)
        limit.start()
        try:
            for line in program.stdout:
                last = line.strip()
                heard(last)
        finally:
            limit.cancel()
    if program.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed with status {program.returncode}")
    return orjson.loads(last)

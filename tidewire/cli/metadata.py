"""`tidewire metadata`: inspect a broker's metadata store, in a stopped broker's folder or in a running broker.

Records and changes are printed as JSON lines, because there may be many, or no end of them. Notes for people go to
standard error as sentences.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from tidewire.cli.daemon import make_importable
from tidewire.cli.endings import CommandFailed, UsageError, one_sentence, while_somebody_reads
from tidewire.cli.output import Json, print_json, tell

if TYPE_CHECKING:
    from tidewire.cli.metadata_folder import FolderMetadata
    from tidewire.cli.metadata_http import BrokerMetadata

app: Final = typer.Typer(
    help="Inspect a broker's metadata: in a stopped broker's data folder, or in a running broker.",
    no_args_is_help=True,
)

DataDir = Annotated[Path | None, typer.Option(help="The data folder of a stopped broker.")]
Http = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a running broker's HTTP listener (default: TIDEWIRE_HTTP_URL, or 127.0.0.1:8080)."),
]
Limit = Annotated[int | None, typer.Option(min=0, help="Print at most this many.")]

_COMMAND: Final = "tidewire metadata"
_ENVIRONMENT: Final = "TIDEWIRE_HTTP_URL"
_HTTP_DEFAULT: Final = "127.0.0.1:8080"


class Source(Protocol):
    """A place to read records from: a folder or a running broker."""

    def dump(self, prefix: str, limit: int | None) -> Iterator[bytes]:
        """Yield the records in key order, a line each."""

    def get(self, key: str) -> bytes:
        """Return one record as a line."""

    def query(self, index: str, start: str, end: str | None, limit: int | None) -> Iterator[bytes]:
        """Yield the index's entries with keys in [start, end), a line each, with the records they point at."""


@app.command("dump")
def dump(
    prefix: Annotated[str, typer.Option(help="Only records whose key starts with this.")] = "",
    limit: Limit = None,
    log: Annotated[
        bool, typer.Option("--log", help="Print the log instead: its batches and records, with their offsets.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="With --log: also show records that never took effect, marked.")
    ] = False,
    data_dir: DataDir = None,
    http: Http = None,
) -> None:
    """Print records, one JSON object a line, in key order."""
    with _well_ended():
        if partial and not log:
            raise UsageError("--partial applies to the log. Give --log too.")
        if not log:
            _print(_source(data_dir, http).dump(prefix, limit))
            return
        if prefix or limit is not None:
            raise UsageError("--log prints the whole log. Leave out --prefix and --limit.")
        _folder(data_dir, http, "--log reads the files").log(lambda line: _print([line], flush=False), partial=partial)


@app.command("get")
def get(
    key: Annotated[str | None, typer.Argument(help="The record's key.", show_default=False)] = None,
    index: Annotated[str | None, typer.Option(help="Query this index instead.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="The first index key.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="The index key to stop before.")] = None,
    limit: Limit = None,
    data_dir: DataDir = None,
    http: Http = None,
) -> None:
    """Print one record as JSON, or with --index the records that an index query finds."""
    with _well_ended():
        if (key is None) == (index is None):
            raise UsageError("Give either the key of a record, or --index NAME.")
        if index is not None:
            if not index:
                raise UsageError("The name of an index must not be empty.")
            _print(_source(data_dir, http).query(index, start or "", end, limit))
            return
        if start is not None or end is not None or limit is not None:
            raise UsageError("--from, --to and --limit are for index queries. Give --index NAME, or leave them out.")
        if not key:
            raise UsageError("The key must not be empty.")
        _print([_source(data_dir, http).get(key)])


@app.command("watch")
def watch(
    prefix: Annotated[str, typer.Argument(help="Only records whose key starts with this.", show_default=False)] = "",
    data_dir: Annotated[Path | None, typer.Option(hidden=True)] = None,
    http: Http = None,
) -> None:
    """Print a running broker's records, then every change as it happens, until Ctrl-C."""
    with _well_ended():
        if data_dir is not None:
            raise UsageError("Only a running broker's records change. Give --http HOST:PORT instead of --data-dir.")
        for line in _broker(http).watch(prefix):
            _print([line])


@app.command("verify")
def verify(
    as_json: Json = False,
    data_dir: DataDir = None,
    http: Http = None,
) -> None:
    """Check a stopped broker's metadata files for damage. The exit status is 1 if a file is damaged or missing."""
    with _well_ended():
        folder, reports = _folder(data_dir, http, "`verify` reads the files").verify()
        from tidewire.cli.metadata_folder import report_fields, report_text

        damaged = sum(report.damage is not None for report in reports)
        if as_json:
            print_json(
                {"folder": str(folder), "whole": not damaged, "files": [report_fields(report) for report in reports]}
            )
        else:
            for report in reports:
                typer.echo(report_text(report))
        files = f"{len(reports)} file{'' if len(reports) == 1 else 's'}"
        if damaged:
            raise CommandFailed(
                f"{damaged} of {files} in {folder} {'is' if damaged == 1 else 'are'} damaged or missing."
            )
        if not as_json:
            typer.echo(f"{files} in {folder}, all whole")


@app.command("snapshot")
def snapshot(
    feature_level: Annotated[
        int | None,
        typer.Option(help="Write for releases of this level (stopped brokers only); 1 and 2: without epochs."),
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    http: Http = None,
) -> None:
    """Write a snapshot of the whole state now. The log before it is then no longer needed."""
    with _well_ended():
        if data_dir is None and feature_level is None:
            broker = _broker(http)
            taken = broker.snapshot()
            tell(
                f"{broker.url} wrote a snapshot of revision {taken.revision}, after batch {taken.sequence}: "
                f"{taken.size_bytes:,} bytes",
                as_json,
                revision=taken.revision,
                sequence=taken.sequence,
                sizeBytes=taken.size_bytes,
            )
            return
        written = _folder(data_dir, http, "--feature-level is for the folder").snapshot(feature_level)
        tell(
            f"wrote {written.path}: {written.records:,} record{'' if written.records == 1 else 's'} at revision "
            f"{written.revision}, feature level {written.feature_level}, {written.size_bytes:,} bytes",
            as_json,
            path=str(written.path),
            records=written.records,
            revision=written.revision,
            featureLevel=written.feature_level,
            sizeBytes=written.size_bytes,
        )


def _source(data_dir: Path | None, http: str | None) -> Source:
    if data_dir is not None:
        return _folder(data_dir, http, "")
    return _broker(http)


def _folder(data_dir: Path | None, http: str | None, why: str) -> "FolderMetadata":
    if data_dir is not None and http is not None:
        raise UsageError("Give either --data-dir, for a stopped broker, or --http, for a running one.")
    if data_dir is None:
        raise UsageError(f"{why} of a stopped broker. Give --data-dir DIR.")
    make_importable()
    from tidewire.cli.metadata_folder import FolderMetadata

    return FolderMetadata(data_dir, lambda sentence: typer.echo(f"{_COMMAND}: {sentence}", err=True))


def _broker(http: str | None) -> "BrokerMetadata":
    from tidewire.cli.metadata_http import BrokerMetadata

    return BrokerMetadata(http or os.environ.get(_ENVIRONMENT) or _HTTP_DEFAULT)


@contextmanager
def _well_ended() -> Iterator[None]:
    with one_sentence(_COMMAND), while_somebody_reads():
        yield
        sys.stdout.buffer.flush()


def _print(lines: Iterable[bytes], *, flush: bool = True) -> None:
    for line in lines:
        sys.stdout.buffer.write(line)
    if flush:
        # The reader of a pipe gets each change at once, and gets all records before the notes on standard error.
        sys.stdout.buffer.flush()

"""`tidewire backup` and `tidewire restore`: copy a running broker's data folder, and make a new one from the copy."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.daemon import make_importable
from tidewire.cli.endings import EXIT_INTERRUPTED, CommandFailed, one_sentence
from tidewire.cli.output import Json, tell
from tidewire.cli.progress import progress_bar

DEFAULT_HTTP: Final = "127.0.0.1:8080"
PATH: Final = "/admin/v2/backup"
CLUSTER: Final = "/admin/v2/cluster"
CUT_SECONDS_MAX: Final = 600.0
"""How long the broker may need to link all files of a large folder."""


def backup(
    to: Annotated[Path, typer.Argument(help="The folder of the backup: empty, or not there yet.", show_default=False)],
    http: Annotated[
        str,
        typer.Option(
            envvar="TIDEWIRE_HTTP_URL",
            help="HOST:PORT of the HTTP listener of any broker of the folder, on this machine.",
        ),
    ] = DEFAULT_HTTP,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what a backup left that was killed. None may be running.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Back up a running broker, which goes on working.

    The backup has everything that was acknowledged before it began, and no transaction by halves. Run this on the
    broker's machine, with the right to read its data folder.
    """
    with _ending("tidewire backup"):
        make_importable()
        from storage.backup.copying import FolderNotEmpty, copy_cut, read_manifest, require_empty
        from storage.backup.manifest import BackupDamaged
        from storage.files import DiskFiles

        files = DiskFiles()
        try:
            require_empty(files, to)
        except FolderNotEmpty as taken:
            raise CommandFailed(str(taken)) from taken
        broker = BrokerHttp(_deciding(http), answer_seconds_max=CUT_SECONDS_MAX)
        query = {"replace": "true"} if replace else {}
        (line,) = broker.lines(PATH, query, method="POST")
        cut = Path(json.loads(line)["folder"])
        if not cut.is_dir():
            raise CommandFailed(
                f"{cut} is not on this machine. Run this command on the machine of the broker {broker.url}."
            )
        try:
            if to.resolve().is_relative_to(cut.resolve().parent):
                raise CommandFailed(f"{to} is inside the broker's data folder {cut.parent}. Choose a folder elsewhere.")
            manifest = read_manifest(files, cut)
            size = sum(each.length for each in manifest.files)
            with progress_bar("copying", size) as copied:
                to.mkdir(parents=True, exist_ok=True)
                copy_cut(files, cut, to, manifest, copied)
        except BackupDamaged as changed:
            raise CommandFailed(f"The data folder changed meanwhile: {changed}") from changed
        except OSError as error:
            raise CommandFailed(
                f"The backup is not complete: {error.filename}: {error.strerror}. Remove {to} if it is there, and try "
                "again, or choose another folder."
            ) from error
        finally:
            shutil.rmtree(cut, ignore_errors=True)
        tell(
            f"{to}: {len(manifest.files)} files with {size} bytes, of {manifest.place}",
            as_json,
            folder=str(to),
            files=len(manifest.files),
            sizeBytes=size,
            of=manifest.place,
        )


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The folder of a backup.", show_default=False)],
    data_dir: Annotated[Path, typer.Option(help="The new data folder: empty, or not there yet.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make a new data folder from a backup. Start a broker on it afterwards.

    The new folder has the topics, messages and subscriptions of the backup, and an identity of its own.
    """
    with _ending("tidewire restore"):
        make_importable()
        import trio

        from storage.backup.copying import FolderNotEmpty, read_manifest
        from storage.backup.manifest import BackupDamaged
        from storage.backup.restoring import restore as restored
        from storage.files import DiskFiles

        files = DiskFiles()

        async def run() -> None:
            size = sum(each.length for each in read_manifest(files, source).files)
            with progress_bar("checking and copying", 2 * size) as told:
                await restored(files, source, data_dir, checked=told, copied=told)

        try:
            trio.run(run)
        except (BackupDamaged, FolderNotEmpty) as refused:
            raise CommandFailed(str(refused)) from refused
        except OSError as error:
            raise CommandFailed(
                f"{data_dir} is not complete: {error.filename}: {error.strerror}. Remove it and try again."
            ) from error
        tell(
            f"{data_dir} is ready. Start it with: tidewire broker --data-dir {data_dir}",
            as_json,
            dataDir=str(data_dir),
            backup=str(source),
        )


def _deciding(http: str) -> str:
    """Return the HTTP address of the broker that decides for the metadata, as the named broker knows it.

    Only that one can begin a backup. It is the named broker if no other is known.
    """
    (line,) = BrokerHttp(http).lines(CLUSTER, {})
    view = json.loads(line)
    known = {broker["broker"]: broker.get("httpUrl") for broker in view["brokers"]}
    return known.get(view.get("metadataController")) or http


@contextmanager
def _ending(command: str) -> Iterator[None]:
    with one_sentence(command):
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None

"""Where commands find a broker's HTTP listener: the options that name it, and the addresses to ask in turn."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tidewire.cli.endings import CommandFailed

HTTP_DEFAULT: Final = "127.0.0.1:8080"
HTTP_VARIABLE: Final = "TIDEWIRE_HTTP_URL"
FOLDER_VARIABLE: Final = "TIDEWIRE_DATA_DIR"
DATA_DIR_DEFAULT: Final = Path("data")

DataDir = Annotated[
    Path, typer.Option(envvar=FOLDER_VARIABLE, help="The folder that all brokers of the cluster share.")
]
Http = Annotated[
    str | None,
    typer.Option(
        help=f"HOST:PORT of any broker's HTTP listener (default: {HTTP_VARIABLE}, else the brokers started in "
        f"--data-dir, else {HTTP_DEFAULT})."
    ),
]


class NoClusterStarted(CommandFailed):
    """The user named a folder in which `tidewire cluster start` has started nothing."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(
            f"No cluster was started in {data_dir}, so nobody knows its brokers. Name one of them with --http "
            "HOST:PORT, or the folder of a cluster with --data-dir."
        )


def named(http: str | None) -> str | None:
    """Return the address that the user named, by --http or in the environment."""
    return http or os.environ.get(HTTP_VARIABLE) or None


def addresses(data_dir: Path, http: str | None) -> list[str]:
    """Return the HTTP addresses to ask, in this order.

    A folder that the user named by the flag is never replaced by the default address. Another cluster may answer
    there. The environment's folder may be: a single broker on the default address uses the same variable.

    Raises:
        NoClusterStarted: the user named the folder, and no cluster was started in it.
        CommandFailed: the folder does not answer, or what is in it is damaged.
    """
    from tidewire.cli.cluster.folder import Cluster, ClusterFolder
    from tidewire.cli.cluster.silent_disk import SilentDisk

    address = named(http)
    if address is not None:
        return [address]
    folder, disk = ClusterFolder(data_dir.absolute()), SilentDisk()

    def read() -> Cluster | None:
        with disk.touching(folder.path):
            return folder.read()

    cluster = disk.run(read)
    if cluster is not None:
        return [broker.http for broker in cluster.brokers.values()]
    if data_dir != DATA_DIR_DEFAULT and str(data_dir) != os.environ.get(FOLDER_VARIABLE):
        raise NoClusterStarted(data_dir)
    return [HTTP_DEFAULT]

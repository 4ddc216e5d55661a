"""Where commands find a broker's HTTP listener: the options that name it, and the addresses to ask in turn."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

HTTP_DEFAULT: Final = "127.0.0.1:8080"
HTTP_VARIABLE: Final = "TIDEWIRE_HTTP_URL"
DATA_DIR_DEFAULT: Final = Path("data")

DataDir = Annotated[
    Path, typer.Option(envvar="TIDEWIRE_DATA_DIR", help="The folder that all brokers of the cluster share.")
]
Http = Annotated[
    str | None,
    typer.Option(
        help=f"HOST:PORT of any broker's HTTP listener (default: {HTTP_VARIABLE}, else the brokers started in "
        f"--data-dir, else {HTTP_DEFAULT})."
    ),
]


def named(http: str | None) -> str | None:
    """Return the address that the user named, by --http or in the environment."""
    return http or os.environ.get(HTTP_VARIABLE) or None


def addresses(data_dir: Path, http: str | None) -> list[str]:
    """Return the HTTP addresses to ask, in this order.

    Raises:
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
    return [HTTP_DEFAULT] if cluster is None else [broker.http for broker in cluster.brokers.values()]

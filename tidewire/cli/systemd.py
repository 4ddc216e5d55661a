"""Tells systemd when the broker serves clients, and when it stops (`Type=notify`; sd_notify(3)).

systemd names a datagram socket in NOTIFY_SOCKET. Without that variable nothing happens. The message is one datagram, so
a small function suffices, and no library is needed.
"""

import os
import socket
from typing import Final

import typer

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell_systemd(state: str) -> None:
    """Send a state to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        # An abstract address, which has no file.
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.connect(address)
            notifying.send(state.encode())
    except OSError as failure:
        # The broker serves all the same. systemd ends it if it hears nothing.
        typer.echo(f"tidewire broker: systemd cannot be told {state}: {failure}", err=True)

"""Free ports of this machine that stay ours while no broker listens on them.

A killed broker must find its ports free when it is started again. The system would give them to any connection
meanwhile, also to one that a client makes to the dead broker. A socket that is bound and does not listen prevents that:
connections to it are refused, and a broker can still listen there.
"""

import socket
from typing import Final

HOST: Final = "127.0.0.1"


class ReservedPort:
    """One port of loopback. It is ours until `release`."""

    def __init__(self) -> None:
        """Take a free port."""
        self._socket = socket.socket()
        # The broker's listener has the same option. With both, the kernel lets the two share the port.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.address = f"{HOST}:{self._socket.getsockname()[1]}"
        """The port with its host, such as `127.0.0.1:40311`."""

    def release(self) -> None:
        """Give it back to the system."""
        self._socket.close()

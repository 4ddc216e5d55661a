"""Common functions for the processes of other systems that benchmarks and interop programs start."""

import socket
import subprocess
from contextlib import ExitStack
from typing import Final

STOP_SECONDS_MAX: Final = 30.0


def free_ports(count: int) -> list[int]:
    """Return currently free ports, for a process that cannot choose a port by itself."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the process, and wait for its end."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

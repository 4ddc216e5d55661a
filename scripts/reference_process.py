"""What the processes of other systems have in common that benchmarks and interop programs start beside us."""

import socket
import subprocess
from contextlib import ExitStack
from typing import Final

STOP_SECONDS_MAX: Final = 30.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, for a process that takes no socket and cannot be told to choose."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and see that it does; it is gone on return."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

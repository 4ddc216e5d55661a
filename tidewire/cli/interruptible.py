"""A blocking socket whose reads always end at Ctrl-C.

Python notes a signal and runs its handler between two bytecode instructions. A signal may arrive after the last
instruction and before the system call, or in another thread. Such a signal does not interrupt the call. The read then
blocks until data arrives, which on a watch may be never. So a read waits for either of two things: its data, or the
byte that the signal writes (`signal.set_wakeup_fd`).
"""

import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


WAKEUP_BYTES_MAX: Final = 4096
"""Most wake-up bytes read at a time; each signal writes one."""


class InterruptibleSocket(socket.socket):
    """Replaces a connected socket; `interruptible` makes it."""

    woken_by: socket.socket | None = None
    """Readable once a signal has arrived."""

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Receive as the base class does. A signal's handler runs during the call.

        Raises:
            TimeoutError: nothing arrived within the socket's own time-out.
        """
        while self.woken_by is not None:
            with selectors.DefaultSelector() as selector:
                selector.register(self, selectors.EVENT_READ)
                selector.register(self.woken_by, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(self.gettimeout())}
            if self in ready:
                break
            if not ready:
                raise TimeoutError("timed out")
            # The signal's handler has run and raised nothing, so go on waiting for data.
            self.woken_by.recv(WAKEUP_BYTES_MAX)
        return super().recv_into(buffer, nbytes, flags)


@contextmanager
def interruptible(connected: socket.socket) -> Iterator[InterruptibleSocket]:
    """Yield a socket for the same connection, whose reads end at Ctrl-C.

    `connected` is detached from the connection. The new socket is closed at the end of the block. Python delivers
    signals only to the main thread, so in another thread the socket behaves like any other.
    """
    timeout = connected.gettimeout()
    with InterruptibleSocket(connected.family, connected.type, connected.proto, fileno=connected.detach()) as taken:
        taken.settimeout(timeout)
        if threading.current_thread() is not threading.main_thread():
            yield taken
            return
        woken_by, woken = socket.socketpair()
        with closing(woken_by), closing(woken):
            woken_by.setblocking(False)
            woken.setblocking(False)
            taken.woken_by = woken_by
            before = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
            try:
                yield taken
            finally:
                signal.set_wakeup_fd(before)
                taken.woken_by = None

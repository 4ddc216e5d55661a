"""A blocking socket whose reads end at Ctrl-C, always.

Python notes a signal and runs its handler between two steps of the interpreter. A signal that arrives after the last of
them and before the system call does not interrupt that call, and neither does one that another thread receives. The
read then goes on until data arrives, which on a watch may be never. So a read waits for either: its data, or the byte
that the signal itself writes (`signal.set_wakeup_fd`).
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
"""Signals taken note of at a time; each is a byte."""


class InterruptibleSocket(socket.socket):
    """Takes the place of a connected socket; made by `interruptible`."""

    woken_by: socket.socket | None = None
    """Readable once a signal has arrived."""

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """As the base class; a signal's handler runs within it.

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
            # The signal's handler has run. It raised nothing, so the data is still waited for.
            self.woken_by.recv(WAKEUP_BYTES_MAX)
        return super().recv_into(buffer, nbytes, flags)


@contextmanager
def interruptible(connected: socket.socket) -> Iterator[InterruptibleSocket]:
    """The same connection as a socket whose reads end at Ctrl-C; `connected` gives it up, and leaving closes it.

    Only the main thread hears of signals; on another one the socket is like any.
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

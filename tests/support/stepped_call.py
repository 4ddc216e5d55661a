"""A blocking call that runs in a thread of its own, one step at a time.

    stepped = SteppedCall(call)     # `call` calls `stepped.pause()` between its steps
    while not stepped.is_done:
        stepped.step()

Only one thread runs at a time: either the call, or whoever steps it.
"""

import threading
from collections.abc import Callable


class SteppedCall:
    """See the module's docstring. It begins with the first step."""

    def __init__(self, call: Callable[[], None]) -> None:
        """Set up. The call must not raise."""
        self.is_done = False
        self._call = call
        self._turn = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it run to its next pause, or to its end."""
        self._turn.release()
        self._paused.acquire()
        if self.is_done:
            self._thread.join()

    def pause(self) -> None:
        """Wait for the next step. Only the call itself may call this."""
        self._paused.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        self._call()
        self.is_done = True
        self._paused.release()

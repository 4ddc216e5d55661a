"""A copier's process, as its parent sees it. Every wait blocks, and has a limit or ends with the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.kafka_copiers.orders import Orders

END_SECONDS_MAX: Final = 90.0
"""From SIGTERM to the end: a transaction under way may wait for the broker first."""


class CopierProcess:
    """Started when it is made."""

    def __init__(self, orders: Orders, stderr_path: Path) -> None:
        self.stderr_path = stderr_path
        with stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kafka_copiers.program", orders.dumps()],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended. It may be stopped."""
        return self._process.poll() is None

    def wait_changed(self) -> int | None:
        """Wait until it ends, and return its status; None when it has stopped itself (SIGSTOP)."""
        changed = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert changed is not None
        return None if changed.si_code == os.CLD_STOPPED else self._process.wait()

    def proceed(self) -> None:
        """Let a stopped one go on."""
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait until it ends, whatever it does before."""
        return self._process.wait()

    def ask_to_end(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, stopped or not."""
        self._process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        """The end of what all lives of this copier wrote to standard error."""
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")[-2000:]

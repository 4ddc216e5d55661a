"""Ends this process when its parent ends, also by `kill -9`, and also while this process is stopped by SIGSTOP.

`tidewire.testing` starts brokers this way. A pipe, as the supervisor has one, does not do: a stopped process does not
read it, and a fork of the parent keeps it open.

The kernel counts the thread that started this process as its parent. So that thread must live as long.
"""

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1


class ParentEnded(Exception):
    """The parent had ended before this process could ask for the signal."""


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process (SIGKILL) when the process with the id `parent` ends.

    Raises:
        ParentEnded: it has ended already, or another process has started this one.
        OSError: the kernel refused.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise ParentEnded(f"The process {parent}, for which this broker was to run, is not its parent.")

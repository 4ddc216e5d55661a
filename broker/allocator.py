"""The C library's allocator, told to give a broker's memory back.

glibc gives each thread a heap of its own, and keeps what is freed in it. Payloads come from the disk's threads and go
in the event loop's, so every heap ends as large as its worst moment, full of holes. After 200 connections had flooded a
broker 515 to 687 MiB were resident, and 325 to 390 where all threads shared one heap. Python's threads rarely allocate
at the same time, so one heap is enough. Large blocks are given back to the system at once.

This is global to the process, so only the process that is a broker's and nothing else's does it.
"""

import ctypes
from typing import Final

M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8

LARGE_BYTES: Final = 1024 * 1024
"""A block of this size is the system's again as soon as it is freed. By itself glibc raises the limit to 32 MiB."""


def keep_memory_together() -> bool:
    """Have all threads share one heap; to be called before there are others.

    Returns False where the allocator is not glibc's; nothing has changed then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_ARENA_MAX, 1)) and bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES))

"""Makes the C library's allocator return freed memory to the system.

glibc gives each thread its own heap, and keeps freed memory in it. Payloads are allocated in the disk's threads and
freed in the event loop's thread. So every heap stays as large as at its peak, and full of holes. After 200 connections
had flooded a broker, 515 to 687 MiB were resident; with one heap for all threads it was 325 to 390 MiB. Python's
threads rarely allocate at the same time, so one heap is enough. Large blocks are returned to the system at once.

The setting is global to the process. So only a process that a broker has for itself makes it.
"""

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8

LARGE_BYTES: Final = 1024 * 1024
"""A block of this size is returned to the system as soon as it is freed. By default glibc raises this limit to 32
MiB."""

KEPT_BYTES: Final = 8 * LARGE_BYTES
"""How much freed memory at the heap's end is kept. Returning it costs a page fault for each page that is used again.
With glibc's 128 KiB, a load of batches of just below a mebibyte met three times as many."""


def keep_memory_together() -> bool:
    """Make all threads share one heap. Call it before the second thread starts.

    Returns False, and changes nothing, if the allocator is not glibc's.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {M_ARENA_MAX: 1, M_MMAP_THRESHOLD: LARGE_BYTES, M_TRIM_THRESHOLD: KEPT_BYTES}
    return all(mallopt(parameter, value) for parameter, value in settings.items())

"""What a Python worker of Spark's is told of its memory, once in its life.

Spark uses a worker for task after task, and has Python look through all of its objects for garbage after each: most of
a tenth of a second for the modules of Spark, Arrow and this package alone, of which nothing ever is. What is there
before the first rows are need not be looked through (`gc.freeze`).

And glibc gives a large piece of memory back to the system when it is freed, and asks for it anew for the next record
batch, page by page, which takes longer than all else that is done with it: until the process has once freed a larger
one (mallopt(3), M_MMAP_THRESHOLD). That one's pages are never touched, so it takes no memory.
"""

import gc
from functools import cache
from typing import Final

_FREED_BYTES: Final = 31 * 1024 * 1024
"""glibc adapts to no pieces of 32 MiB or more."""


@cache
def settle() -> None:
    """Both, the first time; of no use and no harm where there is another allocator."""
    gc.freeze()
    bytearray(_FREED_BYTES)

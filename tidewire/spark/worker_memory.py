"""Memory settings of a Spark Python worker, made once in its life.

Spark reuses a worker for many tasks, and runs Python's garbage collector after each. The collector looks through all
modules of Spark, Arrow and this package, which are never garbage. That takes nearly a tenth of a second. `gc.freeze`
excludes the objects that exist before the first rows. Arrow imports pandas, if it is installed, when it makes its first
array. That is a third of all objects, so a task lets it happen before. A planner makes no array, and needs no pandas.

glibc returns a large block of memory to the system when it is freed. It then requests the next record batch's memory
again, page by page, which takes longer than the work on the batch. It keeps such blocks once the process has freed a
larger one (mallopt(3), M_MMAP_THRESHOLD). The pages of that block are never touched, so it takes no memory.
"""

import gc
from functools import cache
from typing import Final

import pyarrow as pa

_FREED_BYTES: Final = 31 * 1024 * 1024
"""glibc does not adapt to blocks of 32 MiB or more."""


@cache
def settle(*, makes_arrays: bool) -> None:
    """Make both settings, at the first call. Harmless and useless with another allocator.

    Args:
        makes_arrays: whether the process will make Arrow arrays.
    """
    if makes_arrays:
        pa.array([0])
    gc.freeze()
    bytearray(_FREED_BYTES)

"""Stops the garbage collector, to show what reference counts alone free.

with collector_stopped():
    gone = weakref.ref(make())
    assert gone() is None
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_stopped() -> Iterator[None]:
    """Stop the collector during the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

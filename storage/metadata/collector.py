"""Keeps Python's garbage collector from searching while recovery makes millions of objects that are not garbage.

A collection runs each time enough new objects exist, and visits them and their containers. While a million records are
recovered, that adds up to a third of the work and finds nothing. The collector is global to the process, so this module
always restores its settings. `tidewire/cli/broker.py` makes settings that stay.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing while the context is open. At its end, visit the new objects once, and then continue as before.

    That visit makes the collector forget plain tuples. Without it, the collector would do the same visit later, while a
    client waits.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.collect(1)
    finally:
        if was_enabled:
            gc.enable()


def look_at_newest() -> None:
    """Visit the objects made since the last visit, and those that survived that one. The time grows with their number.

    Work that makes many objects and frees as many older ones should call this on the way. The collector counts only the
    excess of new objects, so it would visit all of them at once, and late.
    """
    gc.collect(1)

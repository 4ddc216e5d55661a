"""Python's garbage collector, kept from searching while millions of objects come that are no garbage.

Each time enough objects have come, a collection visits them and the containers that hold them: while a million records
are recovered that adds up to a third of the work, and finds nothing. This module touches what is global to the
process, so it only ever puts it back; settings that stay are made where the process begins (`tidewire/cli/broker.py`).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing while the context is open; at its end, once, look at what came, and go on as before.

    That look is taken here because the collector lets go of plain tuples by it, and would otherwise take it at some
    moment when somebody waits.
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
    """Look at what came since the last look, and at what survived that; takes as long as that is much.

    To be called on the way by work that makes many objects and frees as many older ones. The collector looks when more
    came than went, so it would look at all of them at once, and late.
    """
    gc.collect(1)

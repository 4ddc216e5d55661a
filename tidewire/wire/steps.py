"""Work in steps: a generator that yields where other tasks may run, and returns its result.

So one piece of code serves tests and blocking callers, and the broker's event loop (E7). The daemon's storage has the
same few lines in `storage/metadata/steps.py`, because neither room knows the other.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def finished(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

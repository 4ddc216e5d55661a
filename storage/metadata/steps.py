"""Work in steps: a generator that yields where other tasks may run, and returns its result.

So one piece of code serves callers without other tasks, such as recovery and tests, and callers that share an event
loop (E7).

Pure: no IO, no waiting.
"""

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Between two steps, nobody may read or change the data of the work."""

KEYS_AT_ONCE: Final = 512
"""Keys or operations that one step of the event loop handles, in about two milliseconds."""


def finished(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

"""Work in steps: a generator that yields where others may have their turn, and returns its result.

So one piece of code serves who waits for nothing, as recovery and tests do, and who shares an event loop (E7).

Pure: no IO, no waiting.
"""

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Between two steps nobody may read or change what the work is about."""

KEYS_AT_ONCE: Final = 512
"""Keys or operations that one step of the event loop works on: some two milliseconds."""


def finished(steps: Steps[T]) -> T:
    """The result, with no pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

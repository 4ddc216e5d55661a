"""Patterns of transactional ids in ListTransactions (KIP-1152), as far as they can be matched in a bounded time.

Kafka runs any pattern with an engine whose time is linear. Python's engine is not: a client could stop the broker with
one pattern (E7). So these parts are served: text, an escaped sign, `.` for any character, and `.*` or `.+`. A pattern
matches a whole id. Each gap takes the first place where the text behind it fits, and is never tried again.

Pure.
"""

import re
from typing import Final

from txn.kafka_errors import InvalidPattern

PATTERN_LENGTH_MAX: Final = 1_000

_SPECIAL: Final = frozenset("\\.+*?()[]{}|^$")


class IdPattern:
    """A pattern that was read."""

    def __init__(self, pattern: str) -> None:
        """Read the pattern.

        Raises:
            InvalidPattern: it has something else than what is served.
        """
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise InvalidPattern(pattern, f"it has more than {PATTERN_LENGTH_MAX} characters")
        pieces: list[list[str]] = [[]]
        at = 0
        while at < len(pattern):
            sign, following = pattern[at], pattern[at + 1 : at + 2]
            at += 1
            if sign == ".":
                if following == "+":
                    pieces[-1].append(".")
                if following and following in "*+":
                    at += 1
                    pieces.append([])
                else:
                    pieces[-1].append(".")
            elif sign == "\\" and following and not following.isalnum():
                at += 1
                pieces[-1].append(re.escape(following))
            elif sign in _SPECIAL:
                raise InvalidPattern(pattern, f"{sign!r} at {at - 1} is not served")
            else:
                pieces[-1].append(re.escape(sign))
        texts = ["".join(piece) for piece in pieces]
        # An atomic group gives nothing back, so no text is looked for twice.
        between = "".join(f"(?>.*?{text})" for text in texts[1:-1])
        self._tail = re.compile(f"{texts[-1]}\\Z", re.DOTALL)
        self._tail_length = len(pieces[-1])
        self._has_gap = len(texts) > 1
        self._head = re.compile(texts[0] + between, re.DOTALL)

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        head = self._head.match(text)
        if head is None:
            return False
        if not self._has_gap:
            return head.end() == len(text)
        start = len(text) - self._tail_length
        return start >= head.end() and self._tail.match(text, start) is not None

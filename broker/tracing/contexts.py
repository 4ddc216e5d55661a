"""The trace context of a message: W3C's `traceparent` and `tracestate`, among its properties or headers.

    traceparent = 00-<trace id, 32 hex digits>-<span id, 16 hex digits>-<flags, 2 hex digits>

A context that breaks the rules counts as none, as W3C asks (https://www.w3.org/TR/trace-context/). A context that is
not sampled counts as none here too: its sender decided that nobody records the trace.
"""

import re
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

TRACEPARENT_SIZE: Final = 55
"""The length of a `traceparent` of version 00. Clients of today write no other."""

CONTEXTS_MAX: Final = 32
"""Messages of one entry that get spans. A batch may hold thousands, and each span takes about 100 µs."""

TRACESTATE_MAX: Final = 512
"""Characters of a `tracestate`: so many must be passed on, as W3C asks. One with more counts as none, because a client
may send megabytes, and each waiting span would keep them."""

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED_FLAG: Final = 1


class TraceContext(NamedTuple):
    """The span that sent a message: the parent of the broker's spans of this message."""

    trace_id: int
    span_id: int
    state: str = ""
    """What tracing systems have added (`tracestate`), as it came; empty if it is too long."""


def parsed(traceparent: str | bytes | bytearray, tracestate: str = "") -> TraceContext | None:
    """Return the context of a message; None if it is malformed or not sampled."""
    text = traceparent if isinstance(traceparent, str) else traceparent.decode("ascii", "replace")
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    # Later versions may append fields. Version 00 has none, and ff is forbidden.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id or not int(flags, 16) & _SAMPLED_FLAG:
        return None
    return TraceContext(trace_id, span_id, tracestate if len(tracestate) <= TRACESTATE_MAX else "")


def marked(data: bytes | bytearray, mark: bytes, start: int = 0) -> tuple[TraceContext, ...]:
    """Return the contexts behind each occurrence of `mark`, at most CONTEXTS_MAX.

    `mark` is how a format encodes the name `traceparent` and the length of its value. So bytes that merely look like
    one in a message's value give at worst a span too many, and only with a whole, valid context.
    """
    found: list[TraceContext] = []
    at = data.find(mark, start)
    while at >= 0 and len(found) < CONTEXTS_MAX:
        at += len(mark)
        context = parsed(data[at : at + TRACEPARENT_SIZE])
        if context is not None:
            found.append(context)
        at = data.find(mark, at)
    return tuple(found)

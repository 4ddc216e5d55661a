"""Refuses ambiguous request heads before they are acted on. Pure.

A proxy and this server could parse such a head differently. One of them would then take for a body what the other takes
for the next request (request smuggling; RFC 9112, 6.3 and 11.2). h11 is as lenient as the RFC allows. No proper client
needs that.
"""

import re
from typing import Final

_HEAD_END: Final = re.compile(rb"\n\r?\n")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")


class AmbiguousRequest(Exception):
    """The head is refused. The message says why; it completes a sentence."""


def check_head(received: bytes) -> None:
    """Check the request head at the start of `received`, if it is complete.

    Raises:
        AmbiguousRequest: neither the head nor anything after it may be acted on.
    """
    end = _HEAD_END.search(received)
    if end is None:
        return
    lines = received[: end.end()].split(b"\n")[:-2]
    if not all(line.endswith(b"\r") for line in lines) or end.group() != b"\n\r\n":
        raise AmbiguousRequest("its lines must end in CR LF")
    request_line, *fields = (line[:-1] for line in lines)
    lengths, codings = [], []
    for field in fields:
        if field[:1] in {b" ", b"\t"}:
            raise AmbiguousRequest("a header is continued on the next line")
        name, _, value = field.partition(b":")
        if _CONTROL.search(value):
            raise AmbiguousRequest("a header holds control characters")
        if name.lower() == b"content-length":
            lengths.append(value.strip(b" \t"))
        elif name.lower() == b"transfer-encoding":
            codings.append(value)
    if len(lengths) > 1:
        raise AmbiguousRequest("it has several Content-Length headers")
    if lengths and not _NUMBER.fullmatch(lengths[0]):
        raise AmbiguousRequest("its Content-Length is not a number of bytes")
    if lengths and codings:
        raise AmbiguousRequest("it has both Content-Length and Transfer-Encoding")
    if codings and request_line.endswith(b"HTTP/1.0"):
        raise AmbiguousRequest("it has Transfer-Encoding, which HTTP/1.0 does not have")

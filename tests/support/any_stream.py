"""Pairs of streams in memory, plain and encrypted, for code that must work over any stream.

The encrypted pair needs no certificate, because its ciphers do not authenticate. They are only for tests.
"""

import ssl
from collections.abc import Callable

import trio
from trio.testing import memory_stream_pair

StreamPair = tuple[trio.abc.Stream, trio.abc.Stream]


def plain_pair() -> StreamPair:
    """Return the two ends of a connection: the broker's, and the client's."""
    return memory_stream_pair()


def encrypted_pair(transports: Callable[[], StreamPair] = memory_stream_pair) -> StreamPair:
    """Return the same pair with TLS over another pair of streams. The first use makes the handshake."""
    near, far = transports()
    return (
        trio.SSLStream(near, _context(ssl.PROTOCOL_TLS_SERVER), server_side=True),
        trio.SSLStream(far, _context(ssl.PROTOCOL_TLS_CLIENT)),
    )


def _context(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH:@SECLEVEL=0")
    return context

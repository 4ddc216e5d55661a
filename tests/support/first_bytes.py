"""What clients send first, by protocol."""

import ssl
from typing import Final

from tests.support.kafka_requests import REQUESTS, framed
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.protocols import SpokenProtocol
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command


def _hello() -> bytes:
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake needs an answer")


FIRST_BYTES: Final = {
    SpokenProtocol.PULSAR: encode_command(commands.connect("Pulsar-CPP-v3.8.0")),
    SpokenProtocol.KAFKA: framed(next(r.data for r in REQUESTS if r.key == ApiKey.API_VERSIONS)),
    SpokenProtocol.HTTP: b"GET /admin/v2/clusters HTTP/1.1\r\nhost: localhost\r\n\r\n",
    SpokenProtocol.TLS: _hello(),
}
"""A TLS client's first bytes come from Python's own TLS, and a Kafka client's from a recording."""

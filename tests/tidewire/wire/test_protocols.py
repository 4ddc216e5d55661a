"""Which protocol a stream's first bytes belong to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.first_bytes import FIRST_BYTES
from tests.support.kafka_requests import REQUESTS, framed
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.protocols import SpokenProtocol, protocol_of
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command

ENOUGH = {
    SpokenProtocol.TLS: 2,
    SpokenProtocol.HTTP: 4,
    SpokenProtocol.KAFKA: 8,
    SpokenProtocol.PULSAR: 10,
}


@pytest.mark.parametrize("spoken", SpokenProtocol)
def test_a_protocol_is_known_as_soon_as_enough_bytes_are_there(spoken: SpokenProtocol) -> None:
    first = FIRST_BYTES[spoken]
    for size in range(len(first)):
        assert protocol_of(first[:size]) == (spoken if size >= ENOUGH[spoken] else None)


@pytest.mark.parametrize("asked", [r for r in REQUESTS if r.key == ApiKey.API_VERSIONS], ids=lambda asked: asked.client)
def test_recorded_clients_of_kafka_are_known(asked: object) -> None:
    assert isinstance(asked, type(REQUESTS[0]))
    assert protocol_of(framed(asked.data)) is SpokenProtocol.KAFKA


@given(st.text(max_size=200), st.binary(max_size=300), st.none() | st.text(max_size=100))
def test_every_client_of_pulsar_is_known(version: str, auth_data: bytes, proxied: str | None) -> None:
    first = encode_command(commands.connect(version, auth_data=auth_data, proxy_to_broker_url=proxied))
    assert protocol_of(first) is SpokenProtocol.PULSAR


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_every_method_of_http_is_known(method: str) -> None:
    assert protocol_of(f"{method} / HTTP/1.1".encode()) is SpokenProtocol.HTTP


def test_other_bytes_are_no_protocol() -> None:
    for first in (bytes(100), b"\xff" * 100, b"hello, broker", framed(bytes(20))):
        assert protocol_of(first) is None

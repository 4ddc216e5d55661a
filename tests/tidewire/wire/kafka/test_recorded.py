"""Requests of real clients, as they were sent and damaged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.kafka_requests import REQUESTS, Recorded, framed
from tests.tidewire.wire.kafka.messages import APIS
from tidewire.wire.kafka.api_keys import ApiKey, is_flexible
from tidewire.wire.kafka.codec import Input, Pieces, decoder, encoder
from tidewire.wire.kafka.codec_steps import decode_steps
from tidewire.wire.kafka.errors import RequestError
from tidewire.wire.kafka.frames import Request, RequestDecoder
from tidewire.wire.steps import finished

KNOWN = {api.key: api.request for api in APIS}
BYTES_MAX = 1_000_000


def read(data: bytes) -> list[Request]:
    """The requests in these bytes."""
    decoder_ = RequestDecoder(BYTES_MAX)
    decoder_.feed(data)
    found = []
    while (request := decoder_.next_request()) is not None:
        found.append(request)
    return found


@pytest.mark.parametrize("recorded", REQUESTS, ids=lambda one: f"{one.client}-{one.key}-{one.version}")
def test_what_clients_send_is_read_and_written_alike(recorded: Recorded) -> None:
    """FACTS-kafka: every byte means something to us, so the same bytes come back."""
    (request,) = read(framed(recorded.data))
    assert (request.api_key, request.version) == (recorded.key, recorded.version)
    start = request.body.at
    flexible = is_flexible(request.api_key, request.version)
    message_class = KNOWN[ApiKey(request.api_key)]
    message = decoder(message_class, request.version, is_flexible=flexible)(request.body)
    pieces: Pieces = []
    encoder(message_class, request.version, is_flexible=flexible)(pieces, message)
    assert b"".join(pieces) == recorded.data[start : request.body.at]
    assert finished(
        decode_steps(message_class, request.version, Input(recorded.data, start), is_flexible=flexible)
    ) == (message)


@settings(max_examples=examples(500))
@given(
    recorded=st.sampled_from(REQUESTS),
    changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, 200),
    tail=st.binary(max_size=20),
    claims=st.none() | st.integers(0, 2**32 - 1),
)
def test_no_damage_raises_anything_but_a_refusal(
    recorded: Recorded, changes: list[tuple[int, int]], cut: int | None, tail: bytes, claims: int | None
) -> None:
    """E8: whatever is changed in a real request, it is read or refused by name."""
    data = bytearray(recorded.data)
    for at, value in changes:
        data[at % len(data)] = value
    damaged = bytes(data[:cut]) + tail
    head = framed(damaged)[:4] if claims is None else claims.to_bytes(4)
    try:
        for request in read(head + damaged):
            message = KNOWN.get(request.api_key)  # type: ignore[call-overload]
            if message is not None:
                flexible = is_flexible(request.api_key, request.version)
                decoder(message, request.version, is_flexible=flexible)(request.body)
    except RequestError:
        pass

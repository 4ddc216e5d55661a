"""Large messages in steps: the same bytes and the same errors as at once."""

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.tidewire.wire.kafka.messages import APIS, drawn
from tidewire.wire.kafka.api_keys import is_flexible
from tidewire.wire.kafka.codec import Input, decoder, encoder
from tidewire.wire.kafka.codec_steps import ELEMENTS_AT_ONCE, decode_steps, encode_steps
from tidewire.wire.kafka.errors import RequestError
from tidewire.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidewire.wire.steps import Steps, finished

VERSIONS = [(api, version) for api in APIS for version in range(api.lowest, api.highest + 1)]

LARGE = {
    "one large array": (MetadataRequest(tuple(MetadataRequestTopic(name="t") for _ in range(9_000))), 12),
    "one large array within another": (FetchRequest(topics=(FetchTopic("t", (FetchPartition(),) * 9_000),)), 11),
    "many small arrays": (FetchRequest(topics=(FetchTopic("t", (FetchPartition(),) * 2),) * 3_000), 12),
}


def pauses_in(steps: Steps[Any]) -> tuple[int, Any]:
    for number in count():
        try:
            next(steps)
        except StopIteration as end:
            return number, end.value
    raise AssertionError("it ends with its result")


def bytes_of(message: Any, version: int, *, flexible: bool) -> bytes:
    pieces: list[bytes] = []
    encoder(type(message), version, is_flexible=flexible)(pieces, message)
    return b"".join(pieces)


@settings(max_examples=examples(300))
@given(data=st.data())
def test_steps_read_and_write_what_is_read_and_written_at_once(data: st.DataObject) -> None:
    """E8: also of changed bytes, with the same kind of error."""
    api, version = data.draw(st.sampled_from(VERSIONS))
    flexible = is_flexible(api.key, version)
    message = data.draw(drawn(data.draw(st.sampled_from([api.request, api.response])), version))
    written = bytearray(bytes_of(message, version, flexible=flexible))
    pieces: list[bytes] = []
    finished(encode_steps(pieces, message, version, is_flexible=flexible))
    assert b"".join(pieces) == written
    for _ in range(data.draw(st.integers(0, 3))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    outcomes: list[Any] = []
    for in_steps in (False, True):
        given_ = Input(bytes(written))
        try:
            if in_steps:
                found = finished(decode_steps(type(message), version, given_, is_flexible=flexible))
            else:
                found = decoder(type(message), version, is_flexible=flexible)(given_)
            outcomes.append((found, given_.at))
        except RequestError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("what", LARGE)
def test_a_large_message_has_pauses(what: str) -> None:
    """E7: other tasks have a turn at least after every few hundred elements, whatever array they are in."""
    message, version = LARGE[what]
    pieces: list[bytes] = []
    pauses, _none = pauses_in(encode_steps(pieces, message, version, is_flexible=version == 12))
    assert pauses == 9_000 // ELEMENTS_AT_ONCE
    given_ = Input(b"".join(pieces))
    pauses, again = pauses_in(decode_steps(type(message), version, given_, is_flexible=version == 12))
    assert pauses == 9_000 // ELEMENTS_AT_ONCE
    assert again == message

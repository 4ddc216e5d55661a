"""Draws messages of Kafka's protocol by what their classes declare, and lists all of them."""

import string as characters
from dataclasses import fields as dataclass_fields
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.fields import METADATA_KEY, FieldSpec, Kind
from tidewire.wire.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidewire.wire.kafka.messages.fetch import FetchRequest, FetchResponse
from tidewire.wire.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse
from tidewire.wire.kafka.messages.produce import ProduceRequest, ProduceResponse


class Api(NamedTuple):
    """A request and its response, in all versions that both we and the oracle know."""

    key: ApiKey
    request: type[Any]
    response: type[Any]
    lowest: int
    highest: int


APIS: Final = (
    Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse, 3, 12),
    Api(ApiKey.FETCH, FetchRequest, FetchResponse, 4, 12),
    Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse, 1, 10),
    Api(ApiKey.METADATA, MetadataRequest, MetadataResponse, 0, 13),
    Api(ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse, 0, 4),
)

_BITS: Final = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_ERROR_CODES: Final = (-1, 0, 1, 3, 35, 87)
# The oracle takes these for durations, which it keeps in milliseconds and does not allow to be negative.
_MILLISECONDS: Final = ("timeout_ms", "max_wait_ms", "throttle_time_ms")
# These are moments for the oracle: whole milliseconds that its clock can name, or -1.
_MOMENTS: Final = ("log_append_time_ms", "timestamp")
# For the oracle, all zeros mean that there is no id.


def drawn(message: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Messages of a class that differ from its defaults only in fields that the version has."""
    specs = {each.name: each.metadata[METADATA_KEY] for each in dataclass_fields(message)}
    return st.builds(
        message, **{name: _values(name, spec, version) for name, spec in specs.items() if spec.is_in(version)}
    )


def _values(name: str, spec: FieldSpec, version: int) -> st.SearchStrategy[Any]:
    values = _plain_values(name, spec, version)
    return st.none() | values if spec.is_nullable(version) else values


def _plain_values(name: str, spec: FieldSpec, version: int) -> st.SearchStrategy[Any]:
    if name == "error_code":
        return st.sampled_from(_ERROR_CODES)
    if name in _MILLISECONDS:
        return st.integers(0, 2**31 - 1)
    if name in _MOMENTS:
        return st.integers(0, 4_000_000_000_000)
    if spec.kind in _BITS:
        half = 1 << (_BITS[spec.kind] - 1)
        return st.integers(-half, half - 1)
    match spec.kind:
        case Kind.BOOL:
            return st.booleans()
        case Kind.UUID:
            return st.binary(min_size=16, max_size=16)
        case Kind.STRING:
            return st.text(characters.ascii_letters + "äß中\n", max_size=200)
        case Kind.BYTES:
            return st.binary(max_size=300)
        case Kind.RECORDS:
            return st.binary(max_size=300).map(lambda data: (data,))
        case Kind.STRUCT:
            assert isinstance(spec.element, type)
            return drawn(spec.element, version)
        case _:
            element = spec.element
            assert element is not None
            each = _plain_values("", element, version) if isinstance(element, FieldSpec) else drawn(element, version)
            return st.lists(each, max_size=3).map(tuple)

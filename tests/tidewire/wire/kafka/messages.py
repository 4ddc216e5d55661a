"""Draws messages of Kafka's protocol by what their classes declare, and lists all of them."""

import string as characters
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.fields import METADATA_KEY, FieldSpec, Kind
from tidewire.wire.kafka.messages import (
    administration,
    api_versions,
    fetch,
    groups,
    list_offsets,
    metadata,
    offsets,
    produce,
    topics,
    transactions,
)


class Api(NamedTuple):
    """A request and its response, in all versions that both we and the oracle know."""

    key: ApiKey
    request: type[Any]
    response: type[Any]
    lowest: int
    highest: int


APIS: Final = (
    Api(ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse, 3, 12),
    Api(ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse, 4, 12),
    Api(ApiKey.LIST_OFFSETS, list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse, 1, 11),
    Api(ApiKey.METADATA, metadata.MetadataRequest, metadata.MetadataResponse, 0, 13),
    Api(ApiKey.OFFSET_COMMIT, offsets.OffsetCommitRequest, offsets.OffsetCommitResponse, 2, 9),
    Api(ApiKey.OFFSET_FETCH, offsets.OffsetFetchRequest, offsets.OffsetFetchResponse, 1, 9),
    Api(ApiKey.FIND_COORDINATOR, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse, 0, 6),
    Api(ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse, 0, 9),
    Api(ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse, 0, 4),
    Api(ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse, 0, 5),
    Api(ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse, 0, 5),
    Api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, 0, 6),
    Api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse, 0, 5),
    Api(ApiKey.API_VERSIONS, api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse, 0, 4),
    Api(ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse, 2, 7),
    Api(ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse, 1, 6),
    Api(ApiKey.DELETE_RECORDS, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse, 0, 2),
    Api(ApiKey.INIT_PRODUCER_ID, transactions.InitProducerIdRequest, transactions.InitProducerIdResponse, 0, 5),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, topics.OffsetForLeaderEpochRequest, topics.OffsetForLeaderEpochResponse, 2, 4),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        transactions.AddPartitionsToTxnRequest,
        transactions.AddPartitionsToTxnResponse,
        0,
        5,
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse, 0, 4),
    Api(ApiKey.END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse, 0, 5),
    Api(ApiKey.WRITE_TXN_MARKERS, transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse, 1, 1),
    Api(ApiKey.TXN_OFFSET_COMMIT, transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse, 0, 5),
    Api(ApiKey.DESCRIBE_CONFIGS, administration.DescribeConfigsRequest, administration.DescribeConfigsResponse, 1, 4),
    Api(ApiKey.ALTER_CONFIGS, administration.AlterConfigsRequest, administration.AlterConfigsResponse, 0, 2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, administration.DescribeLogDirsRequest, administration.DescribeLogDirsResponse, 1, 4),
    Api(ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse, 0, 3),
    Api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse, 0, 2),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        administration.IncrementalAlterConfigsRequest,
        administration.AlterConfigsResponse,
        0,
        1,
    ),
    Api(ApiKey.OFFSET_DELETE, offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse, 0, 0),
    Api(ApiKey.DESCRIBE_CLUSTER, administration.DescribeClusterRequest, administration.DescribeClusterResponse, 0, 2),
    Api(ApiKey.DESCRIBE_PRODUCERS, transactions.DescribeProducersRequest, transactions.DescribeProducersResponse, 0, 0),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        transactions.DescribeTransactionsRequest,
        transactions.DescribeTransactionsResponse,
        0,
        0,
    ),
    Api(ApiKey.LIST_TRANSACTIONS, transactions.ListTransactionsRequest, transactions.ListTransactionsResponse, 0, 2),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        topics.DescribeTopicPartitionsRequest,
        topics.DescribeTopicPartitionsResponse,
        0,
        0,
    ),
)

_BITS: Final = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_ERROR_CODES: Final = (-1, 0, 1, 3, 35, 87)
# The oracle takes these for durations, which it keeps in milliseconds and does not allow to be negative.
_MILLISECONDS: Final = (
    "timeout_ms",
    "max_wait_ms",
    "throttle_time_ms",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "retention_time_ms",
    "transaction_timeout_ms",
)
# These are moments for the oracle: whole milliseconds that its clock can name, or -1.
_MOMENTS: Final = ("log_append_time_ms", "timestamp", "transaction_start_time_ms")


class Values(NamedTuple):
    """What fields are drawn from."""

    text: st.SearchStrategy[str] = st.text(characters.ascii_letters + "äß中\n", max_size=200)
    data: st.SearchStrategy[bytes] = st.binary(max_size=300)
    """Bytes, and records."""
    numbers: Callable[[int], st.SearchStrategy[int]] = lambda bits: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    """Whole numbers of so many bits."""


USUAL: Final = Values()


def drawn(message: type[Any], version: int, values: Values = USUAL) -> st.SearchStrategy[Any]:
    """Messages of a class that differ from its defaults only in fields that the version has."""
    specs = {each.name: each.metadata[METADATA_KEY] for each in dataclass_fields(message)}
    return st.builds(
        message, **{name: _values(name, spec, version, values) for name, spec in specs.items() if spec.is_in(version)}
    )


def _values(name: str, spec: FieldSpec, version: int, values: Values) -> st.SearchStrategy[Any]:
    found = _plain_values(name, spec, version, values)
    return st.none() | found if spec.is_nullable(version) else found


def _plain_values(name: str, spec: FieldSpec, version: int, values: Values) -> st.SearchStrategy[Any]:
    if name.endswith("error_code"):
        return st.sampled_from(_ERROR_CODES)
    if values is USUAL and name in _MILLISECONDS:
        return st.integers(0, 2**31 - 1)
    if values is USUAL and name in _MOMENTS:
        return st.integers(0, 4_000_000_000_000)
    if spec.kind in _BITS:
        return values.numbers(_BITS[spec.kind])
    match spec.kind:
        case Kind.BOOL:
            return st.booleans()
        case Kind.UUID:
            return st.binary(min_size=16, max_size=16)
        case Kind.STRING:
            return values.text
        case Kind.BYTES:
            return values.data
        case Kind.RECORDS:
            return values.data.map(lambda data: (data,))
        case Kind.STRUCT:
            assert isinstance(spec.element, type)
            return drawn(spec.element, version, values)
        case _:
            element = spec.element
            assert element is not None
            if isinstance(element, FieldSpec):
                each = _plain_values("", element, version, values)
            else:
                each = drawn(element, version, values)
            return st.lists(each, max_size=3).map(tuple)

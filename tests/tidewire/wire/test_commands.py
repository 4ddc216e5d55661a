import inspect
from collections.abc import Callable

import pytest

from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import encode_scalable_topic_update
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST, message_id

CODE = pb.ServerError.TopicNotFound
MAX = 2**64 - 1
TXN = (3, 1 << 62 | 7)
GROUP = pb.TransactionGroup(application="a", batch=MAX)
SCHEMA = pb.Schema(name="s", schema_data=b"", type=pb.Schema.Type.String)
SEGMENTS = [pb.ScalableAssignedSegment(segment_id=1, hash_start=0, hash_end=65535, segment_topic="segment://t/n/x/0")]
DAG = pb.ScalableTopicDAG(
    epoch=1,
    segments=[
        pb.SegmentInfoProto(
            segment_id=0,
            hash_start=0,
            hash_end=65535,
            state=pb.SegmentState.SEALED,
            child_ids=[1, 2],
            created_at_epoch=0,
            sealed_at_epoch=1,
            created_at_ms=1,
        )
    ],
    segment_brokers=[pb.SegmentBrokerAddress(segment_id=1, broker_url="pulsar://b:6650")],
)

# One call of each constructor, and the type of what it makes.
CALLS: list[tuple[Callable[..., pb.BaseCommand], tuple[object, ...], dict[str, object], str]] = [
    (commands.connect, ("test",), {"proxy_to_broker_url": ""}, "CONNECT"),
    (commands.connected, ("test",), {"features": pb.FeatureFlags()}, "CONNECTED"),
    (commands.auth_challenge, ("test", "token", b"?"), {}, "AUTH_CHALLENGE"),
    (commands.auth_response, ("test", "token", b"!"), {}, "AUTH_RESPONSE"),
    (commands.ping, (), {}, "PING"),
    (commands.pong, (), {}, "PONG"),
    (commands.success, (MAX,), {"schema": SCHEMA}, "SUCCESS"),
    (commands.error, (MAX, CODE, "no"), {}, "ERROR"),
    (commands.consumer_error, (MAX, CODE, "damaged"), {}, "ERROR"),
    (commands.lookup, ("t", 1), {"authoritative": True}, "LOOKUP"),
    (commands.lookup_connect, (1, "pulsar://b:6650"), {}, "LOOKUP_RESPONSE"),
    (commands.lookup_redirect, (1, "pulsar://b:6650"), {"broker_url_tls": "pulsar+ssl://b"}, "LOOKUP_RESPONSE"),
    (commands.lookup_failed, (1, CODE, "no"), {}, "LOOKUP_RESPONSE"),
    (commands.partitioned_metadata, ("t", 1), {"auto_create": False}, "PARTITIONED_METADATA"),
    (commands.partitioned_metadata_response, (1, 4), {}, "PARTITIONED_METADATA_RESPONSE"),
    (commands.partitioned_metadata_failed, (1, CODE, "no"), {}, "PARTITIONED_METADATA_RESPONSE"),
    (commands.topics_of_namespace, (1, "t/n"), {"topics_pattern": ".*"}, "GET_TOPICS_OF_NAMESPACE"),
    (commands.topics_of_namespace_response, (1, ["a", "b"]), {}, "GET_TOPICS_OF_NAMESPACE_RESPONSE"),
    (commands.watch_topic_list, (1, 2, "t/n", ".*"), {}, "WATCH_TOPIC_LIST"),
    (commands.watch_topic_list_success, (1, 2, ["a"], "hash"), {}, "WATCH_TOPIC_LIST_SUCCESS"),
    (commands.watch_topic_update, (2, ["a"], ["b"], "hash"), {}, "WATCH_TOPIC_UPDATE"),
    (commands.watch_topic_list_close, (1, 2), {}, "WATCH_TOPIC_LIST_CLOSE"),
    (commands.get_schema, (1, "t"), {"version": b"1"}, "GET_SCHEMA"),
    (commands.get_schema_response, (1, SCHEMA, b"1"), {}, "GET_SCHEMA_RESPONSE"),
    (commands.get_schema_failed, (1, CODE, "no"), {}, "GET_SCHEMA_RESPONSE"),
    (commands.get_or_create_schema, (1, "t", SCHEMA), {}, "GET_OR_CREATE_SCHEMA"),
    (commands.get_or_create_schema_response, (1, b"1"), {}, "GET_OR_CREATE_SCHEMA_RESPONSE"),
    (commands.get_or_create_schema_failed, (1, CODE, "no"), {}, "GET_OR_CREATE_SCHEMA_RESPONSE"),
    (commands.producer, ("t", 1, 2), {"properties": {"k": "v"}, "schema": SCHEMA}, "PRODUCER"),
    (commands.producer_success, (2, "p"), {"schema_version": bytes(8)}, "PRODUCER_SUCCESS"),
    (commands.send, (1, 2), {"num_messages": 3, "highest_sequence_id": 4, "txn": TXN}, "SEND"),
    (commands.send_receipt, (1, 2, -1, -1), {"highest_sequence_id": 4}, "SEND_RECEIPT"),
    (commands.send_error, (1, 2, CODE, "no"), {}, "SEND_ERROR"),
    (commands.close_producer, (1,), {}, "CLOSE_PRODUCER"),
    (commands.subscribe, ("t", "s", 1, 2), {"start": message_id(-1, -1), "durable": False}, "SUBSCRIBE"),
    (commands.flow, (1, 1000), {}, "FLOW"),
    (commands.message, (1, 5, 6), {"redelivery_count": 2, "ack_set": [-1], "consumer_epoch": 0}, "MESSAGE"),
    (commands.ack, (1, [message_id(5, 6)]), {"txn": TXN, "request_id": MAX}, "ACK"),
    (commands.ack_response, (1, 2), {"txn": TXN, "error": CODE, "message": "no"}, "ACK_RESPONSE"),
    (commands.redeliver, (1, [message_id(5, 6)]), {"consumer_epoch": 1}, "REDELIVER_UNACKNOWLEDGED_MESSAGES"),
    (commands.active_consumer_change, (1,), {"is_active": True}, "ACTIVE_CONSUMER_CHANGE"),
    (commands.reached_end_of_topic, (1,), {}, "REACHED_END_OF_TOPIC"),
    (commands.seek, (1, 2), {"publish_time_ms": 3}, "SEEK"),
    (commands.unsubscribe, (1, 2), {"force": True}, "UNSUBSCRIBE"),
    (commands.close_consumer, (1, 2), {}, "CLOSE_CONSUMER"),
    (commands.get_last_message_id, (1, 2), {}, "GET_LAST_MESSAGE_ID"),
    (commands.get_last_message_id_response, (2, message_id(5, -1)), {}, "GET_LAST_MESSAGE_ID_RESPONSE"),
    (commands.consumer_stats, (1, 2), {}, "CONSUMER_STATS"),
    (
        commands.consumer_stats_response,
        (2,),
        {"name": "c", "sub_type": "Shared", "available_permits": -3, "unacked_messages": 1, "msg_backlog": 2},
        "CONSUMER_STATS_RESPONSE",
    ),
    (commands.consumer_stats_failed, (2, CODE, "no"), {}, "CONSUMER_STATS_RESPONSE"),
    (commands.watch_tc_assignments, (1,), {}, "WATCH_TC_ASSIGNMENTS"),
    (commands.watch_tc_assignments_update, (1, 16, [pb.TcAssignment(tc_id=0)]), {}, "WATCH_TC_ASSIGNMENTS_UPDATE"),
    (commands.watch_tc_assignments_failed, (1, CODE, "no"), {}, "WATCH_TC_ASSIGNMENTS_UPDATE"),
    (commands.watch_tc_assignments_close, (1,), {}, "WATCH_TC_ASSIGNMENTS_CLOSE"),
    (commands.tc_client_connect, (1, 15), {}, "TC_CLIENT_CONNECT_REQUEST"),
    (commands.tc_client_connect_response, (1,), {"error": CODE, "message": "no"}, "TC_CLIENT_CONNECT_RESPONSE"),
    (commands.new_txn, (1, 15, 30_000), {"group": GROUP}, "NEW_TXN"),
    (commands.new_txn_response, (1, TXN), {}, "NEW_TXN_RESPONSE"),
    (commands.add_partition_to_txn, (1, TXN, ["t"]), {}, "ADD_PARTITION_TO_TXN"),
    (commands.add_partition_to_txn_response, (1, TXN), {}, "ADD_PARTITION_TO_TXN_RESPONSE"),
    (commands.add_subscription_to_txn, (1, TXN, [("t", "s")]), {}, "ADD_SUBSCRIPTION_TO_TXN"),
    (commands.add_subscription_to_txn_response, (1, TXN), {}, "ADD_SUBSCRIPTION_TO_TXN_RESPONSE"),
    (commands.end_txn, (1, TXN), {"commit": True}, "END_TXN"),
    (commands.end_group, (1, GROUP, [TXN]), {"commit": True}, "END_TXN"),
    (commands.end_group_response, (1, pb.GroupState.APPLIED), {}, "END_TXN_RESPONSE"),
    (commands.end_txn_response, (1, TXN), {"error": CODE, "message": "no"}, "END_TXN_RESPONSE"),
    (commands.scalable_topic_lookup, (1, "topic://t/n/x"), {}, "SCALABLE_TOPIC_LOOKUP"),
    (commands.scalable_topic_update, (1, DAG), {"resolved_topic_name": "topic://t/n/x"}, "SCALABLE_TOPIC_UPDATE"),
    (commands.scalable_topic_failed, (1, CODE, "no"), {}, "SCALABLE_TOPIC_UPDATE"),
    (commands.scalable_topic_close, (1,), {}, "SCALABLE_TOPIC_CLOSE"),
    (commands.scalable_topic_subscribe, (1, "topic://t/n/x", "s", "c", 2), {}, "SCALABLE_TOPIC_SUBSCRIBE"),
    (commands.scalable_topic_subscribe_response, (1, 7, SEGMENTS), {}, "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE"),
    (commands.scalable_topic_subscribe_failed, (1, CODE, "no"), {}, "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE"),
    (commands.scalable_topic_assignment_update, (2, 7, SEGMENTS), {}, "SCALABLE_TOPIC_ASSIGNMENT_UPDATE"),
    (commands.watch_scalable_topics, (1, "t/n"), {"property_filters": {"k": "v"}}, "WATCH_SCALABLE_TOPICS"),
    (commands.watch_scalable_topics_snapshot, (1, ["a"]), {}, "WATCH_SCALABLE_TOPICS_UPDATE"),
    (commands.watch_scalable_topics_diff, (1, ["a"], []), {}, "WATCH_SCALABLE_TOPICS_UPDATE"),
    (commands.watch_scalable_topics_failed, (1, CODE, "no"), {}, "WATCH_SCALABLE_TOPICS_UPDATE"),
    (commands.watch_scalable_topics_close, (1,), {}, "WATCH_SCALABLE_TOPICS_CLOSE"),
]


@pytest.mark.parametrize(
    ("make", "positional", "named", "kind"), CALLS, ids=lambda part: getattr(part, "__name__", None)
)
def test_a_command_arrives_as_it_was_made(
    make: Callable[..., pb.BaseCommand], positional: tuple[object, ...], named: dict[str, object], kind: str
) -> None:
    made = make(*positional, **named)
    assert pb.BaseCommand.Type.Name(made.type) == kind
    has_payload = kind in ("SEND", "MESSAGE")
    decoder = FrameDecoder()
    decoder.feed(encode_payload_command(made, b"payload") if has_payload else encode_command(made))
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.command == made
    assert len(made.ListFields()) == 2, "a command has its type and the one member of that type"


def test_every_constructor_is_shown() -> None:
    functions = [made for made in map(commands.__dict__.get, commands.__all__) if inspect.isfunction(made)]
    constructors = {made.__name__ for made in functions if inspect.signature(made).return_annotation is pb.BaseCommand}
    assert constructors == {make.__name__ for make, *_ in CALLS}


def test_a_broker_says_what_scalable_topics_need() -> None:
    flags = commands.connected("test").connected.feature_flags
    assert flags.supports_scalable_topics
    assert flags.supports_tc_metadata_discovery
    assert commands.connected("test").connected.max_message_size == MAX_MESSAGE_SIZE
    assert commands.connected("test").connected.protocol_version == 21


def test_a_close_the_client_did_not_ask_for_has_the_request_id_of_none() -> None:
    assert commands.close_producer(1).close_producer.request_id == NO_REQUEST
    assert commands.close_consumer(1).close_consumer.request_id == NO_REQUEST


def test_ids_of_minus_one_are_all_ones() -> None:
    receipt = commands.send_receipt(1, 2, -1, -1).send_receipt.message_id
    assert (receipt.ledger_id, receipt.entry_id) == (MAX, MAX)
    sent = commands.message(1, -1, -1).message.message_id
    assert (sent.ledger_id, sent.entry_id, sent.partition) == (MAX, MAX, -1)
    assert sent.HasField("partition")


def test_an_absent_option_is_not_sent() -> None:
    assert [field.name for field, _ in commands.message(1, 5, 6).message.ListFields()] == ["consumer_id", "message_id"]
    assert [field.name for field, _ in commands.ack(1, []).ack.ListFields()] == ["consumer_id", "ack_type"]
    assert not commands.new_txn_response(1, TXN).new_txn_response.HasField("error")
    assert not commands.send(1, 2).send.HasField("txnid_most_bits")


def test_a_name_the_user_gave_is_told_from_one_the_broker_is_to_give() -> None:
    assert commands.producer("t", 1, 2, name="mine").producer.user_provided_producer_name
    assert not commands.producer("t", 1, 2, name="given", is_generated=True).producer.user_provided_producer_name
    unnamed = commands.producer("t", 1, 2).producer
    assert not unnamed.user_provided_producer_name
    assert not unnamed.HasField("producer_name")


def test_transaction_commands_always_say_which_coordinator() -> None:
    assert commands.new_txn(1, 0, 1).new_txn.scalable
    older = commands.end_txn(1, (0, 1), commit=False, scalable=False).end_txn
    assert older.HasField("scalable")
    assert not older.scalable
    assert older.txn_action == pb.TxnAction.ABORT


def test_seek_goes_to_one_place() -> None:
    with pytest.raises(AssertionError):
        commands.seek(1, 2)
    with pytest.raises(AssertionError):
        commands.seek(1, 2, to=message_id(1, 1), publish_time_ms=3)


@pytest.mark.parametrize("segments", [0, 1, 300])
def test_a_layout_that_is_encoded_already_makes_the_same_command(segments: int) -> None:
    """E7: the layout is encoded once for all sessions."""
    dag = pb.ScalableTopicDAG(epoch=7)
    for number in range(segments):
        dag.segments.add(
            segment_id=number, hash_start=0, hash_end=1, state=pb.ACTIVE, created_at_epoch=0, created_at_ms=1
        )
    whole = commands.scalable_topic_update(2**40, dag, resolved_topic_name="topic://public/default/x")
    decoder = FrameDecoder()
    decoder.feed(encode_scalable_topic_update(2**40, dag.SerializeToString(), "topic://public/default/x"))
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.command == whole
    assert decoder.buffered_bytes == 0

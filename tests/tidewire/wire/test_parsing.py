import pytest

from tests.tidewire.wire.protobufs import encoded_without, field
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.errors import MalformedCommand
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import CHILDREN_MAX, MEMBERS, parse_command


def test_every_command_type_has_the_member_of_its_number() -> None:
    assert len(MEMBERS) == len(pb.BaseCommand.Type.values())
    assert set(MEMBERS.values()) == {field.name for field in pb.BaseCommand.DESCRIPTOR.fields} - {"type"}
    assert MEMBERS[pb.BaseCommand.Type.LOOKUP] == "lookup_topic"
    assert MEMBERS[pb.BaseCommand.Type.WATCH_TC_ASSIGNMENTS_CLOSE] == "watch_tc_assignments_close"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("", id="nothing"),
        pytest.param("9201 00", id="no type"),
        pytest.param("0845 2200", id="type 69, which is none"),
        pytest.param("08ffffffff0f", id="a type of 32 bits"),
        pytest.param("08", id="cut short"),
        pytest.param("0a0106", id="the type as a string"),
        pytest.param("0806 32ff", id="a member beyond the end"),
        pytest.param("ffffffffffffffffffffff", id="no field number"),
    ],
)
def test_what_is_no_command_is_refused(data: str) -> None:
    with pytest.raises(MalformedCommand):
        parse_command(bytes.fromhex(data))


@pytest.mark.parametrize("kind", ["", "0845", "08ffffffff0f"])
def test_a_missing_or_unknown_type_does_not_pass_for_the_first_one(kind: str) -> None:
    """The parser drops an unknown enum value, and a missing one reads as the first, CONNECT."""
    connect = commands.connect("test").SerializeToString()
    assert connect[:2] == b"\x08\x02"
    with pytest.raises(MalformedCommand, match="no type"):
        parse_command(bytes.fromhex(kind) + connect[2:])


def test_a_command_without_its_member_is_refused() -> None:
    with pytest.raises(MalformedCommand, match="type SEND lacks"):
        parse_command(bytes.fromhex("0806"))
    flow_for_send = pb.BaseCommand(type=pb.BaseCommand.Type.SEND, flow=pb.CommandFlow(consumer_id=1, message_permits=1))
    with pytest.raises(MalformedCommand, match="type SEND lacks"):
        parse_command(flow_for_send.SerializeToString())


@pytest.mark.parametrize("name", ["producer_id", "sequence_id"])
def test_a_required_field_is_required(name: str) -> None:
    content = encoded_without(pb.CommandSend(producer_id=1, sequence_id=2), name)
    with pytest.raises(MalformedCommand, match="type SEND lacks"):
        parse_command(b"\x08\x06" + field(6, content))


def test_a_required_field_below_is_required() -> None:
    identity = encoded_without(pb.MessageIdData(ledger_id=1, entry_id=2), "entry_id")
    ack = bytes.fromhex("0801 1000") + field(3, identity)
    with pytest.raises(MalformedCommand, match="type ACK lacks"):
        parse_command(b"\x08\x0a" + field(10, ack))


def test_an_enum_value_nobody_knows_counts_as_absent() -> None:
    known = commands.ack(1, [], cumulative=True).SerializeToString()
    assert parse_command(known).ack.ack_type == pb.CommandAck.AckType.Cumulative
    with pytest.raises(MalformedCommand, match="type ACK lacks"):
        parse_command(known[:-1] + b"\x07")


def test_ping_and_pong_need_no_member() -> None:
    assert parse_command(bytes.fromhex("0812")).type == pb.BaseCommand.Type.PING
    assert parse_command(bytes.fromhex("0813")).type == pb.BaseCommand.Type.PONG


def test_a_field_nobody_knows_is_skipped() -> None:
    newer = commands.flow(1, 1000).SerializeToString() + bytes.fromhex("fa7f 03") + b"new"
    assert parse_command(newer).flow.message_permits == 1000


def test_a_message_nested_without_end_is_refused() -> None:
    """The parser's own depth limit stops it; there is no recursion in Python."""
    identity = bytes.fromhex("0801 1001")
    for _ in range(200):
        identity = bytes.fromhex("0801 1001") + field(7, identity)
    ack = bytes.fromhex("0801 1000") + field(3, identity)
    with pytest.raises(MalformedCommand, match="does not parse"):
        parse_command(b"\x08\x0a" + field(10, ack))


NOT_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(commands.lookup("@@", 1), id="a field"),
        pytest.param(commands.add_partition_to_txn(1, (1, 2), ["good", "@@"]), id="one of several"),
        pytest.param(
            commands.producer("t", 1, 1, schema=pb.Schema(name="@@", schema_data=b"", type=pb.Schema.Type.Bool)),
            id="in a message below",
        ),
        pytest.param(commands.producer("t", 1, 1, properties={"good": "g", "k": "@@"}), id="in a property"),
        pytest.param(commands.error(1, pb.ServerError.UnknownError, "@@"), id="in an answer"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(command: pb.BaseCommand) -> None:
    encoded = command.SerializeToString()
    assert parse_command(encoded) == command
    with pytest.raises(MalformedCommand, match="is not UTF-8"):
        parse_command(encoded.replace(b"@@", NOT_TEXT))


def test_bytes_may_be_any() -> None:
    connect = commands.connect("test", auth_data=NOT_TEXT)
    assert parse_command(connect.SerializeToString()).connect.auth_data == NOT_TEXT


@pytest.mark.parametrize("number", [CHILDREN_MAX, CHILDREN_MAX + 1])
def test_a_list_of_pairs_is_bounded(number: int) -> None:
    """E8: each pair is checked for bytes that are not text."""
    content = pb.CommandSubscribe(
        topic="t", subscription="s", sub_type=pb.CommandSubscribe.Shared, consumer_id=1, request_id=1
    )
    for _ in range(number):
        content.metadata.add(key="k", value="v")
    data = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=content).SerializeToString()
    if number == CHILDREN_MAX:
        assert len(parse_command(data).subscribe.metadata) == CHILDREN_MAX
    else:
        with pytest.raises(MalformedCommand, match=r"CommandSubscribe\.metadata has 10001 items"):
            parse_command(data)

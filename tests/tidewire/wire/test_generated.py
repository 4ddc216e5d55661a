from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from scripts import generate
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TYPES = {
    "int32": FieldDescriptor.TYPE_INT32,
    "int64": FieldDescriptor.TYPE_INT64,
    "uint32": FieldDescriptor.TYPE_UINT32,
    "uint64": FieldDescriptor.TYPE_UINT64,
}


def test_what_is_checked_in_is_what_the_source_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_every_run_gives_the_same_bytes() -> None:
    assert generate.generate(generate.ROOT) == generate.generate(generate.ROOT)


def test_every_file_names_its_source_first() -> None:
    first_lines = [text.splitlines()[0] for text in generate.generate(generate.ROOT).values()]
    for source in generate.SOURCES:
        assert sum(source in line for line in first_lines) == 2
    assert len(first_lines) == 2 * len(generate.SOURCES)


def test_a_file_that_differs_or_is_missing_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in generate.SOURCES:
        (tmp_path / source).parent.joinpath("generated").mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text((generate.ROOT / source).read_text())
    target = tmp_path / "tidewire" / "wire" / "pulsar" / "generated"
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (target / "PulsarApi_pb2.pyi").write_text("# edited\n")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert "PulsarApi_pb2.pyi is stale" in capsys.readouterr().out
    assert (target / "PulsarApi_pb2.pyi").read_text() == "# edited\n"


def test_classes_are_found_where_they_say_they_are() -> None:
    assert pb.BaseCommand.__module__ == "tidewire.wire.pulsar.generated.PulsarApi_pb2"


def test_only_the_type_of_a_command_is_required() -> None:
    assert [field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.is_required] == ["type"]


@pytest.mark.parametrize(
    ("field", "kind", "default"),
    [
        ("MessageIdData.ledger_id", "uint64", 0),
        ("MessageIdData.partition", "int32", -1),
        ("MessageIdData.batch_index", "int32", -1),
        ("MessageIdData.ack_set", "int64", []),
        ("CommandMessage.ack_set", "int64", []),
        ("CommandProducerSuccess.last_sequence_id", "int64", -1),
        ("CommandSend.num_messages", "int32", 1),
        ("CommandFlow.message_permits", "uint32", 0),
        ("MessageMetadata.num_messages_in_batch", "int32", 1),
        ("MessageMetadata.uncompressed_size", "uint32", 0),
        ("MessageMetadata.deliver_at_time", "int64", 0),
        ("SingleMessageMetadata.payload_size", "int32", 0),
        ("CommandEndTxn.txnid_least_bits", "uint64", 0),
        ("SegmentInfoProto.hash_end", "uint32", 0),
        ("SegmentInfoProto.parent_ids", "uint64", []),
    ],
)
def test_a_number_has_the_protocol_s_type(field: str, kind: str, default: object) -> None:
    message, name = field.split(".")
    descriptor = pb.DESCRIPTOR.message_types_by_name[message].fields_by_name[name]
    assert descriptor.type == TYPES[kind]
    assert descriptor.default_value == default
    assert not descriptor.is_packed


def test_defaults_that_are_true_stay_true() -> None:
    assert pb.CommandSubscribe().durable
    assert pb.CommandSubscribe().force_topic_creation
    assert pb.CommandGetTopicsOfNamespaceResponse().changed
    assert pb.CommandPartitionedTopicMetadata().metadata_auto_creation_enabled
    assert pb.CommandProducerSuccess().producer_ready

"""docs/pulsar-fields.md says how the broker treats every field of the protocol."""

import re
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.support.rooms import Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pulsar-fields.md"
ROW = re.compile(r"\| (?P<message>\w+) \| (?P<fields>`\w+`(?:, `\w+`)*) \| (?P<outcome>[a-z]+)(?P<why>[.:].*) \|")
OUTCOMES = {"served", "stored", "sent", "harmless", "refused", "unused"}
EXPLAINED = {"harmless", "refused", "unused"}

_ROWS = [match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))]
_FIELDS = [(row["message"], field.strip("`"), row["outcome"]) for row in _ROWS for field in row["fields"].split(", ")]


def test_every_field_stands_in_one_row() -> None:
    """E20: a new field of the protocol needs a decision."""
    described = Counter((message, field) for message, field, _outcome in _FIELDS)
    defined = {
        (name, field.name) for name, message in pb.DESCRIPTOR.message_types_by_name.items() for field in message.fields
    }
    assert sorted(described.keys() ^ defined) == []
    assert [twice for twice, count in described.items() if count > 1] == []


def test_what_is_not_served_is_explained() -> None:
    for row in _ROWS:
        assert row["outcome"] in OUTCOMES, row.group()
        assert row["outcome"] not in EXPLAINED or row["why"].startswith(": "), row.group()


@pytest.mark.parametrize(
    "member", [field for message, field, outcome in _FIELDS if (message, outcome) == ("BaseCommand", "refused")]
)
async def test_commands_that_are_refused_by_the_page_are(broker: Rooms, client: WireClient, member: str) -> None:
    """E20: the refusal has the command's name and the request's id, and the connection continues."""
    (kind,) = [kind for kind, name in MEMBERS.items() if name == member]
    command = pb.BaseCommand(type=pb.BaseCommand.Type.Name(kind))
    _fill(getattr(command, member))
    answer = await client.ask(command)
    refusal = getattr(answer, MEMBERS[answer.type])
    code, text = (
        (refusal.error_code, refusal.error_message)
        if answer.type == pb.BaseCommand.CONSUMER_STATS_RESPONSE
        else (refusal.error, refusal.message)
    )
    assert code != pb.UnknownError
    assert text
    await client.receives_nothing_more()


@pytest.mark.parametrize(
    "member", [field for message, field, outcome in _FIELDS if (message, outcome) == ("BaseCommand", "served")]
)
def test_commands_that_are_served_by_the_page_come_from_clients(member: str) -> None:
    assert member == "type" or not member.endswith(("_response", "_success", "_update", "_error", "_receipt"))


def _fill(message: Message) -> None:
    """Set the required fields to some value."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required:
            setattr(message, field.name, "public/default" if field.type == field.TYPE_STRING else 1)
    message.SetInParent()

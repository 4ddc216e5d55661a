"""`tidewire schemas` on both kinds of topic, against a broker in a separate process."""

import json
from pathlib import Path

from tests.tidewire.cli.conftest import CommandLine

CARRIER = '{"name": "carrier", "type": "string"}'
DELAY = '{"name": "delay", "type": ["null", "double"], "default": null}'


def record(*fields: str) -> str:
    return f'{{"type": "record", "name": "Flight", "fields": [{", ".join(fields)}]}}'


def test_versions_are_checked_created_listed_and_deleted(tidewire: CommandLine, each_kind: str, tmp_path: Path) -> None:
    topic = each_kind
    (tmp_path / "one.avsc").write_text(record(CARRIER))
    (tmp_path / "two.avsc").write_text(record(CARRIER, DELAY))
    (tmp_path / "other.avsc").write_text(record(CARRIER.replace("string", "long")))
    nothing = tidewire("schemas", "list", topic)
    assert (nothing.exit_code, nothing.stdout) == (0, "version  type  created  characters\n")
    assert nothing.stderr == (
        f"tidewire schemas: {topic} has no schema. Create one with `tidewire schemas create {topic} SCHEMA`.\n"
    )
    for version, name in enumerate(("one", "two")):
        schema = f"avro:{tmp_path / name}.avsc"
        assert tidewire.well("schemas", "check", topic, schema) == f"{topic} may get this schema\n"
        created = tidewire.well("schemas", "create", topic, schema)
        assert created == f"version {version} of {topic} has this schema\n"
        assert tidewire.well("schemas", "upload", topic, schema) == created, "the topic has it already"

    refused = tidewire("schemas", "check", topic, f"avro:{tmp_path / 'other.avsc'}", "--json")
    told = json.loads(refused.stdout)
    assert (refused.exit_code, told["topic"], told["isCompatible"]) == (1, topic, False)
    assert told["reason"]
    complaint = tidewire.complaint("schemas", "create", topic, f"avro:{tmp_path / 'other.avsc'}")
    assert complaint.startswith("tidewire schemas: ")

    views = json.loads(tidewire.well("schemas", "list", topic, "--json"))
    assert [(one["version"], one["type"]) for one in views] == [(0, "avro"), (1, "avro")]
    assert json.loads(views[0]["definition"]) == json.loads(record(CARRIER))
    assert json.loads(tidewire.well("schemas", "show", topic, "--json")) == views[1]
    assert json.loads(tidewire.well("schemas", "show", topic, "--version", "0", "--json")) == views[0]
    heading, *rows = tidewire.well("schemas", "list", topic).splitlines()
    assert heading.split() == ["version", "type", "created", "characters"]
    assert [row.split()[:2] for row in rows] == [["0", "avro"], ["1", "avro"]]
    facts, _, definition = tidewire.well("schemas", "show", topic, "--version", "0").partition("\n\n")
    assert facts.splitlines()[:2] == ["version  0", "type     avro"]
    assert json.loads(definition) == json.loads(record(CARRIER))

    assert "--yes" in tidewire.complaint("schemas", "delete", topic, status=2)
    assert tidewire.well("schemas", "delete", topic, "--yes") == f"deleted the schema of {topic}\n"
    assert json.loads(tidewire.well("schemas", "list", topic, "--json")) == []


def test_a_type_needs_no_file(tidewire: CommandLine, each_kind: str) -> None:
    tidewire.well("schemas", "create", each_kind, "string")
    view = json.loads(tidewire.well("schemas", "show", each_kind, "--json"))
    assert (view["type"], view["definition"], view["version"]) == ("string", "", 0)


def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine, topic: str, tmp_path: Path) -> None:
    for mistake, status in (
        (("create", topic, "avro:nowhere"), 2),
        (("create", topic, "colour"), 1),
        (("create", topic, "avro"), 1),
        (("show", topic), 1),
        (("show", "flights"), 2),
    ):
        complaint = tidewire.complaint("schemas", *mistake, status=status)
        assert complaint.startswith("tidewire schemas: ")
        assert complaint.count("\n") == 1
    path = str(tmp_path / "order.avsc")
    Path(path).write_text("{}")
    complaint = tidewire.complaint("schemas", "check", topic, path, status=2)
    assert f"Say what it defines: avro:{path}, json:{path} or protobuf:{path}." in complaint

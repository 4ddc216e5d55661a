"""`tidewire schemas`: the versions of a topic's schema, of both kinds of topic."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidewire.cli.admin.confirming import Yes, confirm
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import EXIT_FAILED, UsageError, one_sentence
from tidewire.cli.output import Json, fields, moment, note, print_json, table, tell
from tidewire.cli.topic_paths import topic_path

app: Final = typer.Typer(
    help="List, show, check, create and delete the versions of a topic's schema.", no_args_is_help=True
)

COMMAND: Final = "tidewire schemas"

Topic = Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)]
Given = Annotated[
    str,
    typer.Argument(
        metavar="SCHEMA",
        help="avro:FILE, json:FILE or protobuf:FILE with an Avro definition, or a type without one, such as string.",
        show_default=False,
    ),
]


@app.command("list")
def list_all(topic: Topic, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """List the versions of a topic's schema. Deleted ones are left out."""
    with one_sentence(COMMAND):
        answer = Brokers(*addresses(data_dir, http)).ask("GET", topic_path(topic).schemas + "/schemas")
        views = [_view(topic, one) for one in answer["getSchemaResponses"]]
        if as_json:
            print_json(views)
            return
        rows = [(str(one["version"]), one["type"], moment(one["createdAtMs"]), len(one["definition"])) for one in views]
        typer.echo(table(("version", "type", "created", "characters"), rows))
        if not views:
            note(COMMAND, f"{topic} has no schema. Create one with `tidewire schemas create {topic} SCHEMA`.")


@app.command("show")
def show(
    topic: Topic,
    version: Annotated[int | None, typer.Option(min=0, help="The version (default: the latest).")] = None,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show a version of a topic's schema with its definition."""
    with one_sentence(COMMAND):
        resource = topic_path(topic).schemas + "/schema" + ("" if version is None else f"/{version}")
        view = _view(topic, Brokers(*addresses(data_dir, http)).ask("GET", resource))
        if as_json:
            print_json(view)
            return
        facts = [("version", str(view["version"])), ("type", view["type"]), ("created", moment(view["createdAtMs"]))]
        facts += sorted(view["properties"].items())
        typer.echo(fields(facts))
        if view["definition"]:
            typer.echo(f"\n{_indented(view['definition'])}")


@app.command("create")
@app.command("upload", help="The same as create.")
def create(
    topic: Topic, schema: Given, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Make a schema the topic's next version, unless the topic has it. A topic that is not there is created."""
    with one_sentence(COMMAND):
        path, payload = topic_path(topic), _payload(schema)
        answer = Brokers(*addresses(data_dir, http)).ask("POST", path.schemas + "/schema", body=payload)
        version = answer["version"]["version"]
        tell(f"version {version} of {topic} has this schema", as_json, topic=topic, version=version)


@app.command("check")
def check(
    topic: Topic, schema: Given, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Tell whether a schema may become the topic's next version. The exit status is 1 if it may not."""
    with one_sentence(COMMAND):
        path, payload = topic_path(topic), _payload(schema)
        answer = Brokers(*addresses(data_dir, http)).ask("POST", path.schemas + "/compatibility", body=payload)
        is_compatible, reason = answer["compatibility"], answer.get("reason")
        sentence = f"{topic} may get this schema" if is_compatible else f"{topic} may not get this schema: {reason}"
        tell(sentence, as_json, topic=topic, isCompatible=is_compatible, reason=reason)
    if not is_compatible:
        raise SystemExit(EXIT_FAILED)


@app.command("delete")
def delete(
    topic: Topic, yes: Yes = False, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Delete all versions of a topic's schema. Stored messages stay readable."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        confirm(f"Clients will use {topic} without its schema", yes)
        last = Brokers(*addresses(data_dir, http)).ask("DELETE", path.schemas + "/schema")["version"]
        tell(f"deleted the schema of {topic}", as_json, topic=topic, deleted=True, lastVersion=last)


def _view(topic: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A version in JSON. Its field names are stable."""
    return {
        "topic": topic,
        "version": answer["version"],
        "type": answer["type"].lower(),
        "createdAtMs": answer["timestamp"],
        "definition": answer["data"],
        "properties": answer["properties"],
    }


def _payload(given: str) -> dict[str, object]:
    """The schema as the HTTP API takes it. The broker checks it.

    Raises:
        UsageError: the file cannot be read, or is given without a type.
    """
    kind, separator, path = given.partition(":")
    definition = ""
    if not separator and Path(given).is_file():
        raise UsageError(f"{given} is a file. Say what it defines: avro:{given}, json:{given} or protobuf:{given}.")
    if separator:
        try:
            definition = Path(path).read_text("utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not text in UTF-8: byte {error.start + 1} is wrong.") from error
    return {"type": kind.upper(), "schema": definition, "properties": {}}


def _indented(definition: str) -> str:
    try:
        return json.dumps(json.loads(definition), indent=2, ensure_ascii=False)
    except ValueError:
        # Not every type has a definition in JSON.
        return definition

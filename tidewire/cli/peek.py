"""`tidewire topics peek`: show messages by position or time, without a subscription. Nothing moves.

The broker decodes the values and says what became of each message (`/admin/v2/.../messages`). Of a topic with several
logs, the segments or partitions, each gives its messages, and the command merges them by the time they were stored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import UsageError, one_sentence, while_somebody_reads
from tidewire.cli.output import Json, plain_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from tidewire.cli.administration import Administration

COUNT_MAX: Final = 1_000
"""The most messages that a broker shows at once."""

VALUE_WIDTH_MIN: Final = 10
"""Characters of a value that a narrow terminal shows."""

_POSITION: Final = re.compile(r"\d+:\d+(:\d+)?", re.ASCII)
_MILLIS: Final = re.compile(r"\d+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_ENDS: Final = ("first", "confirmed", "readable", "sealed")
"""What a page says about its log besides its messages."""
_WAYS_ON: Final = ("older", "newer", "hasNewer")
"""What a page says about the pages beside it. Of several logs, only some of the messages are shown."""

Row = dict[str, Any]


class Log(NamedTuple):
    """A log of a topic."""

    number: int | None
    """Of the segment or partition; None for a topic that has no parts."""
    name: str
    """The full name: `segment://` or `persistent://`."""


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    segment: Annotated[
        int | None, typer.Option("--segment", min=0, help="Only this segment or partition (default: all of them).")
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", help="earliest, latest, a position such as 5:0, or a time.")
    ] = "latest",
    before: Annotated[str | None, typer.Option("--before", help="End with the message before this position.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=COUNT_MAX, help="At most so many messages.")] = 20,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show messages without a subscription: committed, open and aborted ones."""
    with one_sentence("tidewire topics"):
        from tidewire.cli.administration import Administration

        administration = Administration(*addresses(data_dir, http))
        logs = _logs(administration, topic, segment)
        asked = _asked(begin, before, count, has_one=len(logs) == 1)
        pages = [(log, administration.messages(log.name, asked)) for log in logs]
        rows = _merged(pages, count, from_end="from" not in asked)
        with while_somebody_reads():
            if as_json:
                places = _ENDS + _WAYS_ON if len(pages) == 1 else _ENDS
                about = [{"log": log.name, **{name: page[name] for name in places}} for log, page in pages]
                messages = [{"log": log.name, **row} for log, row in rows]
                print_json({"topic": topic, "messages": messages, "logs": about})
            else:
                _print(topic, pages, rows)


def _logs(administration: "Administration", topic: str, segment: int | None) -> list[Log]:
    if topic.startswith("persistent://"):
        count = administration.partitions(topic)
        logs = [Log(number, f"{topic}-partition-{number}") for number in range(count)] or [Log(None, topic)]
    else:
        layout = administration.layout(topic)
        logs = [
            Log(int(found["segmentId"]), topic.replace("topic://", "segment://", 1) + "/" + _descriptor(found))
            for found in sorted(layout["segments"].values(), key=lambda found: int(found["segmentId"]))
        ]
    if segment is None:
        return logs
    chosen = [log for log in logs if log.number == segment]
    if not chosen:
        numbers = ", ".join(str(log.number) for log in logs if log.number is not None)
        raise UsageError(f"{topic} has no segment or partition {segment}. It has {numbers or 'no parts'}.")
    return chosen


def _descriptor(segment: Mapping[str, Any]) -> str:
    found = segment["hashRange"]
    return f"{found['start']:04x}-{found['end']:04x}-{segment['segmentId']}"


def _asked(begin: str, before: str | None, count: int, *, has_one: bool) -> dict[str, str]:
    """The parameters of the request."""
    if before is not None and begin != "latest":
        raise UsageError("Give either --from or --before.")
    is_position = before is not None or _POSITION.fullmatch(begin) is not None
    if is_position and not has_one:
        raise UsageError("A position belongs to one segment or partition. Give --segment too.")
    asked = {"count": str(count)}
    if before is not None:
        return asked | {"before": before}
    if begin == "latest":
        return asked
    if begin == "earliest" or is_position or _MILLIS.fullmatch(begin):
        return asked | {"from": begin}
    try:
        moment = datetime.fromisoformat(begin)
    except ValueError:
        raise UsageError(
            f"--from is {begin!r}. Give earliest, latest, a position such as 5:0, or a time such as "
            "2026-11-28T09:30:00 or milliseconds since 1970."
        ) from None
    return asked | {"from": str(max(0, int(moment.timestamp() * 1000)))}


def _merged(pages: Sequence[tuple[Log, Mapping[str, Any]]], count: int, *, from_end: bool) -> list[tuple[Log, Row]]:
    """The messages of all logs by the time they were stored; those that nobody knows a time of come first."""
    every = [(log, row) for log, page in pages for row in page["messages"]]
    every.sort(key=lambda found: found[1].get("storedTime", 0))
    return every[-count:] if from_end else every[:count]


def _print(topic: str, pages: Sequence[tuple[Log, Mapping[str, Any]]], rows: Sequence[tuple[Log, Row]]) -> None:
    from rich.table import Table

    console = plain_console()
    has_parts = any(log.number is not None for log, _row in rows)
    # Rich shrinks columns that may wrap, down to nothing, before it shortens a value. So no column may wrap.
    table = Table(box=None)
    for name in [*(["segment"] if has_parts else []), "position", "state", "stored (UTC)"]:
        table.add_column(name, no_wrap=True)
    table.add_column("key", no_wrap=True, overflow="ellipsis", max_width=console.width // 5)
    table.add_column("value", no_wrap=True, overflow="ellipsis", max_width=VALUE_WIDTH_MIN)
    for log, row in rows:
        part = [str(log.number)] if has_parts else []
        table.add_row(*part, row["position"], row["state"], _time(row), _plain(_key(row)), _plain(value_of(row)))
    table.columns[-1].max_width = VALUE_WIDTH_MIN + console.width - console.measure(table).maximum
    if rows:
        console.print(table)
    else:
        console.print("There are no messages here.")
    if len(pages) == 1:
        _print_ways_on(console, topic, *pages[0])
    else:
        console.print("Give --segment to go to older and newer messages.")


def _print_ways_on(console: "Console", topic: str, log: Log, page: Mapping[str, Any]) -> None:
    part = "" if log.number is None else f" --segment {log.number}"
    if page["readable"] != page["confirmed"]:
        console.print(f"Consumers may read up to {page['readable']}. An open transaction holds back the rest.")
    if page["older"] is not None:
        _print_command(console, "older", f"{topic}{part} --before {page['older']}")
    if page["hasNewer"]:
        _print_command(console, "newer", f"{topic}{part} --from {page['newer']}")


def _print_command(console: "Console", what: str, arguments: str) -> None:
    console.print(f"{what}: tidewire topics peek {arguments}", soft_wrap=True)


def _time(row: Row) -> str:
    stored = row.get("storedTime")
    if stored is None:
        return ""
    return datetime.fromtimestamp(stored / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _key(row: Row) -> str:
    return str(row.get("key", row.get("keyBase64", "")))


def value_of(row: Row) -> str:
    """What a message says, in one line."""
    if "value" in row:
        return json.dumps(row["value"], ensure_ascii=False)
    if row.get("isNull"):
        return "(no value)"
    if "text" in row:
        return str(row["text"])
    if "payload" in row:
        return f"base64 {row['payload']}"
    return str(row.get("problem", ""))


def _plain(text: str) -> str:
    # A message must not steer the terminal.
    return _CONTROL.sub("�", text)

"""`tidewire consume`: print a topic's messages, one a line, as they become visible.

With --subscription the broker keeps how far it has come, and the next call goes on there; each message is acknowledged
once it is printed. Several calls with the same subscription divide the topic: by segments and in order, or with --queue
message by message. Without a subscription, the topic is read and nothing is left behind.
"""

import base64
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.endings import UsageError, one_sentence, while_somebody_reads
from tidewire.cli.produce import SERVICE_URL_DEFAULT, ServiceUrl

if TYPE_CHECKING:
    import tidewire
    from tidewire.client.consumers import Receiving

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Beginning(StrEnum):
    """Where to begin."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Sharing(StrEnum):
    """Who gets a subscription's messages."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", help="Go on where this subscription stands, and move it.")
    ] = None,
    sharing: Annotated[
        Sharing | None, typer.Option("--type", help="For a persistent:// topic's subscription (default: exclusive).")
    ] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="Share a scalable topic's subscription message by message, without order.")
    ] = False,
    beginning: Annotated[
        Beginning, typer.Option("--from", help="Where a new subscription, or a call without one, begins.")
    ] = Beginning.EARLIEST,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")] = None,
    idle_seconds: Annotated[
        float | None, typer.Option("--idle", min=0.0, help="End when nothing came for so many seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything about each message, as JSON.")] = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Print messages until Ctrl-C, --count or --idle. Only committed ones are ever seen."""
    with one_sentence("tidewire consume"):
        if sharing is not None and subscription is None:
            raise UsageError("--type is a subscription's: give --subscription too.")
        if sharing is not None and topic.startswith("topic://"):
            raise UsageError("--type is for persistent:// topics; the consumers of a scalable topic always divide it.")
        if queue and subscription is None:
            raise UsageError("--queue is a subscription's: give --subscription too.")
        if queue and not topic.startswith("topic://"):
            raise UsageError("--queue is for topic:// topics; for a persistent:// topic say --type shared.")
        import anyio

        from tidewire.cli.clients import run_client

        async def print_all(receiving: "Receiving") -> None:
            left = count
            while left is None or left > 0:
                with anyio.move_on_after(idle_seconds) as idle:
                    message = await receiving.receive()
                if idle.cancelled_caught:
                    return
                _print(described(message) if as_json else message.value)
                if subscription is not None:
                    await _acknowledge(receiving, message)
                if left is not None:
                    left -= 1

        async def story(client: "tidewire.Client") -> None:
            async with _receiving(client, topic, subscription, sharing, beginning, queue=queue) as receiving:
                await print_all(receiving)

        with while_somebody_reads():
            run_client(service_url, story)


def _receiving(
    client: "tidewire.Client",
    topic: str,
    subscription: str | None,
    sharing: Sharing | None,
    beginning: Beginning,
    *,
    queue: bool,
) -> "AbstractAsyncContextManager[Receiving]":
    from tidewire.client.names import is_scalable

    if subscription is None:
        return client.reader(topic, beginning.value)
    if queue:
        # Few at a time, so that a slow reader of this output keeps no more from others.
        return client.queue_consumer(topic, subscription, initial=beginning.value, queue_messages_max=10)
    if is_scalable(topic):
        return client.stream_consumer(topic, subscription, initial=beginning.value)
    return client.consumer(topic, subscription, type=(sharing or Sharing.EXCLUSIVE).value, initial=beginning.value)


async def _acknowledge(receiving: "Receiving", message: "tidewire.Message") -> None:
    import tidewire

    if isinstance(receiving, tidewire.StreamConsumer):
        await receiving.acknowledge_cumulative(message)
    elif isinstance(receiving, tidewire.Consumer | tidewire.QueueConsumer):
        await receiving.acknowledge(message)


def described(message: "tidewire.Message") -> bytes:
    """All of a message as one line of JSON; a value that is no text stands in base64, under another name."""
    message_id = message.message_id
    try:
        value: Mapping[str, str | None] = {"value": None if message.is_null else message.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(message.value).decode("ascii")}
    place = {"topic": message.topic, "ledger": message_id.ledger_id, "entry": message_id.entry_id}
    if message_id.batch_index >= 0:
        place["batch_index"] = message_id.batch_index
    described = {
        "key": message.key,
        **value,
        "properties": dict(message.properties),
        "event_time": None if message.event_time_ms is None else _moment(message.event_time_ms),
        "publish_time": _moment(message.publish_time_ms),
        **place,
    }
    return json.dumps(described, ensure_ascii=False).encode(errors="replace")


def _moment(since_epoch_ms: int) -> str | int:
    try:
        return (_EPOCH + timedelta(milliseconds=since_epoch_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        # Some producers send what is no time of this calendar.
        return since_epoch_ms


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    # Whoever reads a pipe gets each message when it comes.
    sys.stdout.buffer.flush()

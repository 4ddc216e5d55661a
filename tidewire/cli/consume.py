"""`tidewire consume`: print a topic's messages, one a line, as they become visible.

With --subscription, each message is acknowledged once it is printed, and the next call continues from there. Several
calls with the same subscription share the topic: by segments and in order, or with --queue message by message. Without
a subscription, the command reads the topic and leaves no trace in the broker.
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
        str | None,
        typer.Option("--subscription", "-s", help="Continue from this subscription, and acknowledge what is printed."),
    ] = None,
    sharing: Annotated[
        Sharing | None,
        typer.Option("--type", help="Type of the subscription on a persistent:// topic (default: exclusive)."),
    ] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="Share a topic:// topic message by message, in no order.")
    ] = False,
    beginning: Annotated[
        Beginning, typer.Option("--from", help="Where to start without a subscription, or with a new one.")
    ] = Beginning.EARLIEST,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")] = None,
    idle_seconds: Annotated[
        float | None, typer.Option("--idle", min=0.0, help="Stop when no message has come for this many seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each message with all its fields, as JSON.")] = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Print a topic's messages until Ctrl-C, --count or --idle. Uncommitted messages are not shown."""
    with one_sentence("tidewire consume"):
        if sharing is not None and subscription is None:
            raise UsageError("--type applies to a subscription. Give --subscription too.")
        if sharing is not None and topic.startswith("topic://"):
            raise UsageError("--type is for persistent:// topics. The consumers of a topic:// topic always share it.")
        if queue and subscription is None:
            raise UsageError("--queue applies to a subscription. Give --subscription too.")
        if queue and not topic.startswith("topic://"):
            raise UsageError("--queue is for topic:// topics. For a persistent:// topic give --type shared.")
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
    from tidewire.protocol.topic_names import is_scalable

    if subscription is None:
        return client.reader(topic, beginning.value)
    if queue:
        # A short queue leaves the other consumers more when this command's output is read slowly.
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
    """Return a message as one line of JSON. A value that is not UTF-8 is in base64, as `value_base64`."""
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
        # Some producers send numbers beyond the calendar's range.
        return since_epoch_ms


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    # The reader of a pipe gets each message at once.
    sys.stdout.buffer.flush()

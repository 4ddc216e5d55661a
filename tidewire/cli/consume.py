"""`tidewire consume`: print a topic's messages, one a line or by a template, as they become visible.

With --subscription, each message is acknowledged once it is printed, and the next call continues from there. Several
calls with the same subscription share the topic: by segments and in order, or with --queue message by message. Without
a subscription, the command reads the topic and leaves no trace in the broker.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidewire.cli.endings import Interrupted, UsageError, one_sentence, while_somebody_reads
from tidewire.cli.message_formats import format_of
from tidewire.cli.produce import SERVICE_URL_DEFAULT, ServiceUrl

if TYPE_CHECKING:
    import tidewire
    from tidewire.client.consumers import Receiving


class Sharing(StrEnum):
    """Who gets a subscription's messages."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


def _words(incomplete: str) -> list[str]:
    return [word for word in ("earliest", "latest") if word.startswith(incomplete)]


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
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            autocompletion=_words,
            help="earliest, latest, a time (2013-01-31T06:15:00Z), how long ago (15m), or behind a message id. "
            "A new subscription starts at earliest or latest.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until Ctrl-C, as without --until-end, --count and --idle.")
    ] = False,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", "-e", help="Stop at the end that the topic has now. Without --subscription only."),
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")] = None,
    idle_seconds: Annotated[
        float | None, typer.Option("--idle", min=0.0, help="Stop when no message has come for this many seconds.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="json, or a template with %s value, %S its size, %k key, %K its size, %t topic, %p segment, "
            "%o position, %i message id, %T publish time, %e event time, %h properties, \\n, \\t.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json: all fields, one object a line.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes that were sent, not decoded by a schema.")
    ] = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Print a topic's messages until Ctrl-C, --until-end, --count or --idle. Uncommitted messages are not shown."""
    with one_sentence("tidewire consume"):
        if sharing is not None and subscription is None:
            raise UsageError("--type applies to a subscription. Give --subscription too.")
        if sharing is not None and topic.startswith("topic://"):
            raise UsageError("--type is for persistent:// topics. The consumers of a topic:// topic always share it.")
        if queue and subscription is None:
            raise UsageError("--queue applies to a subscription. Give --subscription too.")
        if queue and not topic.startswith("topic://"):
            raise UsageError("--queue is for topic:// topics. For a persistent:// topic give --type shared.")
        if follow and (until_end or count is not None or idle_seconds is not None):
            raise UsageError("--follow goes on until Ctrl-C. Give it without --until-end, --count and --idle.")
        if until_end and subscription is not None:
            raise UsageError("--until-end reads a topic without a subscription. With one, give --count or --idle.")
        if as_json and template is not None:
            raise UsageError("--json is --format json. Give one of them.")
        formatted = format_of("json" if as_json else template)
        import anyio

        from tidewire.cli.clients import run_client
        from tidewire.cli.live import LiveLine, Rate
        from tidewire.cli.message_ids import beginning_of
        from tidewire.client.background import background_tasks
        from tidewire.client.plain_schema import AnySchema
        from tidewire.client.schema import BYTES

        begin = beginning_of(beginning, datetime.now(UTC))
        if subscription is not None and not isinstance(begin, str):
            raise UsageError("A new subscription starts at earliest or latest. Read from elsewhere without one.")
        schema: Any = BYTES if raw else AnySchema()
        line = LiveLine()
        summary = ""

        async def print_all(
            receiving: "Receiving[Any]", messages: "AsyncIterator[tidewire.Message[Any]]", rate: Rate
        ) -> None:
            while count is None or rate.messages < count:
                message = None
                with anyio.move_on_after(idle_seconds):
                    message = await anext(messages, None)
                if message is None:
                    return
                line.clear()
                _print(formatted(message))
                rate.count(len(message.data))
                if subscription is not None:
                    await _acknowledge(receiving, message)

        async def story(client: "tidewire.Client") -> None:
            nonlocal summary
            async with (
                _receiving(client, topic, subscription, sharing, begin, schema, queue=queue) as receiving,
                _messages_of(receiving, until_end=until_end) as messages,
                background_tasks() as tasks,
            ):
                rate = Rate()
                tasks.start_soon(line.keep, rate.now)
                try:
                    await print_all(receiving, messages, rate)
                finally:
                    summary = rate.whole()

        with while_somebody_reads():
            try:
                run_client(service_url, story, line)
            except Interrupted:
                raise Interrupted(f"interrupted after {summary}." if summary else "interrupted.") from None
            if line.is_shown:
                line.say(summary)


def _receiving(
    client: "tidewire.Client",
    topic: str,
    subscription: str | None,
    sharing: Sharing | None,
    begin: "Literal['earliest', 'latest'] | tidewire.MessageId | datetime",
    schema: Any,  # noqa: ANN401 - of any values
    *,
    queue: bool,
) -> "AbstractAsyncContextManager[Receiving[Any]]":
    from tidewire.protocol.topic_names import is_scalable

    if isinstance(begin, datetime):
        return client.checkpoint_consumer(topic, begin, schema=schema)
    if subscription is None:
        return client.reader(topic, begin, schema=schema)
    assert isinstance(begin, str), "only a reader begins elsewhere"
    if queue:
        # A short queue leaves the other consumers more when this command's output is read slowly.
        return client.queue_consumer(topic, subscription, initial=begin, queue_messages_max=10, schema=schema)
    if is_scalable(topic):
        return client.stream_consumer(topic, subscription, initial=begin, schema=schema)
    return client.consumer(topic, subscription, type=(sharing or Sharing.EXCLUSIVE).value, initial=begin, schema=schema)


@asynccontextmanager
async def _messages_of(
    receiving: "Receiving[Any]", *, until_end: bool
) -> "AsyncIterator[AsyncIterator[tidewire.Message[Any]]]":
    if not until_end:
        yield receiving
        return
    from tidewire.client.reader import Reader

    assert isinstance(receiving, Reader), "a subscription was refused"
    async with aclosing(receiving.until_end()) as messages:
        yield messages


async def _acknowledge(receiving: "Receiving[Any]", message: "tidewire.Message[Any]") -> None:
    import tidewire

    if isinstance(receiving, tidewire.StreamConsumer):
        await receiving.acknowledge_cumulative(message)
    elif isinstance(receiving, tidewire.Consumer | tidewire.QueueConsumer):
        await receiving.acknowledge(message)


def _print(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    # The reader of a pipe gets each message at once.
    sys.stdout.buffer.flush()

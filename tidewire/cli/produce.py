"""`tidewire produce`: send messages from arguments or from lines of standard input, optionally in a transaction."""

import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.endings import UsageError, one_sentence, pairs

if TYPE_CHECKING:
    import tidewire

SERVICE_URL_DEFAULT: Final = "pulsar://127.0.0.1:6650"

UNANSWERED_MAX: Final = 1000
"""Most messages in flight. At this number, the next line is read when the oldest message is acknowledged."""

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url", envvar="TIDEWIRE_SERVICE_URL", help="pulsar://HOST:PORT[,HOST:PORT] of some brokers."
    ),
]


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    messages: Annotated[
        list[str] | None, typer.Argument(help="The messages. Without any, each line of standard input is one.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="Split each message at this text: the key is before it, the value after it.")
    ] = None,
    properties: Annotated[list[str], typer.Option("--property", help="KEY=VALUE; may be given several times.")] = [],  # noqa: B006 - typer copies it
    event_time: Annotated[
        str | None, typer.Option(help="The messages' event time, such as 2013-01-31T06:15:00Z (UTC without a zone).")
    ] = None,
    transaction: Annotated[
        bool,
        typer.Option("--transaction", "-t", help="Send all messages in one transaction: consumers get all or none."),
    ] = False,
    in_transaction: Annotated[
        str | None, typer.Option(help="Send in this open transaction, begun with `tidewire txn begin`.")
    ] = None,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Send messages to a topic. When all are durable, print how many were sent."""
    with one_sentence("tidewire produce"):
        if key is not None and key_separator is not None:
            raise UsageError("A message has one key. Give either --key or --key-separator.")
        if transaction and in_transaction is not None:
            raise UsageError("A message belongs to one transaction. Give either --transaction or --in-transaction.")
        if key_separator == "":
            raise UsageError("--key-separator must not be empty.")
        event_time_ms = None if event_time is None else milliseconds(event_time)
        from tidewire.cli.clients import parse_transaction_id, run_client

        joined = None if in_transaction is None else parse_transaction_id(in_transaction)
        with_properties = pairs(properties, "--property")
        sent = 0

        async def send_all(client: "tidewire.Client", txn: "tidewire.Transaction | None") -> None:
            nonlocal sent
            unanswered: deque[tidewire.Receipt] = deque()
            async with client.producer(topic) as producer, aclosing(_messages(messages)) as lines:
                async for line in lines:
                    own_key, value = keyed(line, key, key_separator)
                    unanswered.append(
                        await producer.enqueue(
                            value, key=own_key, properties=with_properties, event_time_ms=event_time_ms, txn=txn
                        )
                    )
                    sent += 1
                    if len(unanswered) >= UNANSWERED_MAX:
                        await unanswered.popleft()
                while unanswered:
                    await unanswered.popleft()

        async def story(client: "tidewire.Client") -> None:
            if transaction:
                async with client.transaction() as txn:
                    await send_all(client, txn)
            else:
                await send_all(client, None if joined is None else client.join_transaction(joined))

        run_client(service_url, story)
        typer.echo(f"sent {sent} message{'' if sent == 1 else 's'} to {topic}")


def keyed(line: bytes, key: str | None, separator: str | None) -> tuple[str | None, bytes]:
    """Return a message's key and value.

    Raises:
        UsageError: `line` lacks `separator`, or its key is not UTF-8.
    """
    if separator is None:
        return key, line
    before, found, value = line.partition(separator.encode())
    if not found:
        raise UsageError(f"The message {line[:50].decode(errors='replace')!r} has no {separator!r} after its key.")
    try:
        return before.decode(), value
    except UnicodeDecodeError:
        raise UsageError(f"The key {before[:50]!r} is not UTF-8 text.") from None


def milliseconds(text: str) -> int:
    """Convert a time in ISO 8601 to milliseconds since the epoch. Without a zone it is UTC.

    Raises:
        UsageError: `text` is not such a time, or it is before 1970.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time. Write it like 2013-01-31T06:15:00Z.") from None
    since_epoch_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if since_epoch_ms < 0:
        raise UsageError(f"{text!r} is before 1970. Event times count from 1970.")
    return since_epoch_ms


async def _messages(arguments: list[str] | None) -> AsyncGenerator[bytes, None]:
    if arguments:
        for text in arguments:
            # Arguments that are not UTF-8 are sent as the bytes that were typed.
            yield text.encode(errors="surrogateescape")
        return
    import anyio.to_thread

    lines: Iterator[bytes] = iter(sys.stdin.buffer.readline, b"")
    while True:
        # In a thread, because a line may take long to come and the event loop must keep the connections alive.
        line = await anyio.to_thread.run_sync(next, lines, None, abandon_on_cancel=True)
        if line is None:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")

"""`tidewire produce`: send messages, from arguments or one per line of standard input, also in one transaction."""

import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.endings import UsageError, one_sentence, pairs

if TYPE_CHECKING:
    import tidewire

SERVICE_URL_DEFAULT: Final = "pulsar://127.0.0.1:6650"

UNANSWERED_MAX: Final = 1000
"""Messages on their way; the next line is read when the first of them is answered."""

ServiceUrl = Annotated[
    str, typer.Option("--service-url", envvar="TIDEWIRE_SERVICE_URL", help="pulsar://HOST:PORT of any broker.")
]


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    messages: Annotated[
        list[str] | None, typer.Argument(help="The messages; none: each line of standard input is one.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Every message's key.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What stands before this text in a message is its key, what follows its value.")
    ] = None,
    properties: Annotated[list[str], typer.Option("--property", help="KEY=VALUE; may be given several times.")] = [],  # noqa: B006 - typer copies it
    event_time: Annotated[
        str | None, typer.Option(help="When it happened, as 2013-01-31T06:15:00Z; without a zone it is UTC.")
    ] = None,
    transaction: Annotated[
        bool,
        typer.Option("--transaction", "-t", help="All messages in one transaction: all of them are seen, or none."),
    ] = False,
    in_transaction: Annotated[
        str | None, typer.Option(help="Add them to this open transaction, from `tidewire txn begin`.")
    ] = None,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Send messages to a topic, and say how many when all are durable."""
    with one_sentence("tidewire produce"):
        if key is not None and key_separator is not None:
            raise UsageError("A message has one key: give --key or --key-separator, not both.")
        if transaction and in_transaction is not None:
            raise UsageError("Messages belong to one transaction: give --transaction or --in-transaction, not both.")
        if key_separator == "":
            raise UsageError("--key-separator is a text of at least one character.")
        event_time_ms = None if event_time is None else milliseconds(event_time)
        from tidewire.cli.clients import parse_transaction_id, run_client

        joined = None if in_transaction is None else parse_transaction_id(in_transaction)
        with_properties = pairs(properties, "--property")
        sent = 0

        async def send_all(client: "tidewire.Client", txn: "tidewire.Transaction | None") -> None:
            nonlocal sent
            unanswered: deque[tidewire.Receipt] = deque()
            async with client.producer(topic) as producer:
                async for line in _messages(messages):
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
    """A message's key and value.

    Raises:
        UsageError: there is no `separator` in it, or what stands before it is no text.
    """
    if separator is None:
        return key, line
    before, found, value = line.partition(separator.encode())
    if not found:
        raise UsageError(f"There is no {separator!r} in the message {line[:50].decode(errors='replace')!r}.")
    try:
        return before.decode(), value
    except UnicodeDecodeError:
        raise UsageError(f"A key is text in UTF-8, not {before[:50]!r}.") from None


def milliseconds(text: str) -> int:
    """A moment in ISO 8601 as milliseconds since the epoch; without a zone it is UTC.

    Raises:
        UsageError: it is written otherwise, or before 1970.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time; expected one like 2013-01-31T06:15:00Z.") from None
    since_epoch_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if since_epoch_ms < 0:
        raise UsageError(f"{text!r} is before 1970, where the protocol's time begins.")
    return since_epoch_ms


async def _messages(arguments: list[str] | None) -> AsyncIterator[bytes]:
    if arguments:
        for text in arguments:
            # Arguments that are no UTF-8 arrive as they were typed.
            yield text.encode(errors="surrogateescape")
        return
    import anyio.to_thread

    lines: Iterator[bytes] = iter(sys.stdin.buffer.readline, b"")
    while True:
        # In a thread, since lines come when they come, and connections want to be kept alive meanwhile.
        line = await anyio.to_thread.run_sync(next, lines, None, abandon_on_cancel=True)
        if line is None:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")

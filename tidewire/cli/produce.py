"""`tidewire produce`: send messages from arguments, or from the lines of a file or of standard input.

Optionally at a steady rate, checked by a schema, or in a transaction. On a terminal, a line shows how far it is.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.endings import Interrupted, UsageError, one_sentence, pairs
from tidewire.cli.output import Json, tell
from tidewire.cli.schemas import SCHEMA_HELP, encoder_of, schema_named
from tidewire.cli.transaction_ids import parse_transaction_id

if TYPE_CHECKING:
    import tidewire
    from tidewire.cli.live import LiveLine
    from tidewire.cli.receipts import Receipts

SERVICE_URL_DEFAULT: Final = "pulsar://127.0.0.1:6650"

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url", envvar="TIDEWIRE_SERVICE_URL", help="pulsar://HOST:PORT[,HOST:PORT] of some brokers."
    ),
]


class Codec(StrEnum):
    """How messages are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZLIB = "zlib"
    ZSTD = "zstd"
    SNAPPY = "snappy"


def command(
    topic: Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    messages: Annotated[
        list[str] | None, typer.Argument(help="The messages. Without any, each line of --file is one.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="A message a line; - is standard input.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Send this many messages a second, evenly spaced.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="The key is what stands before this text, the value what follows."),
    ] = None,
    schema: Annotated[str | None, typer.Option(help=SCHEMA_HELP)] = None,
    properties: Annotated[list[str], typer.Option("--property", help="KEY=VALUE; may be given several times.")] = [],  # noqa: B006 - typer copies it
    event_time: Annotated[
        str | None, typer.Option(help="The messages' event time, such as 2013-01-31T06:15:00Z (UTC without a zone).")
    ] = None,
    compression: Annotated[Codec, typer.Option(help="Compress the messages.")] = Codec.NONE,
    transaction: Annotated[
        bool,
        typer.Option("--transaction", "-t", help="Send all messages in one transaction: consumers get all or none."),
    ] = False,
    in_transaction: Annotated[
        str | None, typer.Option(help="Send in this open transaction, begun with `tidewire transactions begin`.")
    ] = None,
    as_json: Json = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Send messages to a topic. When all are durable, print how many were sent."""
    with one_sentence("tidewire produce"), ExitStack() as files:
        if key is not None and key_separator is not None:
            raise UsageError("A message has one key. Give either --key or --key-separator.")
        if transaction and in_transaction is not None:
            raise UsageError("A message belongs to one transaction. Give either --transaction or --in-transaction.")
        if key_separator == "":
            raise UsageError("--key-separator must not be empty.")
        if messages and file is not None:
            raise UsageError("Give the messages either as arguments or in --file.")
        event_time_ms = None if event_time is None else milliseconds(event_time)
        from tidewire.cli.clients import run_client
        from tidewire.cli.lines import STANDARD_INPUT, lines_of, opened
        from tidewire.cli.live import LiveLine

        joined = None if in_transaction is None else parse_transaction_id(in_transaction)
        declared = schema_named(schema)
        path = STANDARD_INPUT if file is None else file
        job = _Job(
            _arguments(messages) if messages else lines_of(files.enter_context(opened(path)), path),
            "Message" if messages else "Line",
            encoder_of(declared),
            key,
            key_separator,
            pairs(properties, "--property"),
            event_time_ms,
            rate,
        )
        line = LiveLine()

        async def send_all(client: "tidewire.Client", txn: "tidewire.Transaction | None") -> None:
            async with client.producer(topic, compression=compression.value, schema=declared.encoded()) as producer:
                await job.send_all(producer, txn, line)

        async def story(client: "tidewire.Client") -> None:
            if transaction:
                async with client.transaction() as txn:
                    await send_all(client, txn)
            else:
                await send_all(client, None if joined is None else client.join_transaction(joined))

        try:
            run_client(service_url, story, line)
        except Interrupted:
            raise Interrupted(job.interrupted(in_own_transaction=transaction)) from None
        sentence = f"sent {job.sent} message{'' if job.sent == 1 else 's'} to {topic}"
        tell(sentence, as_json, topic=topic, sent=job.sent)


@dataclass
class _Job:
    """What is to be sent, and how much of it was."""

    lines: AsyncIterator[bytes]
    unit: str
    """What a user counts them as."""
    encode: Callable[[bytes], bytes]
    key: str | None
    key_separator: str | None
    properties: dict[str, str]
    event_time_ms: int | None
    rate: float | None
    sent: int = 0
    """Durable messages."""
    unknown: int = 0
    """Messages of which nobody knows whether they are stored, because the command was interrupted."""

    async def send_all(
        self, producer: "tidewire.Producer[bytes]", txn: "tidewire.Transaction | None", line: "LiveLine"
    ) -> None:
        """Send all lines, and return when all are durable.

        Raises:
            UsageError: a line cannot be sent. Those before it were.
        """
        from tidewire.cli.live import Rate
        from tidewire.cli.receipts import Receipts
        from tidewire.client.background import background_tasks

        durable = Rate()
        receipts = Receipts(durable)
        async with background_tasks() as tasks:
            tasks.start_soon(line.keep, durable.now)
            try:
                await self._enqueue_all(producer, txn, receipts)
            except UsageError as unfit:
                await receipts.all_durable()
                sent = f"The {durable.messages} before it were sent." if durable.messages else "None was sent."
                before = f" {sent}" if txn is None else ""
                raise UsageError(f"{unfit}{before}") from unfit
            else:
                await receipts.all_durable()
            finally:
                # If Ctrl-C or an error ended it, some were answered meanwhile.
                self.unknown = receipts.give_up()
                self.sent = durable.messages
        if line.is_shown:
            line.say(durable.whole())

    async def _enqueue_all(
        self, producer: "tidewire.Producer[bytes]", txn: "tidewire.Transaction | None", receipts: "Receipts"
    ) -> None:
        from tidewire.cli.pacing import Pace
        from tidewire.protocol.errors import MessageTooLarge

        pace = Pace(self.rate)
        number = 0
        async with aclosing(self.lines) as lines:  # type: ignore[type-var]
            async for line in lines:
                number += 1
                await pace.step()
                try:
                    key, text = keyed(line, self.key, self.key_separator)
                    value = self.encode(text)
                    receipt = await producer.enqueue(
                        value, key=key, properties=self.properties, event_time_ms=self.event_time_ms, txn=txn
                    )
                except UsageError as unfit:
                    raise UsageError(f"{self.unit} {number}: {unfit}") from unfit
                except MessageTooLarge as unfit:
                    raise UsageError(f"{self.unit} {number}: {unfit}.") from unfit
                await receipts.add(receipt, len(value))

    def interrupted(self, *, in_own_transaction: bool) -> str:
        """What was sent, after Ctrl-C."""
        if in_own_transaction:
            return "interrupted. The transaction was aborted, so consumers get none of the messages."
        doubt = f" {self.unknown} more may be stored, too." if self.unknown else ""
        return f"interrupted after {self.sent} message{'' if self.sent == 1 else 's'}.{doubt}"


def keyed(line: bytes, key: str | None, separator: str | None) -> tuple[str | None, bytes]:
    """Return a message's key and value.

    Raises:
        UsageError: `line` lacks `separator`, or its key is not UTF-8.
    """
    if separator is None:
        return key, line
    before, found, value = line.partition(separator.encode())
    if not found:
        raise UsageError(f"{line[:50].decode(errors='replace')!r} has no {separator!r} after its key.")
    try:
        return before.decode(), value
    except UnicodeDecodeError:
        raise UsageError(f"the key {before[:50]!r} is not UTF-8 text.") from None


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


async def _arguments(messages: list[str]) -> AsyncIterator[bytes]:
    for text in messages:
        # Arguments that are not UTF-8 are sent as the bytes that were typed.
        yield text.encode(errors="surrogateescape")

"""The size limit of each client command, from its largest legal content (E8).

A larger command ends the connection before it is parsed.

Parsing blocks the event loop. Its time grows with the number of fields, not only with the bytes. The smallest fields
cost 50 to 70 ns a byte, so each limit here also keeps the parsing of one command below 20 ms.
"""

from collections.abc import Iterator, Sequence, Sized
from typing import Final, TypeVar

import trio

from tidewire.wire.pulsar.frames import CommandSizes
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import BATCH_MESSAGES_MAX
from txn.groups import WINNERS_MAX

COMMAND_BYTES_MAX: Final = 128 * 1024
"""For commands without a list or a schema: names of at most 1024 bytes, and properties."""

IDS_BYTES_MAX: Final = 384 * 1024
"""For ACK and REDELIVER: about 28,000 message ids. Clients send 1,000 at a time."""

IDS_AT_ONCE: Final = 64
"""Message ids handled in one step of the event loop. With 50,000 acknowledged ranges, each takes 0.1 ms."""

ACK_SET_WORDS_MAX: Final = -(-BATCH_MESSAGES_MAX // 64)
"""Most 64-bit words of one `ack_set`: a bit for each message of the largest batch."""

METADATA_BYTES_MAX: Final = 256 * 1024
"""For the metadata of one message or batch. The broker parses it at each publish and delivery that needs it."""

DECLARING_BYTES_MAX: Final = 768 * 1024
"""For commands with a schema: three times the limit of a schema, so that most clients get the schema's own error."""

WINNERS_BYTES_MAX: Final = WINNERS_MAX * 25 + COMMAND_BYTES_MAX
"""For END_TXN of a group: an id takes at most 25 bytes."""

Item = TypeVar("Item")

SIZES: Final = CommandSizes(
    COMMAND_BYTES_MAX,
    {
        pb.BaseCommand.ACK: IDS_BYTES_MAX,
        pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: IDS_BYTES_MAX,
        pb.BaseCommand.PRODUCER: DECLARING_BYTES_MAX,
        pb.BaseCommand.SUBSCRIBE: DECLARING_BYTES_MAX,
        pb.BaseCommand.GET_OR_CREATE_SCHEMA: DECLARING_BYTES_MAX,
        pb.BaseCommand.END_TXN: WINNERS_BYTES_MAX,
    },
)


def slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Divide the items into slices for one step of the event loop each."""
    return (items[start : start + IDS_AT_ONCE] for start in range(0, len(items), IDS_AT_ONCE))


async def pause_between(items: Sized) -> None:
    """Let other tasks run, if the items are more than one slice."""
    if len(items) > IDS_AT_ONCE:
        await trio.lowlevel.checkpoint()

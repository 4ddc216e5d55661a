"""How large a client's command may be, by what it can mean (E8). Beyond it the connection ends, before any parsing.

Parsing holds the event loop, and its time grows with the number of fields and not only with bytes. The smallest fields
cost 50 to 70 ns a byte, so each bound here also keeps one command's parsing below 20 ms.
"""

from collections.abc import Iterator, Sequence, Sized
from typing import Final, TypeVar

import trio

from tidewire.wire.pulsar.frames import CommandSizes
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import BATCH_MESSAGES_MAX
from txn.groups import WINNERS_MAX

COMMAND_BYTES_MAX: Final = 128 * 1024
"""Every command without a list or a schema: names of at most 1024 bytes, and properties."""

IDS_BYTES_MAX: Final = 384 * 1024
"""Message ids of one ACK or REDELIVER: some 28,000 of them. Clients send 1,000 at a time."""

IDS_AT_ONCE: Final = 64
"""Message ids looked at in one step of the event loop; 0.1 ms each where 50,000 ranges are acknowledged."""

ACK_SET_WORDS_MAX: Final = -(-BATCH_MESSAGES_MAX // 64)
"""64-bit words of one `ack_set`: a bit for each message that a batch can have."""

METADATA_BYTES_MAX: Final = 256 * 1024
"""Metadata of one message or batch. The broker parses them at each publish and delivery that asks what they say."""

DECLARING_BYTES_MAX: Final = 768 * 1024
"""Commands with a schema. Three times a schema's own bound, so that its owner is told which bound was passed."""

WINNERS_BYTES_MAX: Final = WINNERS_MAX * 25 + COMMAND_BYTES_MAX
"""END_TXN of a group: an id takes at most 25 bytes."""

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
    """The items, as many at a time as one step of the event loop looks at."""
    return (items[start : start + IDS_AT_ONCE] for start in range(0, len(items), IDS_AT_ONCE))


async def pause_between(items: Sized) -> None:
    """Let other tasks run, where the items are more than one slice."""
    if len(items) > IDS_AT_ONCE:
        await trio.lowlevel.checkpoint()

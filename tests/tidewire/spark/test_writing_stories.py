"""Drawn stories of a task whose topic's segments are split, merged and moved: each row once, in order.

The brokers do what a real one may, at drawn moments: answer some frames, push a new layout, seal what it replaced
(which refuses or drops the rest, and closes), and move a segment while frames are on their way to it.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import TOPIC, segment
from tests.tidewire.spark.writable import T, Writable, rows
from tidewire.protocol.addresses import BrokerAddress
from tidewire.spark import batching, writing
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.encoding import NO_KEY
from tidewire.spark.errors import WriteFailed
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

SEGMENTS_MAX = 12
KEYS = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x8000, 0xBFFF, 0xFFFF)
"""Their hashes."""
ELSEWHERE = BrokerAddress("other", 6650)


class Drawn(Writable):
    """Brokers at which something may happen at every send or wait."""

    def __init__(self, random: Random) -> None:
        super().__init__(segments=random.choice((1, 2)))
        self.holds = True
        self.answers[T.CLOSE_PRODUCER] = lambda peer: lambda command: self._left(peer, command.close_producer)
        self._random = random
        self._replaced: list[int] = []
        """Of which clients were told, and which are not sealed yet."""
        self._sealed: set[str] = set()
        self._answered: set[str] = set()
        """The names of producers that got a receipt."""
        self.leaves_doubt = False
        """Whether a producer without a receipt had frames on its way to a segment that moved."""
        for info in self.dag.segments:
            self._settle_down(info)

    def _connect(self, address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        made = super()._connect(address, proxied_to)
        peer = self.peers[-1][2]
        peer.say_when_empty = lambda: self._until_heard(peer)
        return made

    def _settle_down(self, info: pb.SegmentInfoProto) -> None:
        if self._random.random() < 0.3:
            self.owners[_wire_name(info)] = ELSEWHERE

    def producing(self, peer: BlockingPeer) -> Answer:
        usual = super().producing(peer)

        def answer(command: pb.BaseCommand) -> list[bytes]:
            asked = command.producer
            is_known = asked.epoch > 0 and (asked.topic, asked.producer_name) in self.remembered
            is_replaced = any(_wire_name(info) == asked.topic and info.state == pb.SEALED for info in self.dag.segments)
            if is_replaced and not is_known:
                return [encode_command(commands.error(asked.request_id, pb.TopicTerminatedError, "sealed"))]
            return list(usual(command))

        return answer

    def _take(self, peer: BlockingPeer, frame: Frame) -> None:
        name = self._producers.get((peer, frame.command.send.producer_id))
        if name is None:
            return
        if name in self._sealed and self._is_stored(peer, frame.command.send):
            assert frame.payload is not None
            self._store(peer, frame.command.send, frame.payload)
        elif name in self._sealed:
            self._refuse(peer, frame.command.send)
        else:
            super()._take(peer, frame)
        if self._random.random() < 0.3:
            self.something()

    def _store(self, peer: BlockingPeer, send: pb.CommandSend, payload: bytes) -> None:
        super()._store(peer, send, payload)
        self._answered.add(self._names[peer, send.producer_id])

    def _left(self, peer: BlockingPeer, close: pb.CommandCloseProducer) -> list[bytes]:
        self._producers.pop((peer, close.producer_id), None)
        return [encode_command(commands.success(close.request_id))]

    def _until_heard(self, peer: BlockingPeer) -> None:
        for _ in range(self._random.randint(0, 3)):
            self.something()
        self.answer_held()
        peer.say_when_empty = lambda: self._until_heard(peer)

    def something(self) -> None:
        """Let one of the possible events happen."""
        self._random.choice((self._answer, self._answer, self._replace, self._seal, self._move))()

    def _answer(self) -> None:
        self.answer_held(self._random.randint(1, 3))

    def _active(self) -> list[pb.SegmentInfoProto]:
        return sorted((one for one in self.dag.segments if one.state == pb.ACTIVE), key=lambda one: one.hash_start)

    def _replace(self) -> None:
        number = len(self.dag.segments)
        active = self._active()
        if number >= SEGMENTS_MAX:
            return
        place = self._random.randrange(len(active))
        first = active[place]
        if self._random.random() < 0.5 and place + 1 < len(active):
            parents, last = [first, active[place + 1]], active[place + 1]
            children = [segment(number, first.hash_start, last.hash_end)]
        else:
            parents, middle = [first], (first.hash_start + first.hash_end) // 2
            children = [
                segment(number, first.hash_start, middle),
                segment(number + 1, middle + 1, first.hash_end),
            ]
        for child in children:
            self._settle_down(child)
        self.replace(parents[0].segment_id, *children)
        for parent in parents[1:]:
            self.replace(parent.segment_id)
        self._replaced += [parent.segment_id for parent in parents]
        self.say_layout()

    def _seal(self) -> None:
        if not self._replaced:
            return
        number = self._replaced.pop(self._random.randrange(len(self._replaced)))
        name = next(_wire_name(info) for info in self.dag.segments if info.segment_id == number)
        self._sealed.add(name)
        of_it = self._held_of(name)
        self._held = [one for one in self._held if one not in of_it]
        known = sum(self._is_stored(peer, send) for peer, send, _ in of_it)
        stored = self._random.randint(known, len(of_it))
        for peer, send, payload in of_it[:stored]:
            self._store(peer, send, payload)
        # What arrives behind the close gets no answer.
        for peer, send, _ in of_it[stored:] if self._random.random() < 0.5 else ():
            self._refuse(peer, send)
        self._close(name)

    def _move(self) -> None:
        """Move a segment. Some frames on their way are stored, and none is answered."""
        unsealed = [name for name in map(_wire_name, self.dag.segments) if name not in self._sealed]
        name = self._random.choice(unsealed)
        lost = self._held_of(name)
        self.leaves_doubt |= any(self._names[peer, send.producer_id] not in self._answered for peer, send, _ in lost)
        for peer, send, payload in lost[: self._random.randint(0, len(lost))]:
            self._keep(peer, send, payload)
        self._held = [one for one in self._held if one not in lost]
        self._close(name)
        self.owners[name] = ELSEWHERE

    def _held_of(self, name: str) -> list[tuple[BlockingPeer, pb.CommandSend, bytes]]:
        return [one for one in self._held if self._producers.get((one[0], one[1].producer_id)) == name]

    def _close(self, name: str) -> None:
        for peer, producer_id in [at for at, topic in self._producers.items() if topic == name]:
            del self._producers[peer, producer_id]
            peer.say(encode_command(commands.close_producer(producer_id)))

    def _refuse(self, peer: BlockingPeer, send: pb.CommandSend) -> None:
        refusal = commands.send_error(send.producer_id, send.sequence_id, pb.TopicTerminatedError, "sealed")
        peer.say(encode_command(refusal))


def _wire_name(info: pb.SegmentInfoProto) -> str:
    return f"segment://public/default/x/{info.hash_start:04x}-{info.hash_end:04x}-{info.segment_id}"


@given(st.integers(0, 1 << 32))
def test_each_row_is_stored_once_and_those_of_a_key_in_order(seed: int) -> None:
    """T20: in any case, unless the task fails. It fails only if the fate of a row is unknown."""
    random = Random(seed)
    world = Drawn(random)
    written: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "FRAME_ROWS_MAX", 2)
        patch.setattr(writing, "WINDOW_FRAMES_MAX", 5)
        attempt = world.attempt()
        try:
            for _ in range(random.randint(1, 20)):
                hashes = random.choices((*KEYS, NO_KEY), k=random.randint(1, 8))
                attempt.write(TOPIC, rows(*[(hashed, len(written) + place) for place, hashed in enumerate(hashes)]))
                written += hashes
                world.something()
            attempt.finish()
        except WriteFailed:
            assert world.leaves_doubt
            return
    found: dict[int, list[int]] = {hashed: [] for hashed in (*KEYS, NO_KEY)}
    # A child has a higher number than its parents, and of each key one segment is active at a time.
    for name in sorted(world.stored, key=lambda name: int(name.rpartition("-")[2])):
        for value in world.stored[name]:
            found[written[value]].append(value)
    found[NO_KEY].sort()
    assert found == {
        hashed: [value for value, one in enumerate(written) if one == hashed] for hashed in (*KEYS, NO_KEY)
    }

"""Kill the broker (kill -9) repeatedly under a load of transactions, restart it, and check that it kept its promises.

    python scripts/kill_loop.py [--kills 50] [--seed N] [--verbose]

The load runs on one scalable topic the whole time (tests/support/transactional_load.py): concurrent transactions over
several segments, which are committed, aborted or left open. A reader and a consumer follow it through all crashes. Two
pipelines (tests/support/pipeline.py) consume its messages, one as a stream and one as a queue. Each copies every
message to its own topic, in transactions that acknowledge what they copy. Meanwhile the segments of all three topics
are split and merged. At the end the broker is stopped, and the data on disk is compared with the answers that clients
got:

- every acknowledged commit is complete, and each of its messages is there once, at the position in its receipt;
- nothing of an aborted or unfinished transaction is visible;
- an unanswered commit is completely visible or not at all; a retry tells which, and a reader sees the same;
- the messages of each key are in the order in which they were sent, and so are the stream's copies;
- no position was ever given to two messages, not even to messages that were never visible;
- after a restart, no segment's readable position is lower than what was read before (D8);
- a consumer does not get a message again that it had acknowledged durably;
- every message has one copy in each topic, whatever the outcomes of earlier attempts to copy it;
- messages that a committed transaction acknowledged are not redelivered, neither then nor after the last start.

The seed decides the moments of the kills (tests/support/kill_moments.py). The exact timing depends on the machine, so a
seed that failed may need a few runs to fail again.

If all is well, the script prints one line and exits with 0. Otherwise it prints what was broken, the seed and the data
folder, and exits with 1.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from broker.addresses import Address
from tests.support.copies import END
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.dying_process import Death
from tests.support.followers import Reading, consume, follow
from tests.support.happenings import Happenings
from tests.support.http import request
from tests.support.kill_moments import READY, Moment, draw
from tests.support.kill_report import QUEUE, STREAM, Report
from tests.support.last_positions import last_positions
from tests.support.layout_changes import GONE, MERGE_DONE, SPLIT_DONE, LayoutChanges
from tests.support.outcomes import RETENTION_SECONDS, Outcomes
from tests.support.pipeline import Pipeline
from tests.support.transactional_load import Load
from tidewire.client.client import Client, connect
from tidewire.client.consumers import Receiving
from tidewire.client.producer import Producer
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.topic_names import segment_name, segment_topic

TOPIC: Final = "topic://public/default/kill-loop"
STREAM_COPIES: Final = "topic://public/default/kill-loop-stream-copies"
QUEUE_COPIES: Final = "topic://public/default/kill-loop-queue-copies"
SEGMENTS: Final = {TOPIC: 4, STREAM_COPIES: 2, QUEUE_COPIES: 2}

ROUND_SECONDS_MAX: Final = 3.0
"""After this time, a broker is killed even if it has not reached the moment of its kill."""

FINISH_SECONDS_MAX: Final = 60.0
"""How long the load may take to end, and a reader to read everything, after the last kill."""

QUIET_SECONDS: Final = 0.5
"""A consumer that got nothing for this time is considered to have everything."""


async def run(*, kills: int, seed: int, folder: Path, verbose: bool = False) -> Report:
    """Run the loop on data in `folder`, which must be empty. Complaints are in the report.

    Raises:
        BrokerFailure: the broker did not start or ended by itself.
    """
    return await _KillLoop(seed, folder, verbose=verbose).run(kills)


class _KillLoop:
    def __init__(self, seed: int, folder: Path, *, verbose: bool) -> None:
        self._report = Report(seed)
        self._folder = folder
        self._verbose = verbose
        self._happenings = Happenings()
        self._outcomes = Outcomes(self._happenings)
        self._reader = Reading("reader")
        self._consumer = Reading("consumer")
        self._reached: dict[str, tuple[int, int]] = {}
        """By segment's topic: the ledger and entry up to which it was readable at some time."""

    async def run(self, kills: int) -> Report:
        report = self._report
        moments = Random(f"{report.seed}/moments")  # noqa: S311 - to be repeated by its seed
        arguments = (
            # Small files, so that ledgers roll and journal files are freed under the kills too.
            *("--journal-file-bytes-max", "1MiB", "--ledger-bytes-max", "1MiB"),
            *("--txn-retention-seconds", str(2 * RETENTION_SECONDS)),
            # Consumers come back under their names, and mostly sooner than that.
            *("--consumer-session-grace-seconds", "2"),
        )
        with dying_broker(self._folder / "data", *arguments) as broker:
            await _start(broker)
            http = Address(*broker.http)
            for topic, count in SEGMENTS.items():
                path = "/admin/v2/scalable/" + topic.removeprefix("topic://")
                answer = await request(http, "PUT", f"{path}?numInitialSegments={count}")
                assert answer.status == 204, answer
            changes = LayoutChanges(http, self._happenings)
            with trio.CancelScope() as working:
                async with (
                    connect(broker.service_url, operation_timeout_seconds=60, reconnect_seconds_max=0.1) as client,
                    client.producer(TOPIC) as producer,
                    client.producer(STREAM_COPIES) as stream_copies,
                    client.producer(QUEUE_COPIES) as queue_copies,
                ):
                    given = (self._happenings, self._outcomes)
                    load = Load(client, producer, report.history, *given, seed=report.seed)
                    pipelines = [
                        Pipeline(
                            client, TOPIC, name, target, report.copies[name], *given, ordered=ordered, seed=report.seed
                        )
                        for name, target, ordered in ((STREAM, stream_copies, True), (QUEUE, queue_copies, False))
                    ]
                    async with trio.open_nursery() as nursery:
                        await self._follow(client, nursery)
                        nursery.start_soon(load.run)
                        for pipeline in pipelines:
                            nursery.start_soon(pipeline.run)
                        for number in range(kills):
                            moment = draw(moments, from_outside=number == 0)
                            await self._kill_once(broker, changes, moment, starts=number > 0)
                        await _start(broker)
                        await self._check_positions(broker, changes)
                        ends = {TOPIC: await self._finish(load, changes)}
                        if ends[TOPIC]:
                            await self._catch_up(ends[TOPIC])
                            await self._finish_copying(pipelines, ends[TOPIC])
                            for topic, target in ((STREAM_COPIES, stream_copies), (QUEUE_COPIES, queue_copies)):
                                ends[topic] = await _mark(END, changes, topic, target)
                        nursery.cancel_scope.cancel()
                    if not ends[TOPIC]:
                        # The end of the producer would wait for the answers that the load has waited for.
                        working.cancel()
            if ends[TOPIC]:
                await self._look_at_the_disk(broker, changes, ends)
        self._sum_up([*load.complaints, *changes.complaints])
        return report

    def _sum_up(self, complaints: Sequence[str]) -> None:
        report, history = self._report, self._report.history
        report.splits, report.merges = (self._happenings.counts[kind] for kind in (SPLIT_DONE, MERGE_DONE))
        report.unanswered = self._outcomes.unanswered_seen
        report.complaints += [*complaints, *self._outcomes.complaints]
        for copies in report.copies.values():
            report.complaints += copies.complaints
        for reading, contradictions in (
            (self._reader, history.judge(self._reader.reads)),
            (self._consumer, history.judge_again(self._consumer.reads)),
        ):
            report.complaints += reading.complaints + [f"the {reading.name}: {text}" for text in contradictions]

    async def _follow(self, client: Client, nursery: trio.Nursery) -> None:
        async def read(task_status: trio.TaskStatus[None]) -> None:
            async with client.reader(TOPIC) as reader:
                task_status.started()
                await follow(reader, self._reader)

        async def consume_all(task_status: trio.TaskStatus[None]) -> None:
            async with client.stream_consumer(TOPIC, "kill-loop") as consumer:
                task_status.started()
                await consume(consumer, self._consumer)

        await nursery.start(read)
        await nursery.start(consume_all)

    # Kills

    async def _kill_once(self, broker: DyingBroker, changes: LayoutChanges, moment: Moment, *, starts: bool) -> None:
        self._say(f"kill {self._report.kill_count + 1}: {moment}")
        if starts and not await _start(broker, moment.death):
            self._report.kills["at start-up"] += 1
            return
        async with trio.open_nursery() as nursery:
            if moment.change_after_seconds is not None:
                nursery.start_soon(self._change_segments, changes, moment.change_after_seconds)
            if starts:
                nursery.start_soon(self._check_positions, broker, changes)
            if moment.death is None:
                where = "from outside"
                with trio.move_on_after(ROUND_SECONDS_MAX):
                    if moment.event != READY:
                        await self._happenings.nth(moment.event, moment.nth)
                    await trio.sleep(moment.delay_seconds)
                broker.send_kill()
            else:
                where = "at a disk write"
                if not await trio.to_thread.run_sync(broker.wait, ROUND_SECONDS_MAX):
                    where = "from outside"
                    broker.send_kill()
            self._outcomes.broker_died(self._random("kill"))
            if broker.is_running:
                await trio.to_thread.run_sync(broker.wait)
            nursery.cancel_scope.cancel()
        self._report.kills[where] += 1

    async def _change_segments(self, changes: LayoutChanges, delay_seconds: float) -> None:
        await trio.sleep(delay_seconds)
        # Usually of the topic that all clients use.
        await changes.change((TOPIC, TOPIC, STREAM_COPIES, QUEUE_COPIES), self._random("split"))

    def _random(self, what: str) -> Random:
        return Random(f"{self._report.seed}/{what} {self._report.kill_count}")  # noqa: S311

    async def _check_positions(self, broker: DyingBroker, changes: LayoutChanges) -> None:
        """D8: everything readable before the kill is readable again, before any new transaction ends."""
        reached = self._reached
        try:
            topics = {
                view.segment_id: segment_topic(TOPIC, segment_name(view.start, view.end, view.segment_id))
                for view in await changes.segments(TOPIC)
            }
            for segment_id, place in self._reader.last.items():
                reached[topics[segment_id]] = max(place, reached.get(topics[segment_id], place))
            before = dict(reached)
            found = await last_positions(*broker.pulsar, topics.values())
        except (TidewireError, *GONE):
            # The broker was killed meanwhile. The check is repeated after the next start.
            return
        for topic, place in found.items():
            if place < before.get(topic, place):
                self._report.complaints.append(f"{topic} was readable up to {before[topic]}, now only up to {place}")
            reached[topic] = max(place, reached.get(topic, place))

    # The end

    async def _finish(self, load: Load, changes: LayoutChanges) -> set[bytes]:
        with trio.move_on_after(FINISH_SECONDS_MAX):
            return await load.finish([view for view in await changes.segments(TOPIC) if view.is_active])
        self._report.complaints.append(f"the load did not end within {FINISH_SECONDS_MAX} s")
        return set()

    async def _catch_up(self, ends: set[bytes]) -> None:
        for reading in (self._reader, self._consumer):
            await self._until_seen(reading, ends)

    async def _until_seen(self, reading: Reading, values: set[bytes]) -> None:
        with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
            await reading.until_seen(values)
        if waiting.cancelled_caught:
            self._report.complaints.append(f"the {reading.name} never got {reading.missing(values)}")

    async def _finish_copying(self, pipelines: Sequence[Pipeline], ends: set[bytes]) -> None:
        values = self._report.history.committed() | ends
        for name, pipeline in zip(self._report.copies, pipelines, strict=True):
            with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
                await pipeline.until_settled(values)
                await pipeline.finish()
            if waiting.cancelled_caught:
                missing = sorted(self._report.copies[name].missing(values))
                self._report.complaints.append(f"{name} did not copy {len(missing)} messages: {missing[:10]}")
        await self._outcomes.finish()

    async def _look_at_the_disk(self, broker: DyingBroker, changes: LayoutChanges, ends: dict[str, set[bytes]]) -> None:
        """Check after a clean stop what clients get from a broker that has nothing in memory."""
        report = self._report
        await trio.to_thread.run_sync(broker.stop)
        await _start(broker)
        readings = {topic: Reading(f"new reader of {topic}") for topic in SEGMENTS}
        async with connect(broker.service_url) as client:
            for topic, reading in readings.items():
                async with client.reader(topic) as reader, trio.open_nursery() as nursery:
                    nursery.start_soon(follow, reader, reading)
                    await self._until_seen(reading, ends[topic])
                    nursery.cancel_scope.cancel()
                report.complaints += reading.complaints
            await self._look_for_unacknowledged(client, changes)
        inputs = readings[TOPIC].reads
        report.read = sum(len(reading.reads) for reading in readings.values())
        report.complaints += report.history.judge(inputs)
        for name, topic, is_ordered in ((STREAM, STREAM_COPIES, True), (QUEUE, QUEUE_COPIES, False)):
            complaints = report.copies[name].judge(report.history, inputs, readings[topic].reads, is_ordered=is_ordered)
            report.complaints += [f"{name}: {text}" for text in complaints]

    async def _look_for_unacknowledged(self, client: Client, changes: LayoutChanges) -> None:
        """Check that the pipelines' subscriptions deliver only messages that are sent now."""
        async with client.producer(TOPIC) as producer:
            late = await _mark(b"late", changes, TOPIC, producer)
        async with client.stream_consumer(TOPIC, STREAM) as ordered, client.queue_consumer(TOPIC, QUEUE) as unordered:
            for name, consumer in ((STREAM, ordered), (QUEUE, unordered)):
                got = await _receive(consumer, len(late))
                if set(got) - late:
                    strange = sorted(set(got) - late)
                    self._report.complaints.append(f"{name} had left {len(strange)} messages: {strange[:10]!r:.500}")
                elif missing := late - set(got):
                    self._report.complaints.append(f"{name} never got {missing}")

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text, flush=True)


async def _receive(consumer: Receiving, count: int) -> list[bytes]:
    """Receive `count` messages, and any that follow until nothing more comes."""
    values: list[bytes] = []
    with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
        while True:
            values.append((await consumer.receive()).value)
            if len(values) >= count:
                waiting.deadline = trio.current_time() + QUIET_SECONDS
    return values


async def _mark(what: bytes, changes: LayoutChanges, topic: str, producer: Producer) -> set[bytes]:
    """Send a last message to each of the topic's active segments. Return their values."""
    values = set()
    for segment in await changes.segments(topic):
        if segment.is_active:
            value = b"%s.%d" % (what, segment.segment_id)
            await producer.send(value, key=segment.key())
            values.add(value)
    return values


async def _start(broker: DyingBroker, death: Death | None = None) -> bool:
    """Start the broker. Return whether it became ready; False if it killed itself before."""
    return await trio.to_thread.run_sync(broker.start, death)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="number of kills [%(default)s]")
    parser.add_argument("--seed", type=int, default=None, help="seed of the moments and the load [drawn, and printed]")
    parser.add_argument("--verbose", action="store_true", help="print each kill's moment")
    given = parser.parse_args()
    seed = Random().randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311
    folder = Path(tempfile.mkdtemp(prefix="kill-loop-"))
    try:
        report = trio.run(lambda: run(kills=given.kills, seed=seed, folder=folder, verbose=given.verbose))
    except BaseException:
        print(f"kill loop: seed {seed} failed; the data is in {folder}", file=sys.stderr)
        raise
    print(f"kill loop: {report}")
    if report.complaints:
        for complaint in report.complaints:
            print(f"  {complaint}")
        print(f"the data is in {folder}; to repeat: scripts/kill_loop.py --kills {given.kills} --seed {seed}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Reads what copiers made, with a new client, and compares it with what was written and what others saw."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.support.history import COMPLAINTS_MAX, History, Read
from tests.support.kafka_clients.confluent import ConfluentAdmin
from tests.support.kafka_clients.contract import Place as Partition
from tests.support.kafka_copiers.copying import Record, copies_in
from tests.support.kafka_copiers.following import Follower
from tests.support.row_copies import judge

POLLS_MAX: Final = 300


def read_and_judge(
    address: str, source: str, targets: Mapping[str, str], partitions: int, history: History, follower: Follower
) -> tuple[dict[str, int], list[str]]:
    """Return the number of copies of each group, and complaints. It blocks.

    Args:
        address: of the broker, which nobody kills any more.
        source: the topic that the feed has written.
        targets: each group's topic.
        partitions: of each topic.
        history: what the feed was told.
        follower: has read along from the beginning. It is closed.
    """
    topics = [source, *targets.values()]
    reader = Follower(address, dict.fromkeys(topics, partitions))
    reader.read_all(POLLS_MAX)
    reader.close()
    inputs = [Read(one.place, one.key.decode(), one.value) for one in reader.records[source]]
    complaints = [f"the source: {complaint}" for complaint in history.judge(inputs)]
    counts = {}
    for group, target in targets.items():
        wrong: list[str] = []
        copies = list(copies_in(reader.records[target], wrong))
        counts[group] = len(copies)
        complaints += [f"{target}: {text}" for text in [*wrong, *judge(history, inputs, copies)][:COMPLAINTS_MAX]]
        complaints += _wrong_offsets(address, group, source, partitions, reader.records[source])
    for topic in topics:
        for partition in range(partitions):
            seen, there = (_of(records.records[topic], partition) for records in (follower, reader))
            if seen != there[: len(seen)]:
                complaints.append(f"{topic}, partition {partition}: a reader along the way saw something else")
    return counts, complaints


def _wrong_offsets(address: str, group: str, source: str, partitions: int, records: Sequence[Record]) -> Iterator[str]:
    offsets = ConfluentAdmin(address).committed(group)
    for partition in range(partitions):
        last = max((one.offset for one in _of(records, partition)), default=None)
        expected = None if last is None else last + 1
        committed = offsets.get(Partition(source, partition))
        found = None if committed is None else committed.offset
        if found != expected:
            yield f"group {group} has the offset {found} in partition {partition}, and not {expected}"


def _of(records: Sequence[Record], partition: int) -> list[Record]:
    return [one for one in records if one.partition == partition]

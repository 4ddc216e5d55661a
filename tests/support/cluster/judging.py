"""The judge of a simulated cluster. It compares what everybody was told with the log that the disk holds at the end.

The log is whole, because the cluster keeps what log files held when they were removed. It gives a state to each
revision. Then:

| what                          | is right if                                                                        |
|-------------------------------|------------------------------------------------------------------------------------|
| a write that was acknowledged | its revision holds exactly its records, and nobody else's                          |
| a write that was refused      | the log does not hold it; a conflict's version was not gone before the call        |
| a write of unknown outcome    | the log holds it once, behind all that was answered before it, or not at all       |
| a read                        | it is the state of its revision                                                    |
| any two calls one by one      | the later one's revision is not lower (M2)                                         |
| a watch                       | each step is the state of its revision, and skips none unless an image came        |
| the images at the end         | are all the state of the log                                                       |
| a session that has ended      | its owner ended it, or something disturbed its process (C5); its owner knew before |
|                               | the log said so (C13)                                                              |
| epochs                        | there are no more than processes that started, ended or were stopped (C13)         |
"""

from collections import defaultdict
from collections.abc import Iterator
from random import Random

from storage.metadata.batches import BEGINNING
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.records import DataRecord
from storage.metadata.recovery import Recovery
from storage.metadata.store import Put, PutSequential, Record
from tests.support.cluster.history import Call, History, Watched
from tests.support.cluster.nodes import Cluster
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DIRECTORY


class Truth:
    """The state at each revision, by the log."""

    def __init__(self, change_sets: list[list[DataRecord]]) -> None:
        image = Image()
        self.changed: dict[int, dict[str, Record | None]] = defaultdict(dict)
        """By revision: the keys that it changed."""
        self._versions: dict[str, list[tuple[int, Record | None]]] = defaultdict(list)
        """By key: what it was from each revision on."""
        self.made: dict[bytes, list[Record]] = defaultdict(list)
        """By value: the records that were written with it."""
        self.sessions: dict[int, int] = {}
        for change_set in change_sets:
            for written in image.apply(change_set):
                self.changed[image.revision][written.key] = written.new
                self._versions[written.key].append((image.revision, written.new))
                if written.new is not None:
                    self.made[written.new.value].append(written.new)
        self.image = image
        self.revision = image.revision

    def at(self, key: str, revision: int) -> Record | None:
        """What the key was at a revision."""
        found = [record for begin, record in self._versions[key] if begin <= revision]
        return found[-1] if found else None

    def state(self, prefix: str, revision: int) -> dict[str, Record]:
        """The records of a range at a revision."""
        found = {key: self.at(key, revision) for key in self._versions if key.startswith(prefix)}
        return {key: record for key, record in found.items() if record is not None}

    def versions_between(self, key: str, low: int, high: int) -> set[int]:
        """The versions that the key had at the revisions from `low` to `high`, 0 for no record."""
        revisions = {low, *(begin for begin, _record in self._versions[key] if low <= begin <= high)}
        found = (self.at(key, revision) for revision in revisions)
        return {0 if record is None else record.version for record in found}


def read_truth(cluster: Cluster) -> Truth:
    """Read the whole log from the disk."""
    found = cluster.disk.process()
    folder = SimulatedFiles()
    folder.make_dir(DIRECTORY)
    contents = dict(cluster.removed)
    for name in found.names(DIRECTORY):
        if not name.endswith((".snapshot", "-unfinished")):
            contents[name] = found.content(DIRECTORY / name)
    for name, content in contents.items():
        folder.open(DIRECTORY / name, create=True).write_at(0, content)
    kept: list[list[DataRecord]] = []
    epochs = MetadataEpochs(folder, DIRECTORY, Random(0).getrandbits)
    Recovery.behind(folder, DIRECTORY, epochs, Image(), BEGINNING, kept)
    return Truth(kept)


async def judge(cluster: Cluster) -> list[str]:
    """Return complaints. The cluster is at rest."""
    history = cluster.history
    truth = read_truth(cluster)
    return [
        *history.complaints,
        *_judge_calls(truth, history),
        *(complaint for watched in history.watched for complaint in _judge_watch(truth, watched)),
        *_judge_end(truth, cluster),
    ]


def _judge_calls(truth: Truth, history: History) -> Iterator[str]:
    floors = _floors(history)
    owners: dict[int, Call] = {}
    for call in history.calls:
        floor = floors[call.began]
        values = [op.value for op in call.ops if isinstance(op, Put | PutSequential)]
        made = {record.version for value in values for record in truth.made[value]}
        what = f"{call.broker}'s call {call.began} {_what(call)}"
        if len(made) > 1:
            yield f"{what} was made more than once, as revisions {sorted(made)}"
        if call.outcome in {"conflict", "refused"} and made:
            yield f"{what} was refused, and is made as {sorted(made)}"
        if any(revision <= floor for revision in made):
            yield f"{what} began behind revision {floor}, and is made as {sorted(made)}"
        if call.outcome == "conflict":
            assert call.conflict is not None
            key, actual = call.conflict
            if actual not in truth.versions_between(key, floor, truth.revision):
                yield f"{what} met version {actual} of {key}, which was gone before revision {floor}"
        if call.outcome != "done":
            continue
        if not call.ops:
            if call.revision < floor:
                yield f"{what} reads revision {call.revision} behind {floor}"
            for key, record in call.records.items():
                if truth.at(key, call.revision) != record:
                    yield f"{what} reads {record} at {call.revision}, and it is {truth.at(key, call.revision)}"
            continue
        if values:
            if made != {call.revision}:
                yield f"{what} was acknowledged as revision {call.revision}, and is made as {sorted(made)}"
            if call.revision in owners:
                yield f"{what} has the same revision as {owners[call.revision].began}"
            owners[call.revision] = call
            for op, written in zip(call.ops, call.keys, strict=True):
                found = truth.changed[call.revision].get(written or "")
                if isinstance(op, Put | PutSequential) and (found is None or found.value != op.value):
                    yield f"{what} was acknowledged, and the log holds {found}"
        elif call.revision < floor:
            yield f"{what} was acknowledged as revision {call.revision} behind {floor}"


def _floors(history: History) -> dict[int, int]:
    """The highest revision that anybody was told of before each call began."""
    events: list[tuple[int, int]] = [(call.began, 0) for call in history.calls]
    events += [
        (call.ended, call.revision) for call in history.calls if call.ended is not None and call.outcome == "done"
    ]
    events += [(told.at, told.change.revision) for watched in history.watched for told in watched.steps]
    floors: dict[int, int] = {}
    highest = 0
    for at, revision in sorted(events):
        floors[at] = highest
        highest = max(highest, revision)
    return floors


def _judge_watch(truth: Truth, watched: Watched) -> Iterator[str]:
    what = f"{watched.broker}'s watch of {watched.prefix}"
    state: dict[str, Record] = {}
    before = None
    for told in watched.steps:
        change = told.change
        if before is not None:
            if change.revision <= before.change.revision:
                yield f"{what} was told revision {change.revision} behind {before.change.revision}"
            skipped = [
                revision
                for revision in range(before.change.revision + 1, change.revision)
                if any(key.startswith(watched.prefix) for key in truth.changed.get(revision, ()))
            ]
            if skipped and told.images == before.images and not told.is_taking_over:
                yield f"{what} was not told of revisions {skipped}"
        state |= {record.key: record for record in change.records}
        for key in change.deleted:
            state.pop(key, None)
        if state != truth.state(watched.prefix, change.revision):
            true = truth.state(watched.prefix, change.revision)
            yield f"{what} shows {_short(state)} at {change.revision}, and it was {_short(true)}"
            return
        before = told
    if not watched.is_over and state != truth.state(watched.prefix, truth.revision):
        yield f"{what} ends with {_short(state)}"


def _judge_end(truth: Truth, cluster: Cluster) -> Iterator[str]:
    for name, node in cluster.nodes.items():
        if node.store is None or node.is_stopped:
            continue
        image = node.store._image
        if image.revision != truth.revision:
            yield f"{name} is at revision {image.revision}, and the log at {truth.revision}"
        elif {record.key: record for record in image.scan("", "\U0010ffff", None)} != truth.state("", truth.revision):
            yield f"{name}'s records are not those of the log"
        elif image.sessions != truth.image.sessions:
            yield f"{name}'s sessions are not those of the log"
    for held in cluster.history.sessions:
        if held.session.has_ended and not (held.is_over or held.is_disturbed):
            yield f"session {held.session.id} of {held.broker} has ended, and nothing disturbed it"
    if truth.image.epoch > cluster.epochs_due:
        yield f"there are {truth.image.epoch} epochs, and {cluster.epochs_due} reasons for one"


def _what(call: Call) -> str:
    if not call.ops:
        return f"of {', '.join(call.records)}"
    op = call.ops[0]
    return f"{type(op).__name__} {getattr(op, 'key', '')} {getattr(op, 'value', b'')[:20]!r}"


def _short(state: dict[str, Record]) -> str:
    return ", ".join(f"{key}@{record.version}" for key, record in sorted(state.items())) or "nothing"

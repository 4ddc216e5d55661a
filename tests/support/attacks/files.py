"""Damages one file of every kind in a data folder, and checks how a broker reacts.

A broker is filled with a witness's messages and killed. Then, for each kind of file, one file in a copy of its folder
is damaged, and a broker is started on the copy. It may do one of three things:

- refuse to start, with one sentence that names the file or its folder;
- serve everything that was acknowledged;
- report the damage to readers, naming the file, and serve everything else.

It must never show aborted messages, messages that were never sent, or one message twice. It must not withhold a message
without reporting it.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, NamedTuple

import trio

import tidewire
from tests.support.admin import Admin
from tests.support.attacks.siege import Verdict
from tests.support.attacks.witness import END, Witness
from tests.support.processes import BROKER_COMMAND, BrokerFailure, RunningBroker, running_broker
from tidewire.client.client import Client
from tidewire.protocol.errors import TidewireError

WORK_SECONDS: Final = 1.5
"""How long the witness works, each of three times."""
TOLD_SECONDS_MAX: Final = 60
"""A reader that gets nothing for this long counts as not told."""
FLAGS: Final = (
    *("--ledger-age-seconds-max", "0.5"),
    *("--journal-file-bytes-max", "1MiB"),
    *("--txn-retention-seconds", "0.5"),
)
"""With these flags, every kind of file is created within a second."""


class Kind(NamedTuple):
    """A kind of file, by its path in the data folder."""

    name: str
    pattern: re.Pattern[str]


KINDS: Final = tuple(
    Kind(name, re.compile(pattern))
    for name, pattern in (
        ("ledger", r"ledgers/\d{20}\.ledger"),
        ("ledger index", r"ledgers/\d{20}\.index"),
        ("aborted index", r"ledgers/\d{20}\.aborted-\d+"),
        ("hidden entries", r"ledgers/\d{20}\.hidden"),
        ("journal", r"brokers/[^/]+/journal/\d{10}-\d{10}-[0-9a-f]{16}\.journal"),
        ("fence", r"brokers/[^/]+/journal/fence-\d{10}"),
        ("broker lock", r"brokers/[^/]+/lock"),
        ("metadata log", r"metadata/\d{20}-\d{10}\.(closed-)?log"),
        ("metadata snapshot", r"metadata/\d{20}-\d{10}\.snapshot"),
        ("notice to older releases", r"metadata/9{20}\.snapshot"),
        ("metadata fence", r"metadata/fence-\d{10}"),
        ("metadata controller lock", r"metadata/controller-\d{10}\.lock"),
        ("metadata lock", r"metadata/lock"),
        ("identity", r"identity\.json"),
        ("identity lock", r"identity\.lock"),
    )
)


def kind_of(relative: str) -> Kind | None:
    """Return the kind of a file; None if the table has no kind for it."""
    return next((kind for kind in KINDS if kind.pattern.fullmatch(relative)), None)


@dataclass
class Stock:
    """A data folder with messages in it, whose broker was killed."""

    folder: Path
    older: Path
    """The same after an earlier life of the broker."""
    witness: Witness
    complaints: list[str] = field(default_factory=list)

    def paths(self, kind: Kind) -> list[str]:
        """Return the files of a kind, sorted."""
        return _of_kind(self.folder, kind)


def stocked(folder: Path, seed: int) -> Stock:
    """Make a stock in an empty folder; blocks."""
    folder.mkdir()
    data, older = folder / "data", folder / "older"
    with running_broker(data, *FLAGS) as broker:
        witness = Witness(broker.service_url, broker.http_url, "stock", seed, segments=1)
        trio.run(_prepare, witness)
        trio.run(_work, witness)
        broker.kill()
        shutil.copytree(data, older)
        broker.start()
        witness.restarted(broker.service_url, broker.http_url)
        trio.run(_work, witness)
        Admin(broker.http_url).take_snapshot()
        trio.run(_work, witness)
        broker.kill()
    stock = Stock(data, older, witness, list(witness.complaints))
    for path in _files(data):
        if kind_of(path) is None:
            stock.complaints.append(f"{path} has a kind that is missing in the table of kinds. Add it.")
    for kind in KINDS:
        if not stock.paths(kind):
            stock.complaints.append(f"the stocked folder has no {kind.name}")
    return stock


async def _prepare(witness: Witness) -> None:
    await witness.prepare()


async def _work(witness: Witness) -> None:
    async with witness.at_work():
        await trio.sleep(WORK_SECONDS)


# ------------------------------------------------------------------------------------------------------------- damages


class Done(NamedTuple):
    """The damage that was done."""

    how: str
    paths: tuple[str, ...]


Damage = Callable[[Stock, Path, str, Random], Done | None]
"""Damages a file of the copy, given the copy's folder and the path in it. None: this damage does not apply."""


def flip(_stock: Stock, copy: Path, path: str, chance: Random) -> Done | None:
    """Flip one bit."""
    content = bytearray((copy / path).read_bytes())
    used = _used(content)
    if not used:
        return None
    bit = chance.randrange(8 * used)
    content[bit // 8] ^= 1 << bit % 8
    (copy / path).write_bytes(content)
    return Done(f"bit {bit % 8} of byte {bit // 8} of {used}", (path,))


def truncate(_stock: Stock, copy: Path, path: str, chance: Random) -> Done | None:
    """Cut off a part of the written bytes at the end."""
    content = (copy / path).read_bytes()
    used = _used(content)
    if not used:
        return None
    size = chance.randrange(used)
    (copy / path).write_bytes(content[:size])
    return Done(f"cut at {size} of {used} bytes", (path,))


def extend(_stock: Stock, copy: Path, path: str, chance: Random) -> Done | None:
    """Append bytes that the broker did not write."""
    junk = chance.randbytes(chance.choice((1, 100, 5_000)))
    with (copy / path).open("ab") as file:
        file.write(junk)
    return Done(f"{len(junk)} bytes of junk at the end", (path,))


def delete(_stock: Stock, copy: Path, path: str, _chance: Random) -> Done | None:
    """Delete the file."""
    (copy / path).unlink()
    return Done("deleted", (path,))


def older(stock: Stock, copy: Path, path: str, chance: Random) -> Done | None:
    """Replace the file by an earlier state of it, or of another file of its kind."""
    content = (copy / path).read_bytes()
    same = [path] if (stock.older / path).exists() else _of_kind(stock.older, kind_of(path))
    before = [found for found in same if (stock.older / found).read_bytes() != content]
    if not before:
        return None
    chosen = chance.choice(before)
    shutil.copyfile(stock.older / chosen, copy / path)
    return Done(f"replaced by {chosen} of an earlier time", (path,))


def swap(stock: Stock, copy: Path, path: str, chance: Random) -> Done | None:
    """Swap the names of two files."""
    content = (copy / path).read_bytes()
    paths = _of_kind(stock.folder, kind_of(path))
    others = [other for other in paths if other != path and (copy / other).read_bytes() != content]
    if not others:
        return None
    other = chance.choice(others)
    (copy / path).write_bytes((copy / other).read_bytes())
    (copy / other).write_bytes(content)
    return Done(f"swapped with {other}", (path, other))


DAMAGES: Final[dict[str, Damage]] = {
    f"files.{damage.__name__}": damage for damage in (flip, truncate, extend, delete, older, swap)
}


# ------------------------------------------------------------------------------------------------------------- verdict


def damage_every_kind(stock: Stock, name: str, seed: int, seconds: float) -> Verdict:
    """Apply one damage to a file of each kind, in random order, until the time is over; blocks. At least one is done.

    The choice of each damaged file depends only on seed, damage and kind.
    """
    verdict = Verdict(name, complaints=list(stock.complaints))
    start = monotonic()
    counts = Counter[str]()
    for kind in Random(f"{seed}/{name}").sample(KINDS, len(KINDS)):
        if counts and monotonic() - start > seconds:
            break
        paths = stock.paths(kind)
        if not paths:
            continue
        chance = Random(f"{seed}/{name}/{kind.name}")
        copy = stock.folder.with_name("copy") / "data"
        shutil.copytree(stock.folder, copy)
        try:
            tries = (DAMAGES[name](stock, copy, path, chance) for path in chance.sample(paths, len(paths)))
            done = next(filter(None, tries), None)
            if done is None:
                continue
            outcome = _outcome(stock, copy, done.paths)
            counts[outcome.short] += 1
            verdict.complaints += [f"{done.paths[0]} ({done.how}): {complaint}" for complaint in outcome.complaints]
            verdict.notes.append(f"{kind.name}: {outcome.short}")
        finally:
            shutil.rmtree(copy.parent)
    verdict.seconds = monotonic() - start
    verdict.did = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return verdict


@dataclass
class _Outcome:
    short: str
    complaints: list[str] = field(default_factory=list)


def _outcome(stock: Stock, copy: Path, paths: Sequence[str]) -> _Outcome:
    broker = RunningBroker(copy, FLAGS, BROKER_COMMAND)
    try:
        broker.start()
    except BrokerFailure:
        broker.close()
        return _refusal(broker.stderr, copy)
    try:
        complaints, is_told = trio.run(_judge, stock.witness, broker, [Path(path).stem for path in paths])
        outcome = _Outcome("told to readers" if is_told else "served", complaints)
        if "Traceback" in broker.stderr:
            outcome.complaints.append(f"a defect was logged: {broker.stderr[-1000:]}")
        broker.stop()
    except BrokerFailure as failure:
        return _Outcome("died", [f"the broker ended while it was read: {str(failure)[-1000:]}"])
    finally:
        broker.close()
    return outcome


def _refusal(said: str, data_dir: Path) -> _Outcome:
    outcome = _Outcome("refused")
    sentences = [line for line in said.splitlines() if line.startswith("tidewire broker: ")]
    if len(sentences) != 1 or "Traceback" in said:
        outcome.complaints.append(f"refused without a sentence: {said[-1000:]}")
    elif str(data_dir) not in sentences[0]:
        # The file or the folder: if two files do not match, the broker cannot know which one is wrong.
        outcome.complaints.append(f"refused, and neither file nor folder is named: {sentences[0]}")
    return outcome


async def _judge(witness: Witness, broker: RunningBroker, names: Sequence[str]) -> tuple[list[str], bool]:
    complaints: list[str] = []
    told: list[str] = []
    async with tidewire.connect(broker.service_url) as client:
        for topic in witness.topics:
            seen = Counter[bytes]()
            reason = await _read(client, topic, seen)
            if reason is not None:
                told.append(reason)
            missing = witness.owed(topic) - seen.keys()
            if missing and reason is None:
                complaints.append(f"{topic}: {len(missing)} acknowledged messages are missing, and nobody was told")
            if reason is not None and not any(name in reason for name in names):
                complaints.append(f"{topic}: the file is not named: {reason}")
            if shown := seen.keys() & witness.forbidden(topic):
                complaints.append(f"{topic}: aborted and shown: {sorted(shown)[:3]}")
            if doubled := [value for value, count in seen.items() if count > 1]:
                complaints.append(f"{topic}: shown twice: {doubled[:3]}")
            if strange := {value for value in seen.keys() - witness.known(topic) if not value.startswith(END)}:
                complaints.append(f"{topic}: shown, and nobody sent it: {sorted(strange)[:3]}")
    return complaints, bool(told)


async def _read(client: Client, topic: str, seen: Counter[bytes]) -> str | None:
    """Read the topic to its end. Return the messages, or the error that came instead."""
    try:
        with trio.move_on_after(TOLD_SECONDS_MAX):
            async with client.producer(topic) as producer, client.reader(topic) as reader:
                await producer.send(END)
                while END not in seen:
                    seen[(await reader.receive()).value] += 1
                return None
    except TidewireError as error:
        return str(error)
    return f"nothing for {TOLD_SECONDS_MAX} s"


def _used(content: bytes | bytearray) -> int:
    """Return the size up to the last byte that is not zero, because files are preallocated with zeros."""
    return len(content.rstrip(b"\0"))


def _files(folder: Path) -> Sequence[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _of_kind(folder: Path, kind: Kind | None) -> list[str]:
    assert kind is not None
    return [path for path in _files(folder) if kind.pattern.fullmatch(path)]

"""Each client's requests: drawn from a seed, on few keys, so that calls collide.

The keys come in groups: `/g7/a` to `/g7/d`, sequential records under `/g7/s-`, and the group's own index. Two groups
are
in use at a time, each for a limited number of calls. Then a new one replaces it, so that the judge has many short
histories instead of a long one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import trio

from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    Op,
    Put,
    PutSequential,
    Record,
    starting_with,
)
from tests.linearizability.histories import PADDING, Client

KEYS: Final = "abcd"
INDEX_KEYS: Final = ("open", "done", "00000000000000000009", "00000000000000000010")

GIVEN_UP: Final = 0.03
"""The share of calls that are given up before their answer, if it takes longer than a moment."""
PATIENCE_SECONDS: Final = 0.005

PADDING_BYTES: Final = 3_500
"""Of some values, so that three of them are more than a batch of the embedded store's log takes (8 KiB)."""


@dataclass(slots=True)
class Groups:
    """The groups in use."""

    calls_max: int = 400
    """Of one group, about; half of its life it shares with the group before, half with the one after."""
    calls: int = 0

    def draw(self, random: Random) -> str:
        """Draw a group for the next call."""
        self.calls += 1
        newest = 2 * self.calls // self.calls_max
        return f"/g{newest - random.randrange(2) if newest else 0}"

    @property
    def names(self) -> list[str]:
        """Return all groups that were ever in use."""
        return [f"/g{number}" for number in range(2 * self.calls // self.calls_max + 1)]


@dataclass(slots=True)
class Asker:
    """One client's choices. It knows only its own answers."""

    number: int
    random: Random
    groups: Groups
    _known: dict[str, int] = field(default_factory=dict)
    """The versions it was last told, ABSENT included."""
    _padding: int = 0
    _values: Iterator[int] = field(default_factory=lambda: count(1))

    async def ask(self, client: Client) -> None:
        """Make one call, or begin one and give it up: its outcome is then as unknown as with a kill (M22).

        Raises:
            StoreUnavailable: its outcome is unknown.
        """
        gives_up = self.random.random() < GIVEN_UP
        with trio.move_on_after(self.random.uniform(0, PATIENCE_SECONDS) if gives_up else math.inf):
            await self._ask(client)

    async def _ask(self, client: Client) -> None:
        group = self.groups.draw(self.random)
        kind = self.random.choices(("get", "scan", "query", "commit"), (20, 12, 14, 54))[0]
        start, end = starting_with(f"{group}/")
        limit = self.random.choice((None, None, None, 1, 3))
        if kind == "get":
            key = self._key(group)
            self._learn(key, await client.get(group, key))
        elif kind == "scan":
            if self.random.random() < 0.3:
                start, end = f"{group}/b", f"{group}/s-00000000000000000009"
            for record in await client.scan(group, start, end, limit=limit):
                self._learn(record.key, record)
        elif kind == "query":
            start, end = self.random.choice(((*self._index_range(),), ("", "~")))
            for hit in await client.query(group, f"by{group}", start, end, limit=limit):
                self._learn(hit.record.key, hit.record)
        else:
            await self._commit(client, group, self._change_set(group))

    async def _commit(self, client: Client, group: str, ops: list[Op]) -> None:
        try:
            committed = await client.commit(group, ops)
        except Conflict as conflict:
            self._known[conflict.key] = conflict.actual
            return
        for op, key in zip(ops, committed.keys, strict=True):
            if key is not None:
                self._known[key] = committed.revision
            elif isinstance(op, Delete):
                self._known[op.key] = ABSENT

    def _change_set(self, group: str) -> list[Op]:
        draws: tuple[Callable[[str, str], Op], ...]
        draws = (self._compare_and_set, self._put, self._create, self._delete, self._sequential, self._check)
        several = self.random.random() < 0.35
        self._padding = PADDING_BYTES if self.random.random() < 0.15 else 0
        keys = self.random.sample(KEYS, self.random.randint(2, 4) if several else 1)
        chosen = self.random.choices(draws, (40, 10, 10, 10, 18, 6), k=len(keys))
        ops = [draw(group, f"{group}/{key}") for draw, key in zip(chosen, keys, strict=True)]
        if self.random.random() < 0.05:
            # A change set must not both delete a range and write into it.
            ops = [op for op in ops if not isinstance(op, PutSequential)]
            ops.append(DeleteRange(f"{group}/s", f"{group}/t"))
        elif not several and self.random.random() < 0.1:
            ops = [self._delete_sequential(group)]
        return ops

    def _compare_and_set(self, group: str, key: str) -> Op:
        return Put(key, self._value(), self._known.get(key, ABSENT), self._indexes(group))

    def _put(self, group: str, key: str) -> Op:
        return Put(key, self._value(), None, self._indexes(group))

    def _create(self, group: str, key: str) -> Op:
        return Put(key, self._value(), ABSENT, self._indexes(group))

    def _delete(self, _group: str, key: str) -> Op:
        return Delete(key, self.random.choice((None, self._known.get(key, ABSENT))))

    def _delete_sequential(self, group: str) -> Op:
        known = [key for key, version in self._known.items() if key.startswith(f"{group}/s-") and version != ABSENT]
        return Delete(self.random.choice(known)) if known else DeleteRange(f"{group}/s", f"{group}/t")

    def _sequential(self, group: str, _key: str) -> Op:
        return PutSequential(f"{group}/s", self._value(), group, self._indexes(group))

    def _check(self, _group: str, key: str) -> Op:
        return Check(key, self._known.get(key, ABSENT))

    def _key(self, group: str) -> str:
        return f"{group}/{self.random.choice(KEYS)}"

    def _index_range(self) -> tuple[str, str]:
        key = self.random.choice(INDEX_KEYS)
        return self.random.choice(((key, key + "\0"), starting_with(key[:10])))

    def _indexes(self, group: str) -> tuple[IndexEntry, ...]:
        keys = self.random.sample(INDEX_KEYS, self.random.choice((0, 1, 1, 2)))
        return tuple(IndexEntry(f"by{group}", key) for key in keys)

    def _value(self) -> bytes:
        return b"%d/%d" % (self.number, next(self._values)) + PADDING * self._padding

    def _learn(self, key: str, record: Record | None) -> None:
        self._known[key] = ABSENT if record is None else record.version

"""The operations of a story, and how stories are drawn.

A story is a list of operations. Transactions and consumers are counted back from the newest, which is 0, and numbers
wrap
around. So the list stays a story if operations are removed. After an operation the story waits until nothing is on its
way. After one in a `Hurry` it continues at once.
"""

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, cast

from hypothesis import strategies as st

KEYS = "abcd"
TOPICS_MAX = 2


class _Shown:
    """Printed as briefly as possible: fields with their defaults are left out."""

    def __repr__(self) -> str:
        given = [
            repr(value) if field.default is MISSING else f"{field.name}={value!r}"
            for field in fields(cast("Any", self))
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Begin(_Shown):
    """Begin a transaction that times out after this many seconds."""

    seconds: int


@dataclass(frozen=True, repr=False)
class Send(_Shown):
    """Send a message, in a transaction or outside."""

    topic: int
    key: str
    txn: int | None = None


@dataclass(frozen=True, repr=False)
class Commit(_Shown):
    txn: int


@dataclass(frozen=True, repr=False)
class Abort(_Shown):
    txn: int


@dataclass(frozen=True, repr=False)
class Join(_Shown):
    """Connect a consumer of the ordered subscription, or of the shared one."""

    topic: int
    ordered: bool


@dataclass(frozen=True, repr=False)
class Leave(_Shown):
    """Close a consumer, or lose its connection."""

    consumer: int
    politely: bool


@dataclass(frozen=True, repr=False)
class Acknowledge(_Shown):
    """Acknowledge a message that a consumer holds, or all up to it in the ordered subscription."""

    consumer: int
    message: int
    cumulative: bool = False
    txn: int | None = None
    twice: bool = False
    """In a transaction and not cumulative: by two commands, as a client does that was handed two copies."""


@dataclass(frozen=True, repr=False)
class SendAgain(_Shown):
    """Let a consumer give a message back."""

    consumer: int
    message: int


@dataclass(frozen=True, repr=False)
class Split(_Shown):
    topic: int
    segment: int


@dataclass(frozen=True, repr=False)
class Merge(_Shown):
    topic: int
    segment: int


@dataclass(frozen=True, repr=False)
class Advance(_Shown):
    """Let time pass: transactions time out, ledgers roll, headers are deleted."""

    seconds: int


@dataclass(frozen=True, repr=False)
class LosePower(_Shown):
    """Lose the power after this many further disk operations."""

    operations: int


@dataclass(frozen=True, repr=False)
class Restart(_Shown):
    """End the broker (stop, kill, or power loss) and start another one.

    Consumers are gone; the writer reconnects when it has work.
    """

    how: str


Plain: TypeAlias = (
    Begin
    | Send
    | Commit
    | Abort
    | Join
    | Leave
    | Acknowledge
    | SendAgain
    | Split
    | Merge
    | Advance
    | LosePower
    | Restart
)


@dataclass(frozen=True, repr=False)
class Hurry(_Shown):
    """Do not wait for the effects: the broker gets only this many turns before the next operation."""

    then: Plain
    turns: int = 1


Operation: TypeAlias = Plain | Hurry

_topic = st.integers(0, TOPICS_MAX - 1)
_key = st.sampled_from(KEYS)
_few = st.integers(0, 3)
_turns = st.integers(1, 16)
_newest = st.sampled_from([0, 0, 0, 1, 2])
_sends = st.builds(Send, _topic, _key, st.none())
_writes = st.builds(Send, _topic, _key, _newest)
_begins = st.builds(Begin, st.sampled_from([300, 300, 300, 5]))
_ends = st.one_of(st.builds(Commit, _newest), st.builds(Abort, _newest))
_joins = st.builds(Join, _topic, st.booleans())
_acknowledges = st.builds(Acknowledge, _newest, _few, st.booleans(), st.one_of(st.none(), _newest))
_takes = st.builds(Acknowledge, _newest, _few, st.booleans(), _newest, st.booleans())
_losses = st.builds(LosePower, st.integers(0, 8))
_changes = st.one_of(st.builds(Split, _topic, _few), st.builds(Merge, _topic, _few))

_advances = st.builds(Advance, st.sampled_from([1, 12, 60]))
_restarts = st.builds(Restart, st.sampled_from(["killed", "powerless", "stopped"]))

PLAIN: st.SearchStrategy[Plain] = st.one_of(
    # The order is how Hypothesis prefers them, the repetition how often it draws them.
    _sends,
    _writes,
    _begins,
    _ends,
    _joins,
    _acknowledges,
    _acknowledges,
    _restarts,
    _losses,
    _changes,
    _advances,
    st.builds(Leave, _newest, st.booleans()),
    st.builds(SendAgain, _newest, _few),
)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(PLAIN, PLAIN, st.builds(Hurry, PLAIN, _turns))


def _one_after_another(*parts: st.SearchStrategy[Operation]) -> st.SearchStrategy[list[Operation]]:
    """Return one operation of each kind, in a hurry or not."""
    return st.tuples(*(st.one_of(part, st.builds(Hurry, part, _turns)) for part in parts)).map(list)


EPISODES: st.SearchStrategy[list[Operation]] = st.one_of(
    # Most of what goes wrong takes several steps that seldom meet by chance; every part may also happen by itself.
    st.lists(OPERATIONS, min_size=1, max_size=3),
    _one_after_another(_begins, _writes, _writes, _ends),
    _one_after_another(_begins, _writes, _ends, _writes),
    _one_after_another(_begins, _writes, _advances, _ends, _sends),
    _one_after_another(_joins, _acknowledges, _restarts, _joins, _sends),
    _one_after_another(_begins, _writes, _losses, _writes),
    _one_after_another(_begins, _writes, _losses, _ends),
    _one_after_another(_joins, _sends, _losses, _sends),
    _one_after_another(_joins, _acknowledges, _acknowledges),
    _one_after_another(_sends, _joins, _changes, _sends, _acknowledges),
    _one_after_another(_begins, _writes, _changes, _writes, _ends),
    _one_after_another(_joins, _begins, _takes, _writes, _ends),
    _one_after_another(_sends, _joins, _begins, _takes, _losses, _ends),
)
STORIES: st.SearchStrategy[list[Operation]] = st.lists(EPISODES, max_size=12).map(
    lambda episodes: [operation for episode in episodes for operation in episode]
)


@dataclass(frozen=True, repr=False)
class Setting(_Shown):
    """The initial state of a story."""

    segments: tuple[int, ...] = (1, 1)
    """Of each topic."""
    producers_leave: bool = True
    """A replaced segment by themselves."""
    disk: int = 0
    """Seeds what the disk forgets."""
    prunes: bool = False
    """Replaced segments go with their data once every subscription has drained them; all subscribe at the beginning."""


SETTINGS: st.SearchStrategy[Setting] = st.builds(
    Setting,
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.sampled_from([True, True, False]),
    st.integers(0, 99),
    st.sampled_from([False, False, True]),
)

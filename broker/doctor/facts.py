"""What the doctor knows of a cluster, as values. Nothing here judges. Pure.

    RecordFacts    what the metadata store says (`records`)
    FolderFacts    what the data folder says (`folder`)
    Told           what a broker says of itself, and how its answer came

A fact that is missing was not looked at. A finding needs both sides of a disagreement, so none comes from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.unread import UNKNOWN, Unread


class Registered(NamedTuple):
    """A broker's registration."""

    folder: str
    """Identity of its data folder."""
    release: str
    http_url: str | None


class Assigned(NamedTuple):
    """A hint who should own a topic next."""

    to: str
    why: str
    by: str
    version: int


class Unfinished(NamedTuple):
    """A change of a scalable topic that was begun."""

    what: str
    """For people, such as "a split or merge"."""
    version: int
    """That of the topic's layout. It rises with each step."""


class Damage(NamedTuple):
    """What a damaged journal took from a ledger."""

    offset: int
    """The byte of the ledger from which on it is lost."""
    reason: str


class Waiting(NamedTuple):
    """Op records of ended transactions on one segment."""

    records: int
    oldest: int
    """The version of the oldest one. A busy segment always has some, but not the same ones for long."""


class Kept(NamedTuple):
    """A log, that is a segment or regular topic, as its record has it."""

    open_writers: frozenset[str]
    """The brokers that wrote a ledger without an end."""
    is_deleting: bool


@dataclass(kw_only=True)
class RecordFacts:
    """What the metadata store says. `records.RecordReader` fills it."""

    cluster: str | None = None
    """Identity of the metadata root."""
    registered: dict[str, Registered] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    claims: dict[str, str] = field(default_factory=dict)
    """Broker ids by what they own, such as `segment://...`, `topic://...` and `coordinator://1`."""
    assigned: dict[str, Assigned] = field(default_factory=dict)
    """By the name of the topic."""
    journals: dict[str, str] = field(default_factory=dict)
    """Identities of the data folders that have them, by broker."""
    recovering: dict[str, str] = field(default_factory=dict)
    """Who recovers a broker's journal, by that broker."""
    damages: dict[int, Damage] = field(default_factory=dict)
    """By ledger."""
    logs: dict[str, Kept] = field(default_factory=dict)
    """By the name of the segment or regular topic."""
    ledgers: dict[int, str] = field(default_factory=dict)
    """Names of logs by the ledgers that have a file."""
    folders: dict[int, str] = field(default_factory=dict)
    """Identities of data folders by ledger, for ledgers whose writer is known."""
    leaving: set[int] = field(default_factory=set)
    """Ledgers whose files are being removed, or may be."""
    unfinished: dict[str, Unfinished] = field(default_factory=dict)
    """By `topic://` name."""
    overdue: dict[str, int] = field(default_factory=dict)
    """Open transactions whose deadline is long past: by their keys, for how many milliseconds."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Op records of ended transactions, by segment."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Keys of damaged records, and what is wrong with them."""


class Fence(NamedTuple):
    """The newest epoch of an embedded metadata log."""

    epoch: int
    broker: str
    """The broker that took it: the metadata controller, unless it is gone."""
    has_ended: bool
    """Whether its process has certainly ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """What the data folder says."""

    path: str
    identity: str | None = None
    """Its identity; None if it has none."""
    cluster: str | None = None
    """Identity of the metadata root that it belongs to."""
    metadata: str = ""
    """Where that root was when the folder was made. For people."""
    ledgers: frozenset[int] = frozenset()
    """Those with a file."""
    unknown: tuple[str, ...] = ()
    """Files among the ledgers that Tidewire did not make."""
    brokers: frozenset[str] = frozenset()
    """Those with a place in the folder."""
    running: frozenset[str] = frozenset()
    """Brokers whose lock is held, so their processes exist."""
    ended: frozenset[str] = frozenset()
    """Brokers whose lock is free, so their processes have ended."""
    fence: Fence | None = None
    """None if the metadata is elsewhere."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Damaged files, and what is wrong with them."""


class Told(NamedTuple):
    """What a broker says of itself."""

    ahead_ms: int
    """How far its clock is ahead of the asking broker's, in milliseconds."""
    revision: int
    """The metadata revision that it holds."""
    coordinators: int
    """How many coordinators its settings have."""
    problem: str | None = None
    """Why it cannot serve, if it cannot."""
    store: Mapping[str, float] = {}
    """What its metadata store says of itself. The keys differ from store to store."""
    unread: Unread = UNKNOWN
    """Its subscriptions for which messages wait and that nobody reads there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is known at one moment."""

    records: RecordFacts | None
    """None if the metadata store could not be read."""
    unread: str = ""
    """Why not."""
    data_dir: str = ""
    """The path of the data folder."""
    folder: FolderFacts | None = None
    """None if the data folder could not be read."""
    unread_folder: str = ""
    """Why not. Empty if nobody tried."""
    misfits: Mapping[str, str] = field(default_factory=dict)
    """Journals whose files and record do not belong together, by broker, and why."""
    told: Mapping[str, Told | None] = field(default_factory=dict)
    """By registered broker, None from one that did not answer; empty if nobody was asked."""
    is_running: bool = True
    """Whether a broker of the cluster runs. If not, nothing is owned, and work waits for the next start."""

"""What a group is asked, what it answers, and what it wants to be done.

Names are Kafka's where Kafka has one. Times are in milliseconds. Pure.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

NO_GENERATION: Final = -1
"""What a consumer sends that takes part in no group, but stores offsets under its name."""


class GroupState(StrEnum):
    """The states of a group. The values are what DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    """No members. It may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join. Each join waits until all have come, or the time is up."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation has begun, and its leader makes the assignment."""
    STABLE = "Stable"
    """Each member has its assignment."""
    DEAD = "Dead"
    """Deleted, or coordinated elsewhere."""


class GroupError(StrEnum):
    """Why a request is refused. The names are those of Kafka's error codes."""

    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    UNSTABLE_OFFSET_COMMIT = "UNSTABLE_OFFSET_COMMIT"


class GroupSettings(NamedTuple):
    """How groups behave. The defaults are Kafka's, except where they say so."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    """How long the first rebalance of an empty group waits for more members. Kafka's code says 3 s. The settings that
    Kafka ships say 0, and so does nearly everybody who tests, because a first consumer should start at once."""
    new_member_timeout_ms: int = 300_000
    """How long a new member may wait in its first join. It does not send heartbeats yet."""
    group_size_max: int = 1_000
    """Members of a group, and as many that have an id and have not joined. Kafka sets no limit."""
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    """How long an empty group keeps its offsets."""
    offset_metadata_bytes_max: int = 4_096
    """The text that a client may store with an offset."""


class Protocol(NamedTuple):
    """A way to assign partitions that a member supports, with what it tells the leader about itself."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """A member wants to take part in the next generation."""

    member_id: str
    """Empty: it has none yet."""
    instance_id: str | None
    """Names a static member, which keeps its assignment when it restarts (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """In version 0 of the request, the session timeout."""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the order in which the member prefers them."""
    needs_known_id: bool = True
    """Whether a dynamic member asks for an id first, and joins with it (KIP-394: version 4 and later)."""
    can_skip_assignment: bool = True
    """Whether a leader can be told to assign nothing (KIP-814: version 9 and later)."""


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a join."""

    error: GroupError | None
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """For the leader; empty for the others."""
    skip_assignment: bool = False
    """Whether the leader must not assign, because the assignment stands."""


class SyncRequest(NamedTuple):
    """A member asks for its assignment. The leader brings everybody's."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    """What the member thinks that the group agreed on (KIP-559); None if it does not say."""
    protocol: str | None = None
    assignments: Mapping[str, bytes] = {}
    """By member id."""
    seen: Mapping[str, int] = {}
    """How many partitions of each scalable topic the leader knew."""


class SyncAnswer(NamedTuple):
    """The answer to a sync."""

    error: GroupError | None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaver(NamedTuple):
    """A member that leaves, or that an administrator removes."""

    member_id: str
    """Empty if an administrator names only the instance."""
    instance_id: str | None = None


class MemberRecord(NamedTuple):
    """A member as it is stored, and as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes


class GroupRecord(NamedTuple):
    """A group as it is stored after each rebalance. Another coordinator goes on from it."""

    generation: int = 0
    protocol_type: str | None = None
    """None: nobody ever joined, and the group only has offsets."""
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberRecord, ...] = ()
    seen: Mapping[str, int] = {}
    """How many partitions of each scalable topic were known when its members began to read it."""

    @property
    def state(self) -> GroupState:
        """The state of a group that nobody coordinates at the moment."""
        return GroupState.STABLE if self.members else GroupState.EMPTY


class DescribedMember(NamedTuple):
    """A member as an administrator sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group as an administrator sees it."""

    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    error: GroupError | None = None


class ListedGroup(NamedTuple):
    """A group in a list."""

    group: str
    protocol_type: str
    state: GroupState


class AnswerJoin(NamedTuple):
    """Answer the join that came with this ticket."""

    ticket: int
    answer: JoinAnswer


class AnswerSync(NamedTuple):
    """Answer the sync that came with this ticket."""

    ticket: int
    answer: SyncAnswer


class Persist(NamedTuple):
    """Store the group, then call `Group.stored` with the number. A record with a lower number may be left out."""

    number: int
    record: GroupRecord


Effect = AnswerJoin | AnswerSync | Persist
Effects = Sequence[Effect]

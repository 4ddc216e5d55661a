"""A group in memory, and why a group is not served."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from broker.cluster.ownership import OwnedElsewhere
from broker.kafka.groups.group import Group
from broker.kafka.groups.group_record import group_key
from broker.kafka.groups.values import GroupError, GroupState, Persist
from storage.errors import ExpectedError
from storage.metadata.store import Check, Conflict, SessionLost, StoreUnavailable
from storage.unknown_fields import Unknown

GROUP_ID_BYTES_MAX: Final = 1024
"""The longest name of a group. Its key in the metadata store is up to three times as long."""


class Refused(ExpectedError):
    """This broker does not serve the group at the moment. The front end answers with `error`."""

    retriable = True

    def __init__(self, error: GroupError, reason: str) -> None:
        super().__init__(reason)
        self.error = error


class DamagedGroup(Refused):
    """The record of the group cannot be read, so nobody can serve it. Deleting the group removes it."""

    retriable = False

    def __init__(self, reason: str) -> None:
        super().__init__(GroupError.UNKNOWN_SERVER_ERROR, reason)


_ERRORS: Final[Mapping[type[ExpectedError], GroupError]] = {
    OwnedElsewhere: GroupError.NOT_COORDINATOR,
    Conflict: GroupError.NOT_COORDINATOR,
    SessionLost: GroupError.NOT_COORDINATOR,
    StoreUnavailable: GroupError.COORDINATOR_NOT_AVAILABLE,
}
"""What a client is told. After the first two kinds it looks for the coordinator and tries again."""


def refusal(failed: ExpectedError) -> Refused:
    """Return why a group is not served after this error."""
    if isinstance(failed, Refused):
        return failed
    error = next((told for kind, told in _ERRORS.items() if isinstance(failed, kind)), GroupError.UNKNOWN_SERVER_ERROR)
    return Refused(error, str(failed))


def require_name(group: str, *, may_be_empty: bool = False) -> None:
    """Check the name of a group. Old consumers store offsets under an empty name, but nobody can join such a group.

    Raises:
        Refused: no group can have that name.
    """
    if not group and not may_be_empty:
        raise Refused(GroupError.INVALID_GROUP_ID, "A group that members join needs a name.")
    if len(group.encode()) > GROUP_ID_BYTES_MAX:
        raise Refused(GroupError.INVALID_GROUP_ID, f"The name of a group has at most {GROUP_ID_BYTES_MAX} bytes.")


@dataclass(eq=False)
class Loaded:
    """A group in memory."""

    name: str
    group: Group
    claim: Check
    """The claim that this broker coordinates it by."""
    version: int
    """The version of its record; ABSENT if it has none yet."""
    unknown: Unknown
    """Fields of a later release in its record."""
    used_ms: int
    """When somebody last asked for it, by Trio's clock."""
    members_bytes: int = 0
    """What its members were last counted with."""
    unwritten: Persist | None = None
    """The newest record that is not written yet."""
    writing: trio.Lock = field(default_factory=trio.Lock)
    """Held by whoever writes the record."""
    commits: int = 0
    """Commits of offsets that are being made."""
    quiet: trio.Event = field(default_factory=trio.Event)
    """Set when `commits` is 0 again."""

    @property
    def conditions(self) -> tuple[Check, Check]:
        """What must hold for commits: this broker coordinates the group, and no generation has begun since."""
        return self.claim, Check(group_key(self.name), self.version)

    def require_alive(self) -> None:
        """Make sure that the group is still served from this object.

        Raises:
            Refused: it is not.
        """
        if self.group.state is GroupState.DEAD:
            raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE, f"The group {self.name} is being loaded again.")

    def commit_ends(self) -> None:
        """Count a commit that has ended."""
        self.commits -= 1
        if not self.commits:
            self.quiet.set()
            self.quiet = trio.Event()

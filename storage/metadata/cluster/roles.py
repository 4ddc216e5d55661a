"""The roles of a broker in an embedded store of several brokers, and the moves between them, as a table.

    role         event            next role     because
    SEEKING      LINK_UP          FOLLOWING     a controller has welcomed this broker
    SEEKING      LINK_LOST        SEEKING       the controller did not answer, or refused
    SEEKING      NEWER_FENCE      SEEKING       another broker has taken over, at another address
    SEEKING      CONTROLLER_GONE  TAKING_OVER   the lock of the controller's process is free
    SEEKING      BEAT_STOPPED     TAKING_OVER   the lock is held, but the beat stood still: the controller is stopped
    SEEKING      OFF_CHAIN        ENDED         this image holds what the log does not
    SEEKING      DISK_FAILED      ENDED         nothing is known of the disk
    FOLLOWING    LINK_LOST        SEEKING       the link was cut, or is silent
    FOLLOWING    NEWER_FENCE      SEEKING       the controller at the other end is deposed
    FOLLOWING    OFF_CHAIN        ENDED         as above
    FOLLOWING    DISK_FAILED      ENDED         as above
    TAKING_OVER  TOOK_OVER        LEADING       the fence is made, and the log says who took over
    TAKING_OVER  NEWER_FENCE      SEEKING       another broker was first
    TAKING_OVER  DISK_FULL        SEEKING       there was no space, so no fence was made (C24)
    TAKING_OVER  OFF_CHAIN        ENDED         as above
    TAKING_OVER  DISK_FAILED      ENDED         as above
    LEADING      NEWER_FENCE      SEEKING       this broker is deposed; its image is on the chain, so it can follow
    LEADING      DISK_FAILED      ENDED         as above

One task plays each role, until the first event that ends it. So it reports only the events of its role, and any other
pair is a defect. Only SEEKING leads to TAKING_OVER, and only while the controller is dead or stopped. A broker whose
link is cut while the controller's beat moves seeks on and takes over nothing. So a cut link makes no epoch (C13).

Pure.
"""

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a broker does for the store."""

    SEEKING = "seeking"
    """It looks for the controller, and whether there is one. It answers no reads or writes, they wait."""
    FOLLOWING = "following"
    """It has a link. It shows what the controller pushes, and sends its writes there."""
    TAKING_OVER = "taking over"
    """It tries to become the controller."""
    LEADING = "leading"
    """It is the controller: it decides, writes the log and pushes."""
    ENDED = "ended"
    """Its store has ended. Only a restart of the process helps."""


class RoleEvent(StrEnum):
    """What ends a role, or a try."""

    LINK_UP = "a controller welcomed this broker"
    LINK_LOST = "there is no link to the controller"
    NEWER_FENCE = "there is a fence of a higher epoch"
    CONTROLLER_GONE = "the lock of the controller's process is free"
    BEAT_STOPPED = "the controller's beat stood still for the silence time"
    TOOK_OVER = "the log names this broker as the controller"
    DISK_FULL = "there was no space to take over"
    OFF_CHAIN = "this image holds a batch that is not in the log"
    DISK_FAILED = "a write, sync or read of the disk failed"


MOVES: Final[dict[tuple[Role, RoleEvent], Role]] = {
    (Role.SEEKING, RoleEvent.LINK_UP): Role.FOLLOWING,
    (Role.SEEKING, RoleEvent.LINK_LOST): Role.SEEKING,
    (Role.SEEKING, RoleEvent.NEWER_FENCE): Role.SEEKING,
    (Role.SEEKING, RoleEvent.CONTROLLER_GONE): Role.TAKING_OVER,
    (Role.SEEKING, RoleEvent.BEAT_STOPPED): Role.TAKING_OVER,
    (Role.SEEKING, RoleEvent.OFF_CHAIN): Role.ENDED,
    (Role.SEEKING, RoleEvent.DISK_FAILED): Role.ENDED,
    (Role.FOLLOWING, RoleEvent.LINK_LOST): Role.SEEKING,
    (Role.FOLLOWING, RoleEvent.NEWER_FENCE): Role.SEEKING,
    (Role.FOLLOWING, RoleEvent.OFF_CHAIN): Role.ENDED,
    (Role.FOLLOWING, RoleEvent.DISK_FAILED): Role.ENDED,
    (Role.TAKING_OVER, RoleEvent.TOOK_OVER): Role.LEADING,
    (Role.TAKING_OVER, RoleEvent.NEWER_FENCE): Role.SEEKING,
    (Role.TAKING_OVER, RoleEvent.DISK_FULL): Role.SEEKING,
    (Role.TAKING_OVER, RoleEvent.OFF_CHAIN): Role.ENDED,
    (Role.TAKING_OVER, RoleEvent.DISK_FAILED): Role.ENDED,
    (Role.LEADING, RoleEvent.NEWER_FENCE): Role.SEEKING,
    (Role.LEADING, RoleEvent.DISK_FAILED): Role.ENDED,
}
"""Every pair that can happen."""


def step(role: Role, event: RoleEvent) -> Role:
    """The next role."""
    assert (role, event) in MOVES, f"{event.name} cannot happen while {role.value}"
    return MOVES[role, event]

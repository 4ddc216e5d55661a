"""What a broker answers to the lookup of a topic.

| who has the claim          | who is the candidate | authoritative | answer                                 |
|----------------------------|----------------------|---------------|----------------------------------------|
| this broker                | -                    | -             | `Here`                                 |
| another, registered broker | -                    | -             | `At` the owner                         |
| one that is not registered | -                    | -             | `NotNow`: its session is ending        |
| nobody                     | nobody               | -             | `NotNow`: all brokers are draining     |
| nobody                     | this broker          | -             | `Here`                                 |
| nobody                     | another broker       | no            | `Redirect` to the candidate            |
| nobody                     | another broker       | yes           | `Here`; `NotNow` if this broker drains |

A redirected client says so in its next lookup: it is authoritative. The broker it asks then decides, and redirects it
no further. So a lookup asks two brokers at most and never goes in a circle, whatever the brokers know of each other
(C21).

A lookup changes nothing. The client's next command loads the topic, which claims it. If two brokers said `Here`, one
claim wins. The other broker refuses its client for now, and the client's next lookup finds the owner.
"""

from collections.abc import Mapping
from typing import NamedTuple

from broker.cluster.placement import Member


class Here(NamedTuple):
    """The client should use this broker."""


class At(NamedTuple):
    """The client should use this other broker."""

    service_url: str


class Redirect(NamedTuple):
    """The client should look the topic up again, at this broker, which then decides."""

    service_url: str


class NotNow(NamedTuple):
    """No broker serves the topic at the moment. The client should look it up again later."""

    reason: str
    """Whole sentences for the client's user."""


Answer = Here | At | Redirect | NotNow


def decide(
    name: str,
    *,
    owner: str | None,
    members: Mapping[str, Member],
    me: str,
    candidate: str | None,
    authoritative: bool,
) -> Answer:
    """Return the answer by the table above.

    Args:
        name: the full name of the topic, for messages.
        owner: the id of the broker whose claim exists, if any.
        members: the registered brokers, by id.
        me: the id of this broker.
        candidate: the broker that should own the topic (`placement.choose`); one of the members.
        authoritative: whether another broker sent the client here.
    """
    if owner is not None:
        if owner == me:
            return Here()
        if owner in members:
            return At(members[owner].service_url)
        return NotNow(f"{name} is owned by {owner}, which has ended. Look it up again when its session has ended.")
    if candidate is None:
        return NotNow(f"No broker takes {name}, because all brokers are draining. Look it up again later.")
    if candidate == me:
        return Here()
    if not authoritative:
        return Redirect(members[candidate].service_url)
    if members[me].is_draining:
        return NotNow(f"{me} is draining and does not take {name}. Look it up again.")
    return Here()

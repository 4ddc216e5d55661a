"""What a broker and the metadata controller say to each other, as values. Their bytes are in `frames`.

A link is one TCP connection, with one ordered stream each way. The broker at its one end follows, the controller at the
other end decides.

| message     | to         | says                                                                               |
|-------------|------------|------------------------------------------------------------------------------------|
| Hello       | controller | who follows, in which attempt, and from which place in the log                     |
| Welcome     | follower   | the link's session, and whether the log or a whole image follows                   |
| Refuse      | follower   | why there is no link                                                               |
| ImagePart   | follower   | a part of the whole state; the last one replaces the follower's image              |
| PushedBatch | follower   | one batch of the log, byte for byte                                                |
| Write       | controller | a change set, or a part of one                                                     |
| Open        | controller | a new session                                                                      |
| End         | controller | the end of sessions, perhaps on a condition                                        |
| Answer      | follower   | what became of a Write, Open or End; stands behind the batches that show it        |
| Barrier     | controller | a question: how far is the log?                                                    |
| At          | follower   | the answer to a Barrier; stands behind the batches up to that place                |
| Alive       | controller | echoes the newest token, which proves that the follower receives pushes            |
| Token       | follower   | answers Hello and each Alive; stands behind all batches pushed before              |

Lost, repeated and late messages:

| message          | lost with its link           | repeated                      | late or stale                |
|------------------|------------------------------|-------------------------------|------------------------------|
| Hello            | no link; the broker tries on | ends the link                 | a lower attempt is refused   |
| Welcome          | the broker tries on          | ends the link                 | a lower epoch ends the link  |
| ImagePart        | the old image stays          | a first part begins a new one | a lower revision is refused  |
| PushedBatch      | the next one does not chain  | skipped by its place          | of another epoch: ends link  |
| Write, Open, End | sent again on the next link  | answered from its outcome     | below `answered_below`: none |
| Answer           | the write is sent again      | ignored                       | ignored                      |
| Barrier, At      | asked again on the next link | ignored                       | ignored                      |
| Alive, Token     | the session is not renewed   | ignored                       | renews nothing               |

Pure: values only.
"""

from enum import IntEnum
from typing import NamedTuple

from storage.metadata.batches import Point
from storage.metadata.cluster.answers import Outcome
from storage.metadata.proposed import EndSessions


class Start(IntEnum):
    """What follows WELCOME."""

    LOG = 1
    """The batches behind the follower's place."""
    IMAGE = 2
    """The whole state, then the batches behind it."""


class LinkRefusal(IntEnum):
    """Why there is no link."""

    NOT_CONTROLLER = 1
    """This broker is not, or no longer, the controller of that epoch."""
    OFF_CHAIN = 2
    """The follower's place is not in the log. Its store must end."""
    OTHER_CLUSTER = 3
    """The follower belongs to another cluster."""
    OTHER_PROTOCOL = 4
    """The follower speaks another version of the protocol."""
    OLD_ATTEMPT = 5
    """The follower has connected again meanwhile."""


class Place(NamedTuple):
    """How far a follower's image is."""

    epoch: int
    """The epoch of the batch at `point`; 0 at the beginning."""
    point: Point
    """The last batch that the image holds."""
    revision: int
    """The image's revision."""


class Hello(NamedTuple):
    """The first frame of a link."""

    cluster: str
    broker: str
    nonce: int
    """Random, one for each life of a broker's store. So a repeated HELLO finds the session that the first one made."""
    attempt: int
    """Rises with each HELLO of a nonce. The highest one is the living link."""
    session: int
    """The session of the broker's earlier link, 0 if there was none."""
    place: Place


class Welcome(NamedTuple):
    """The link works."""

    session: int
    """The link's session: the identity of its writer, and what its life hangs on."""
    timeout_ms: int
    """The session's timeout."""
    start: Start


class Refuse(NamedTuple):
    """There is no link; the last frame of its stream."""

    reason: LinkRefusal


class ImagePart(NamedTuple):
    """A part of a snapshot's records. The first one, after the last one of an earlier image, begins a new image."""

    place: Place
    """The place of the whole image, the same in all its parts."""
    is_last: bool
    records: bytes


class PushedBatch(NamedTuple):
    """One batch of the log with its header, byte for byte."""

    offset: int
    """Where it is in its file. The batch's count of empty sectors depends on it."""
    data: bytes


class Write(NamedTuple):
    """A change set, or a part of one. Its parts stand behind each other, with no other write in between."""

    number: int
    answered_below: int
    along: bool
    """Whether no caller waits (`commit_along`)."""
    is_last: bool
    ops: bytes
    """Operations, see `ops_codec`."""


class Open(NamedTuple):
    """A new session for the broker of the link."""

    number: int
    answered_below: int
    timeout_ms: int


class End(NamedTuple):
    """The end of sessions."""

    number: int
    answered_below: int
    ending: EndSessions


class Answer(NamedTuple):
    """What became of a write."""

    number: int
    outcome: Outcome


class Barrier(NamedTuple):
    """A question for the log's place, begun behind everything that the broker must see."""

    id: int


class At(NamedTuple):
    """The last batch that the controller had decided when it saw the Barrier."""

    id: int
    sequence: int


class Alive(NamedTuple):
    """A sign of life that proves that pushes arrive."""

    token: int
    """The newest token of this link that arrived."""


class Token(NamedTuple):
    """Asks to be echoed. Rises within a link."""

    token: int


Message = (
    Hello | Welcome | Refuse | ImagePart | PushedBatch | Write | Open | End | Answer | Barrier | At | Alive | Token
)

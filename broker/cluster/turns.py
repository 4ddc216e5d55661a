"""Which broker does the background work on a scalable topic (C16).

It is the topic's controller. Without one, it is the broker that a hash of the topic's name prefers among the members.
So one broker works on each topic, and a controller's death costs each of the others nothing but for its share.

The answer is advice, as brokers may know different members for a moment. Whoever works becomes the controller first,
and only one broker can.
"""

import trio

from broker.cluster.elections import Elections
from broker.cluster.members import Listener, Members
from broker.cluster.placement import preferred
from broker.names import TopicName


class Turns:
    """See the module's docstring."""

    def __init__(self, elections: Elections, members: Members, *, me: str) -> None:
        """Set up; `me` is the id of this broker."""
        self._elections = elections
        self._members = members
        self._me = me
        self._waiting: dict[TopicName, set[trio.Event]] = {}
        elections.attach(self._controller_changed)
        members.attach(self._members_changed)

    @property
    def is_alone(self) -> bool:
        """Whether this broker knows no other member."""
        return not self._members.live.keys() - {self._me}

    def is_mine(self, topic: TopicName) -> bool:
        """Return whether this broker does the topic's work now."""
        if self._elections.controller_of(topic) is not None:
            return not self._elections.is_elsewhere(topic)
        members = self._members.live
        taking = [broker for broker, member in members.items() if not member.is_draining]
        return preferred(str(topic), taking or members) == self._me

    def attach(self, listener: Listener) -> None:
        """Call `listener` when the answer may have changed for many topics, because the members have changed.

        For one topic it also changes with the topic's controller: see `Elections.attach`.
        """
        self._members.attach(listener)

    def detach(self, listener: Listener) -> None:
        """Undo `attach`."""
        self._members.detach(listener)

    async def wait_mine(self, topic: TopicName) -> None:
        """Wait until it is this broker's turn."""
        while not self.is_mine(topic):
            changed = trio.Event()
            waiting = self._waiting.setdefault(topic, set())
            waiting.add(changed)
            try:
                await changed.wait()
            finally:
                waiting.discard(changed)
                if not waiting and self._waiting.get(topic) is waiting:
                    del self._waiting[topic]

    def _controller_changed(self, topic: TopicName) -> None:
        for changed in self._waiting.get(topic, ()):
            changed.set()

    def _members_changed(self) -> None:
        for waiting in self._waiting.values():
            for changed in waiting:
                changed.set()

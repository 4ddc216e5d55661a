"""Numbered writes at the controller: each is decided once, and every call that brings it gets the same answer."""

from storage.metadata.cluster.arrivals import Arrivals, Verdict
from storage.metadata.cluster.proposals import Proposal, ProposalQueue, WriterLost
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.proposed import EndSessions, Proposed


class NumberedWrites:
    """The numbered writes that arrived in one reign. Those to decide go into `queue`."""

    __slots__ = ("_arrivals", "_deciding", "_image", "_queue")

    def __init__(self, image: Image, queue: ProposalQueue) -> None:
        self._image = image
        self._queue = queue
        self._arrivals = Arrivals(image.outcomes)
        self._deciding: dict[tuple[int, int], Proposal] = {}
        """By session and number."""

    def take(self, proposed: Proposed, write: WriteId) -> Made | Proposal | None:
        """The answer to give again, or the proposal that will be answered; None if the writer has its answer.

        Raises:
            WriterLost: the session of its writer has ended.
            LinkError: its number does not fit what its writer has said.
        """
        if write.session not in self._image.sessions:
            raise WriterLost(write)
        arrived = self._arrivals.take(write)
        if isinstance(arrived, Made):
            return arrived
        if arrived is Verdict.DROP:
            return None
        key = (write.session, write.number)
        if arrived is Verdict.DECIDE:
            self._deciding[key] = Proposal(proposed, write)
            self._queue.put(self._deciding[key])
        return self._deciding[key]

    def decided(self, proposal: Proposal) -> None:
        """Any proposal was refused, or its effect is shown."""
        if proposal.write is not None:
            del self._deciding[proposal.write.session, proposal.write.number]
            self._arrivals.decided(proposal.write)
        if isinstance(proposal.proposed, EndSessions):
            for session in proposal.proposed.sessions:
                if session not in self._image.sessions:
                    self._arrivals.session_ended(session)

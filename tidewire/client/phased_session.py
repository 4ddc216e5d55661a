"""A listener's session on one connection: its id there, its phase, and the error that ended it.

Producers, consumers and registrations with a controller hold one session after another. Each kind of session has a
table that says where each event leads from each phase. A session ends once, for one reason. Events after its end
change nothing.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Generic, TypeVar

from tidewire.client.connection import Connection, Listener
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.listeners import Kind

_Phase = TypeVar("_Phase", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)


def moves(events: Sequence[_Event], rows: Mapping[_Phase, Sequence[_Phase]]) -> Mapping[tuple[_Phase, _Event], _Phase]:
    """Where each event leads from each phase, from a table with a row for each phase and a column for each event."""
    return {(phase, event): to for phase, row in rows.items() for event, to in zip(events, row, strict=True)}


class PhasedSession(Generic[_Phase, _Event]):
    """See the module's docstring."""

    def __init__(
        self,
        connection: Connection,
        kind: Kind,
        listener: Listener,
        table: Mapping[tuple[_Phase, _Event], _Phase],
        first: _Phase,
    ) -> None:
        """Attach `listener` to the connection; `detach` ends that.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self.connection: Final = connection
        self.phase = first
        """Only `happened` changes it."""
        self.error: TidewireError | None = None
        """The error of the event that ended the session; None if it goes on, or ended without an error."""
        self._kind: Final = kind
        self._id: Final = connection.attach(kind, listener)
        self._table: Final = table

    def happened(self, event: _Event, error: TidewireError | None = None) -> None:
        """Move to the next phase. An event that ends the session may bring an error."""
        before, self.phase = self.phase, self._table[self.phase, event]
        if self.phase is not before and self.error is None:
            self.error = error

    def detach(self) -> None:
        """Stop listening."""
        self.connection.detach(self._kind, self._id)

"""The state that the handlers of one connection share."""

from dataclasses import dataclass

import trio

from broker.budgets import ReceiveShare
from broker.outbox import Outbox
from broker.principal import ANONYMOUS, Principal
from broker.pulsar.unsupported import Peer


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection: its outbox, its share of memory, and its principal.

    Handlers must read the principal when they handle a command, not before, because CONNECT sets it.
    """

    outbox: Outbox
    share: ReceiveShare
    """Its share of the broker's memory for clients."""
    peer: Peer
    service_url: str
    """The URL at which the client reaches this broker."""
    nursery: trio.Nursery
    """Runs the handlers' tasks; it ends with the connection."""
    principal: Principal = ANONYMOUS

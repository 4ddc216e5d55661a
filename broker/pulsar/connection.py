"""What the handlers of one connection share."""

from dataclasses import dataclass

import trio

from broker.budgets import ReceiveShare
from broker.principal import ANONYMOUS, Principal
from broker.pulsar.outbox import Outbox
from broker.pulsar.unsupported import Peer


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection: how to answer it, what it may hold, and whom it acts for.

    Handlers ask it for the principal when they handle a command, not before: CONNECT says who the client is.
    """

    outbox: Outbox
    share: ReceiveShare
    """What it may hold of the broker's memory."""
    peer: Peer
    service_url: str
    """Where the client reaches this broker."""
    nursery: trio.Nursery
    """Runs what the handlers start; it ends with the connection."""
    principal: Principal = ANONYMOUS

"""Waiting for a subscription to be done with a sealed source."""

from dispatch.subscription import Subscription
from storage.signal import Signal


async def drained(subscription: Subscription) -> None:
    """Return once everything in its source, which is sealed, is durably acknowledged."""
    moved = Signal()
    durable = subscription.cursor.durable
    durable.attach(moved)
    while not subscription.is_drained:
        await moved.wait()
    durable.detach(moved)

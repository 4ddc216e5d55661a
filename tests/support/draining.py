"""Waits until a subscription has drained a sealed source."""

from dispatch.subscription import Subscription
from storage.signal import Signal


async def drained(subscription: Subscription) -> None:
    """Wait until everything in its sealed source is durably acknowledged."""
    moved = Signal()
    durable = subscription.cursor.durable
    durable.attach(moved)
    while not subscription.is_drained:
        await moved.wait()
    durable.detach(moved)

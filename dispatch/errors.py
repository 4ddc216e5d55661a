"""What a subscription refuses."""

from storage.errors import ExpectedError


class SubscriptionError(ExpectedError):
    """A request that the subscription refuses. It changed nothing."""


class ConsumerBusy(SubscriptionError):
    """Other consumers are connected that this one cannot join (Pulsar: ConsumerBusy)."""


class SubscriptionClosed(SubscriptionError):
    """The subscription was closed or deleted; on the topic's next owner, or under its name, there may be another."""

    retriable = True


class AcknowledgementRefused(SubscriptionError):
    """Something is acknowledged that was never sent, or in a form that this kind of subscription does not take."""


class TooManyHoles(SubscriptionError):
    """So much is acknowledged out of order that no more of it can be kept; acknowledge first what lies below."""

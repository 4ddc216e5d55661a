"""The refusals of a subscription."""

from storage.errors import ExpectedError


class SubscriptionError(ExpectedError):
    """The subscription refuses a request. Nothing was changed."""


class ConsumerBusy(SubscriptionError):
    """The connected consumers exclude this one (Pulsar: ConsumerBusy)."""


class SubscriptionClosed(SubscriptionError):
    """The subscription was closed or deleted. The topic's next owner may have it, or another one of its name."""

    retriable = True


class AcknowledgementRefused(SubscriptionError):
    """The entry was never sent, or this kind of subscription refuses the form of the acknowledgement."""


class TooManyHoles(SubscriptionError):
    """So much is acknowledged out of order that no more can be remembered. Acknowledge earlier messages first."""

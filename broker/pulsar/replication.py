"""Refuses requests for replication to other clusters within transactions (T36). This broker does not replicate.

A transaction is one decision in one metadata store. A message or acknowledgement that must also count in another
cluster could not be guaranteed. Outside transactions, the same fields are stored and left to the message's readers.
"""

from typing import Final

from broker.errors import NotSupported
from tidewire.wire.pulsar.messages import parse_payload

LOCAL_CLUSTER: Final = "__local__"
"""With this cluster name a producer says that a message must not be replicated."""


def require_own_subscription(*, is_replicated: bool) -> None:
    """Check that a consumer which acknowledges in a transaction did not ask for a replicated subscription.

    Raises:
        NotSupported: it did.
    """
    if is_replicated:
        raise NotSupported(
            "The broker does not replicate acknowledgements in transactions to other clusters. Use a subscription that "
            "is not replicated."
        )


def require_local(payload: bytes) -> None:
    """Check that a transaction's message does not come from another cluster, and is not to be replicated to one.

    Raises:
        NotSupported: it comes from another cluster, or is to be replicated.
        WireError: its metadata cannot be read.
    """
    metadata, _body = parse_payload(payload)
    if metadata.replicated_from or any(cluster != LOCAL_CLUSTER for cluster in metadata.replicate_to):
        raise NotSupported(
            "The broker does not replicate transactions to other clusters. Send the message outside of the transaction."
        )

"""What in a transaction asks for replication to other clusters. There is none here, so it is refused (T36).

A transaction is one decision in one metadata store; a message or an acknowledgement that was to count in another
cluster too would promise what nobody keeps. Outside transactions the same fields are left to whoever reads the message.
"""

from typing import Final

from broker.errors import NotSupported
from tidewire.wire.pulsar.messages import parse_payload

LOCAL_CLUSTER: Final = "__local__"
"""By this name a producer says that a message is not to be replicated at all."""


def require_own_subscription(*, is_replicated: bool) -> None:
    """Hold that a consumer that acknowledges in a transaction did not ask for its progress to count elsewhere too.

    Raises:
        NotSupported: it did.
    """
    if is_replicated:
        raise NotSupported("transactions are not replicated between clusters, nor is what they acknowledge")


def require_local(payload: bytes) -> None:
    """Hold that a message of a transaction neither comes from another cluster nor is to go to one.

    Raises:
        NotSupported: it does.
        WireError: its metadata cannot be read.
    """
    metadata, _body = parse_payload(payload)
    if metadata.replicated_from or any(cluster != LOCAL_CLUSTER for cluster in metadata.replicate_to):
        raise NotSupported("transactions are not replicated between clusters: send the message outside of one")

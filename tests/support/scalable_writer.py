"""A producer of a scalable topic, for scenarios that block. It is Tidewire's own client, in a thread.

with scalable_writer(broker.service_url, topic) as writer:
    writer.send(b"plain")
    txn = writer.begin()
    writer.send(b"in a transaction", txn=txn)
    writer.commit(txn)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from anyio.from_thread import BlockingPortal, start_blocking_portal

import tidewire

TRANSACTION_SECONDS_MAX: Final = 900.0
"""When the broker aborts a transaction. It is longer than any test, however busy the machine is."""


class ScalableWriter:
    """See the module's docstring. Each call returns when it is durable."""

    def __init__(self, portal: BlockingPortal, client: tidewire.Client, producer: tidewire.Producer[bytes]) -> None:
        self._portal = portal
        self._client = client
        self._producer = producer

    def send(self, value: bytes, *, key: str | None = None, txn: tidewire.Transaction | None = None) -> None:
        """Send a message."""
        self._portal.call(partial(self._producer.send, value, key=key, txn=txn))

    def begin(self) -> tidewire.Transaction:
        """Begin a transaction. It stays open until the test ends it."""
        return self._portal.call(self._client.new_transaction, TRANSACTION_SECONDS_MAX)

    def commit(self, txn: tidewire.Transaction) -> None:
        """Commit a transaction."""
        self._portal.call(txn.commit)

    def abort(self, txn: tidewire.Transaction) -> None:
        """Abort a transaction."""
        self._portal.call(txn.abort)


@contextmanager
def scalable_writer(service_url: str, topic: str) -> Iterator[ScalableWriter]:
    """Open a producer of the topic, for the length of the block."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(tidewire.connect(service_url)) as client,
        portal.wrap_async_context_manager(client.producer(topic, batching=False)) as producer,
    ):
        yield ScalableWriter(portal, client, producer)

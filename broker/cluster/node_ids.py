"""The numbers by which Kafka's clients know the brokers: one for each broker id, for good (K44).

/kafka/nodes/<broker id>    the broker's number
/kafka/next-node            the number of the next broker
"""

from typing import Final

from storage.metadata.store import ABSENT, Conflict, MetadataStore, Put

NODES: Final = "/kafka/nodes/"
NEXT_NODE: Final = "/kafka/next-node"


async def node_id_of(broker_id: str, metadata: MetadataStore) -> int:
    """Return the broker's number; give it one if it has none. Durable on return.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    key = NODES + broker_id
    while True:
        known = await metadata.get(key)
        if known is not None:
            return int(known.value)
        following = await metadata.get(NEXT_NODE)
        number = 1 if following is None else int(following.value)
        version = ABSENT if following is None else following.version
        try:
            await metadata.commit(
                [Put(NEXT_NODE, str(number + 1).encode(), version), Put(key, str(number).encode(), ABSENT)]
            )
        except Conflict:
            continue  # Another broker took the number, or an earlier try of ours was made.
        return number

"""A partition that takes part in many transactions at once."""

from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.paging import AT_ONCE
from storage.metadata.store import IndexHit
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import kafka_client
from tests.support.rooms import rooms
from txn.kafka_participants import BY_PARTICIPANT, Kind, Participant, Registration
from txn.kafka_transaction import Producer


class Counting(MemoryStore):
    """Notes how many registrations each query returned."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[int] = []

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        found = await super().query(index, start, end, limit=limit, after=after)
        if index == BY_PARTICIPANT:
            self.pages.append(len(found))
        return found


async def test_an_owner_reads_its_registrations_in_pages() -> None:
    """E7: clients decide how many there are, and all have one index key. A damaged one hides no other."""
    count = 2 * AT_ONCE + 3
    store = Counting()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        participant = Participant(Kind.PARTITION, str(topic.name))
        for number in range(count):
            made = Registration(f"tid-{number:04}", participant, Producer(number, 0), topic.ledger.creation_id)
            await store.commit([made.to_put()])
        damaged = Registration("tid-0007", participant, Producer(7, 0), "").to_put()
        await store.put(damaged.key, b"no registration", indexes=damaged.indexes)
        transactions = topic.markers.transactions
        whole = [f"tid-{number:04}" for number in range(count) if number != 7]
        assert await transactions.registered() == whole
        assert await transactions.is_registered(count - 1)
        assert not await transactions.is_registered(7)
        await transactions.recover()
        assert max(store.pages) == AT_ONCE

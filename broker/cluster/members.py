"""Which brokers run now, as this broker knows it: a copy of their registrations, kept by watches.

    /brokers/<broker id>     registration (`broker.cluster.membership`)
    /draining/<broker id>    exists while the broker hands over what it owns and takes nothing new
    /broker-load/<broker id> how busy it is (`broker.cluster.broker_load`)

The copy may be some moments old. So it only advises (`broker.cluster.placement`); claims decide. This broker counts
itself as a member at once, because it serves only while it is registered.

A broker is alone if no other one ever used the metadata root: no other one is registered, and none has left the record
of its journal. Once it is not alone, it stays so, since the other one's clock has stamped records (`storage.ages`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import orjson
import structlog
import trio

from broker.addresses import Address, KafkaNode
from broker.cluster.broker_load import BROKER_LOADS, BrokerLoad
from broker.cluster.membership import BROKERS
from broker.cluster.placement import Member
from storage.journal_records import JOURNALS
from storage.metadata.store import Change, MetadataStore, Record, starting_with

DRAINING: Final = "/draining/"

Listener = Callable[[], None]
"""Called when the members have changed, or this broker is no longer alone. It must not block."""

log = structlog.get_logger(__name__)


class Members:
    """See the module's docstring."""

    def __init__(self, metadata: MetadataStore, me: Member) -> None:
        """Set up; `me` is this broker."""
        self._metadata = metadata
        self._me: Final = me
        self._registered: dict[str, Member] = {}
        self._draining: set[str] = set()
        self._live: Mapping[str, Member] = {me.broker: me}
        self._loads: Mapping[str, BrokerLoad] = {}
        self._is_alone = True
        self._listeners: dict[Listener, None] = {}

    @property
    def live(self) -> Mapping[str, Member]:
        """The members by id, this broker among them. A change makes a new mapping."""
        return self._live

    @property
    def loads(self) -> Mapping[str, BrokerLoad]:
        """How busy brokers are, by id. One that has reported nothing is idle. They may be a minute old."""
        return self._loads

    @property
    def is_alone(self) -> bool:
        """Whether no other broker ever used the metadata root, as far as this process knows."""
        return self._is_alone

    def attach(self, listener: Listener) -> None:
        """Call `listener` whenever the members have changed."""
        self._listeners[listener] = None

    def detach(self, listener: Listener) -> None:
        """Undo `attach`."""
        del self._listeners[listener]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the registrations until cancelled. It reports as started once it knows all existing ones."""
        async with (
            self._metadata.watch_range(*starting_with(BROKERS)) as registrations,
            self._metadata.watch_range(*starting_with(DRAINING)) as draining,
            self._metadata.watch_range(*starting_with(BROKER_LOADS)) as loads,
            trio.open_nursery() as nursery,
        ):
            journals = await self._metadata.scan(*starting_with(JOURNALS))
            self._know_of(record.key.removeprefix(JOURNALS) for record in journals)
            self._hear_registrations(await registrations.next())
            self._hear_draining(await draining.next())
            self._hear_loads(await loads.next())
            task_status.started()

            async def follow_draining() -> None:
                async for change in draining:
                    self._hear_draining(change)

            async def follow_loads() -> None:
                async for change in loads:
                    self._hear_loads(change)

            nursery.start_soon(follow_draining)
            nursery.start_soon(follow_loads)
            async for change in registrations:
                self._hear_registrations(change)

    def _hear_registrations(self, change: Change) -> None:
        for key in change.deleted:
            self._registered.pop(key.removeprefix(BROKERS), None)
        self._know_of(record.key.removeprefix(BROKERS) for record in change.records)
        for record in change.records:
            member = member_in(record)
            if member is None:
                self._registered.pop(record.key.removeprefix(BROKERS), None)
            else:
                self._registered[member.broker] = member
        self._renew()

    def _hear_draining(self, change: Change) -> None:
        self._draining.difference_update(key.removeprefix(DRAINING) for key in change.deleted)
        self._draining.update(record.key.removeprefix(DRAINING) for record in change.records)
        self._renew()

    def _hear_loads(self, change: Change) -> None:
        # Nobody is told: a load changes often, and only places that are being chosen depend on it.
        loads = dict(self._loads)
        for key in change.deleted:
            loads.pop(key.removeprefix(BROKER_LOADS), None)
        for record in change.records:
            load = BrokerLoad.decode(record.value)
            if load is None:
                log.error("the load of a broker is damaged and is ignored", key=record.key)
            else:
                loads[record.key.removeprefix(BROKER_LOADS)] = load
        self._loads = loads

    def _know_of(self, brokers: Iterable[str]) -> None:
        if self._is_alone and any(broker != self._me.broker for broker in brokers):
            self._is_alone = False
            self._tell()

    def _renew(self) -> None:
        known = {**self._registered, self._me.broker: self._me}
        live = {broker: member._replace(is_draining=broker in self._draining) for broker, member in known.items()}
        if live != self._live:
            self._live = live
            self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()


async def members_in(metadata: MetadataStore) -> list[Member]:
    """Return the registered brokers, by their ids. It needs no `Members`."""
    found = map(member_in, await metadata.scan(*starting_with(BROKERS)))
    return [member for member in found if member is not None]


def member_in(record: Record) -> Member | None:
    """Return the registered broker; None if the record is damaged, so that nothing is sent to that broker."""
    try:
        value = orjson.loads(record.value)
        found = value["service_url"], value.get("http_url"), value.get("kafka")
    except (AttributeError, KeyError, TypeError, ValueError):
        found = None, None, None
    match found:
        case str(service_url), str() | None as http_url, None:
            return Member(record.key.removeprefix(BROKERS), service_url, http_url)
        case str(service_url), str() | None as http_url, {"node": int(node), "host": str(host), "port": int(port)}:
            kafka = KafkaNode(node, Address(host, port))
            return Member(record.key.removeprefix(BROKERS), service_url, http_url, kafka)
    log.error("the registration of a broker is damaged, so no client is sent to that broker", key=record.key)
    return None

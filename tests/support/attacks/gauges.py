"""The broker's own figures of what it holds for clients: connections, producers, consumers, topics, memory.

    before = await gauges(broker.http_url)
    ...                                             # clients come and go
    left = await settled(broker.http_url, before)   # {} once no more is held than before

If a broker does not release something for a client that has left, it still answers other clients. So no other verdict
would show the leak.
"""

import urllib.request
from collections.abc import Mapping
from typing import Final

import trio
from prometheus_client.parser import text_string_to_metric_families

CLIENTS: Final = {
    "pulsar_active_connections": "connections",
    "pulsar_broker_producers_count": "producers",
    "pulsar_broker_consumers_count": "consumers",
    "tidewire_client_memory_bytes received": "bytes received",
    "tidewire_client_memory_bytes unread": "bytes unread",
}
"""Gauges that fall when a client leaves: the name in `/metrics`, and the name in a verdict."""
TOPICS: Final = {"pulsar_broker_topics_count": "loaded topics"}
"""Gauges that fall some time after the last client has left (IDLE_SECONDS_MAX)."""
_SECONDS_MAX: Final = 120.0
_LOOK_SECONDS: Final = 0.2


async def gauges(http_url: str) -> dict[str, float]:
    """Return all values in `/metrics` with at most one label, by name and label."""
    text = await trio.to_thread.run_sync(_scrape, http_url)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def settled(
    http_url: str, before: Mapping[str, float], names: Mapping[str, str] = CLIENTS, seconds_max: float = _SECONDS_MAX
) -> dict[str, float]:
    """Wait until no gauge is above its earlier value. Return what is still above after `seconds_max`, and by how much.

    Polling is necessary, because the broker is another process.
    """
    until = trio.current_time() + seconds_max
    while True:
        now = await gauges(http_url)
        above = {said: now[name] - before[name] for name, said in names.items() if now[name] > before[name]}
        if not above or trio.current_time() >= until:
            return above
        await trio.sleep(_LOOK_SECONDS)


def _scrape(http_url: str) -> str:
    with urllib.request.urlopen(f"{http_url}/metrics?local=true", timeout=_SECONDS_MAX) as answer:
        text: str = answer.read().decode()
    return text

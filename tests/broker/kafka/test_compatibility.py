"""The page that says what is served, held against what is served."""

import re
from pathlib import Path
from typing import Final

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import kafka_client
from tests.support.rooms import rooms
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/compatibility.md"
ROW: Final = re.compile(r"^\| ([A-Za-z]+) \| ([0-9]+)(?:-([0-9]+))? \|", re.MULTILINE)


def key_of(name: str) -> ApiKey:
    """Return the request with this name."""
    return ApiKey["".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name).lstrip("_")]


async def test_the_page_lists_what_is_served_and_nothing_else() -> None:
    """FACTS-kafka §3: clients find every request that they need in the answer to ApiVersions."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        answer = await client.ask(ApiVersionsRequest("test", "1"), ApiVersionsResponse, 4)
    served = {ApiKey(api.api_key): (api.min_version, api.max_version) for api in answer.api_keys}
    listed = {
        key_of(name): (int(first), int(last or first)) for name, first, last in ROW.findall(PAGE.read_text("utf-8"))
    }
    assert listed == served

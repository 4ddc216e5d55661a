"""What a snapshot has of producers, without the records that it is in."""

from collections.abc import Mapping
from typing import Any

import orjson

from broker.deduplication.producer import Producer
from broker.deduplication.sequences import Sequences


def written(sequences: Sequences) -> dict[str, Any]:
    """Return what a snapshot has of all producers, by name."""
    count = sequences.fit_shards()
    shards = [sequences.shard_to_json(number) for number in range(count)]
    return {name: orjson.loads(orjson.dumps(fields)) for shard in shards for name, fields in shard.items()}


def read(producers: Mapping[str, Any], creation: str = "") -> Sequences:
    """Return the memory of the next owner, before it reads the log."""
    made = Sequences(creation)
    made.restore(
        {name: Producer.from_json(fields, made.digest(name), active_ms=0) for name, fields in producers.items()}
    )
    for _pause in made.restored(1, is_written=False):
        pass
    return made

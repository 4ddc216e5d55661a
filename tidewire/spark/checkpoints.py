"""What Spark writes into a stream's checkpoint folder and gives a sink in no other way.

Spark gives a sink the option `checkpointLocation`, but only tasks learn the query's id. The folder holds it, and more,
if this process can read it: it has to be on the driver's own file system. None stands for what cannot be read.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit


def plan_of(checkpoint: str | None, batch: int) -> str | None:
    """A digest of the file with Spark's plan of a micro-batch.

    Spark writes this file before it runs the batch, and reuses it after a crash. It holds the sources' offsets, and the
    time that `current_timestamp()` returns.
    """
    planned = _read(checkpoint, f"offsets/{batch}")
    return None if planned is None else hashlib.sha256(planned).hexdigest()


def query_of(checkpoint: str | None) -> str | None:
    """The id of the query that owns the checkpoint."""
    metadata = _read(checkpoint, "metadata")
    if metadata is None:
        return None
    try:
        query = json.loads(metadata)["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return query if isinstance(query, str) else None


def _read(checkpoint: str | None, name: str) -> bytes | None:
    if checkpoint is None:
        return None
    url = urlsplit(checkpoint)
    if url.scheme not in ("", "file"):
        return None
    folder = Path(unquote(url.path) if url.scheme else checkpoint)
    try:
        return (folder / name).read_bytes()
    except OSError:
        # The folder may be on another machine.
        return None

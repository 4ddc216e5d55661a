"""What Spark wrote into a stream's checkpoint folder and tells a sink nowhere else.

Spark hands a sink the option `checkpointLocation`, and tells only tasks which query they are of. The folder says more,
as far as this process can read it: it has to be on the driver's own file system. None stands for what cannot be read.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit


def plan_of(checkpoint: str | None, batch: int) -> str | None:
    """A digest of the file in which Spark has planned a micro-batch.

    Spark writes it before the batch, and plans by it again after a crash. It has the sources' offsets, and the time
    that `current_timestamp()` gives.
    """
    planned = _read(checkpoint, f"offsets/{batch}")
    return None if planned is None else hashlib.sha256(planned).hexdigest()


def query_of(checkpoint: str | None) -> str | None:
    """The id of the query whose checkpoint it is."""
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
        # The folder may be another machine's.
        return None

"""When background work retries what failed by a retriable error (`storage.errors.ExpectedError`).

A client that is refused tries again by itself. Background work has no client, and a recovered store emits no event for
a write that it never made.
"""

from typing import Final

RETRY_SECONDS: Final = 5.0
"""How long after a failure the store is asked again. Each question has waited for the answer long enough before."""

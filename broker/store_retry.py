"""When background work retries after a retriable error (`storage.errors.ExpectedError`).

A refused client retries by itself. Background work has no client, and a recovered store emits no event for a write that
it never made.
"""

from typing import Final

RETRY_SECONDS: Final = 5.0
"""How long after a failure the store is asked again. The failed request has already waited long for an answer."""

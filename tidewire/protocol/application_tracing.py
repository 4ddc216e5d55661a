"""Whether the application traces with OpenTelemetry, and its tracer.

The clients import OpenTelemetry only if the application has done so, and has set a provider of tracers. Otherwise one
look into Python's table of modules is all that tracing costs.
"""

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_API: Final = "opentelemetry.trace"


def application_tracer(name: str) -> "Tracer | None":
    """Return the application's tracer for the library `name`; None if the application does not trace."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace

    # Until the application sets a provider, there is only this proxy, whose spans go nowhere.
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer(name)

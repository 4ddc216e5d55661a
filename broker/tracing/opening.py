"""Decides from the environment whether a broker traces, by the variables that every user of OpenTelemetry knows.

| variable                                                        | the broker traces                                 |
|-----------------------------------------------------------------|---------------------------------------------------|
| `OTEL_SDK_DISABLED=true`                                        | no                                                |
| `OTEL_TRACES_EXPORTER=none`                                     | no                                                |
| `OTEL_TRACES_EXPORTER=otlp`                                     | yes                                               |
| `OTEL_EXPORTER_OTLP_ENDPOINT` or `..._TRACES_ENDPOINT` is set   | yes                                               |
| none of these                                                   | no: a broker sends nothing that nobody asked for  |
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.errors import StartError
from broker.tracing.spans import Tracing

if TYPE_CHECKING:
    from broker.tracing.exporting import Exporter

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"


class TracesUnavailable(StartError):
    """The environment asks for traces that this broker cannot send. The message says what to change."""


def wanted_by(environment: Mapping[str, str]) -> str | None:
    """Return the variable that asks for traces; None if none does.

    Raises:
        TracesUnavailable: it asks for another exporter or protocol than this broker has.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = environment.get(_EXPORTER, "").strip()
    if exporter == "none":
        return None
    if exporter not in ("", "otlp"):
        raise TracesUnavailable(f"{_EXPORTER}={exporter} names an exporter that brokers do not have. Use otlp or none.")
    asking = _EXPORTER if exporter else next((name for name in _ENDPOINTS if environment.get(name)), None)
    if asking is None:
        return None
    protocol = next((name for name in _PROTOCOLS if environment.get(name)), None)
    if protocol is not None and environment[protocol] != _HTTP:
        raise TracesUnavailable(
            f"{protocol}={environment[protocol]} names a protocol that brokers do not speak. Use {_HTTP}, which "
            "collectors serve at port 4318."
        )
    return asking


def open_tracing(
    environment: Mapping[str, str], *, broker_id: str, version: str
) -> "tuple[Tracing, Exporter] | tuple[None, None]":
    """Return what makes spans and what exports them, if the environment asks for traces.

    Raises:
        TracesUnavailable: it asks for what this broker does not have, or OpenTelemetry is not installed.
    """
    asking = wanted_by(environment)
    if asking is None:
        return None, None
    try:
        from broker.tracing.exporting import open_exporter
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "opentelemetry":
            raise
        raise TracesUnavailable(
            f"{asking} asks for traces, which need OpenTelemetry. Install it with `pip install 'tidewire[otel]'`, or "
            "set OTEL_SDK_DISABLED=true."
        ) from missing
    try:
        return open_exporter(environment, broker_id=broker_id, version=version)
    except ValueError as mistake:
        raise TracesUnavailable(f"A variable OTEL_* has no legal value: {mistake}.") from mistake

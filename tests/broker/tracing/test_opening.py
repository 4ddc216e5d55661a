"""Whether a broker traces, by its environment."""

import sys

import pytest

from broker.tracing.opening import TracesUnavailable, open_tracing, wanted_by

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "asking"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: "http://x:4318"}, ENDPOINT),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://x:4318"}, None),
        ({"OTEL_SDK_DISABLED": "TRUE", ENDPOINT: "http://x:4318"}, None),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", ENDPOINT: "http://x:4318"}, ENDPOINT),
    ],
)
def test_the_environment_decides(environment: dict[str, str], asking: str | None) -> None:
    assert wanted_by(environment) == asking


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER=console"),
        ({ENDPOINT: "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        ({ENDPOINT: "http://x:4318", "OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "many"),
        ({ENDPOINT: "http://x:4318", "OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE=0 is below 1"),
        ({ENDPOINT: "http://x:4318", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "0"}, "BATCH_SIZE=0 is below 1"),
        ({ENDPOINT: "http://x:4318", "OTEL_BSP_SCHEDULE_DELAY": "-1"}, "DELAY=-1 is below 0"),
    ],
)
def test_what_brokers_do_not_have_is_refused_by_name(environment: dict[str, str], named: str) -> None:
    with pytest.raises(TracesUnavailable, match=named):
        open_tracing(environment, broker_id="b", version="1")


def test_an_empty_variable_counts_as_not_set() -> None:
    tracing, exporter = open_tracing(
        {ENDPOINT: "http://x:4318", "OTEL_BSP_SCHEDULE_DELAY": ""}, broker_id="b", version="1"
    )
    assert tracing is not None
    assert exporter is not None


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "broker.tracing.exporting", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(TracesUnavailable, match=r"pip install 'tidewire\[otel\]'"):
        open_tracing({ENDPOINT: "http://x:4318"}, broker_id="b", version="1")
    assert open_tracing({}, broker_id="b", version="1") == (None, None)

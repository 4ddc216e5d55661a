"""The queue between the event loop and a real collector."""

import threading
from collections.abc import Iterator

import pytest
import trio

from broker.tracing.contexts import TraceContext
from broker.tracing.exporting import THREAD_NAME, Exporter, open_exporter
from broker.tracing.spans import Counts, Kind, Tracing
from tests.support.collector import Collector, running_collector

PARENT = TraceContext(7, 5, "vendor=1")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        yield collector


def opened(**environment: str) -> tuple[Tracing, Exporter]:
    return open_exporter({"OTEL_BSP_SCHEDULE_DELAY": "0", **environment}, broker_id="broker-1", version="1")


def end_spans(tracing: Tracing, count: int, name: str = "n") -> None:
    for _ in range(count):
        tracing._start(name, PARENT, kind=Kind.SERVER, attributes={"a": 1}, links=[PARENT], start_ns=1_000).end()


async def until(collector: Collector, requests: int) -> None:
    await trio.to_thread.run_sync(collector.wait_for_requests, requests)


async def test_a_span_arrives_with_its_parent_and_the_brokers_name(collector: Collector) -> None:
    tracing, exporter = opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(tracing, 1)
        await exporter.close()
    (span,) = collector.wait_for(lambda spans: len(spans) == 1)
    assert (span.service, span.name, span.trace_id, span.parent_id) == ("tidewire", "n", f"{7:032x}", f"{5:016x}")
    assert (span.links, span.attributes, span.start_ns, span.state) == ((f"{5:016x}",), {"a": 1}, 1_000, "vendor=1")
    assert tracing.counts() == Counts(1, 0, 0)


async def test_the_environment_names_the_broker_and_samples(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-broker")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    sampled_out, _unused = opened()
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    tracing, exporter = opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(sampled_out, 1, "left out")
        end_spans(tracing, 1)
        await exporter.close()
    (span,) = collector.wait_for(lambda spans: len(spans) == 1)
    assert (span.service, span.name) == ("orders-broker", "n")
    assert sampled_out.counts() == Counts(0, 0, 0)


async def test_spans_share_requests(collector: Collector) -> None:
    """A request takes at most a batch. With less, it waits for more."""
    tracing, exporter = opened(OTEL_BSP_SCHEDULE_DELAY="600000", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(tracing, 15)
        await until(collector, 1)
        assert len(collector.wait_for(lambda spans: len(spans) >= 10)) == 10
        await exporter.close()
    assert len(collector.wait_for(lambda spans: len(spans) >= 15)) == 15
    assert collector.requests == 2


async def test_a_slow_collector_holds_up_nothing_and_what_does_not_fit_is_dropped(collector: Collector) -> None:
    collector.hold()
    tracing, exporter = opened(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(tracing, 2)
        await until(collector, 1)
        assert THREAD_NAME in {thread.name for thread in threading.enumerate()}
        end_spans(tracing, 10)
        assert tracing.counts() == Counts(0, 0, 6)
        collector.release()
        await exporter.close()
    assert tracing.counts() == Counts(6, 0, 6)


async def test_a_slow_collector_does_not_hold_up_the_end(collector: Collector) -> None:
    collector.hold()
    tracing, exporter = opened()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exporter.run)
            end_spans(tracing, 2)
            await until(collector, 1)
            nursery.cancel_scope.cancel()
    assert tracing.counts() == Counts(0, 0, 0)


async def test_refused_spans_are_counted_and_said_once(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.next = [400, 400, 400]
    tracing, exporter = opened(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(tracing, 5)
        await exporter.close()
    assert tracing.counts() == Counts(2, 3, 0)
    said = "".join(capsys.readouterr())
    assert said.count("the collector takes no traces") == 1
    assert said.count("the collector takes traces again") == 1
    assert "400" in said


async def test_an_odd_context_of_a_message_is_no_reason_of_the_collector(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.next = [400]
    tracing, exporter = opened(OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    collector.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        end_spans(tracing, 1)
        await until(collector, 1)
        for _ in range(2):
            odd = TraceContext(7, 5, "what the client wrote")
            tracing._start("n", odd, kind=Kind.SERVER, attributes={}, links=[], start_ns=1_000)
        collector.release()
        await exporter.close()
    said = "".join(capsys.readouterr())
    assert "the collector takes no traces" in said
    assert "what the client wrote" not in said

"""A collector of traces for tests: it takes OTLP over HTTP, decodes it, and lets a test wait for spans.

    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        ...
        spans = collector.wait_for(lambda spans: len(spans) >= 3)

It can misbehave. `collector.status = 503` refuses requests from then on, and `collector.next` refuses the next ones
alone. `collector.hold()` keeps requests without an answer until `release`, or until the block ends. It runs in threads,
so brokers of this process and of others may use it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

WAIT_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as it arrived."""

    service: str
    instance: str
    """Which broker, or which process of an application; empty if it does not say."""
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    """The ids of the spans that it links to."""
    attributes: dict[str, str | int]
    start_ns: int
    end_ns: int
    state: str
    is_error: bool


class Collector:
    """See the module's docstring; made by `running_collector`."""

    def __init__(self) -> None:
        self.status = 200
        """The answer to requests."""
        self.next: list[int] = []
        """The answers to the next requests, before that."""
        self.requests = 0
        """Requests that arrived, whatever their answer."""
        self._spans: list[SeenSpan] = []
        self._changed = threading.Condition()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self.endpoint = ""

    def wait_for(self, is_enough: Callable[[Sequence[SeenSpan]], bool]) -> list[SeenSpan]:
        """Wait until the spans so far are enough, and return them."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_enough(self._spans), WAIT_SECONDS_MAX):
                seen = "\n".join(f"{span.service}: {span.name}" for span in self._spans)
                raise AssertionError(f"the spans that were waited for did not come; those that did:\n{seen}")
            return list(self._spans)

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, WAIT_SECONDS_MAX)

    def hold(self) -> None:
        """Answer no request until the collector stops."""
        self._goes_on.clear()

    def release(self) -> None:
        """Answer again."""
        self._goes_on.set()

    def take(self, path: str, body: bytes) -> int:
        """Take a request; the status of its answer."""
        with self._changed:
            self.requests += 1
            self._changed.notify_all()
        self._goes_on.wait()
        with self._changed:
            status = self.next.pop(0) if self.next else self.status
        if path != "/v1/traces" or status != 200:
            return 404 if status == 200 else status
        spans = list(_decoded(ExportTraceServiceRequest.FromString(body)))
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return 200


def _decoded(request: ExportTraceServiceRequest) -> Iterator[SeenSpan]:
    for resource in request.resource_spans:
        sender = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield SeenSpan(
                    str(sender["service.name"]),
                    str(sender.get("service.instance.id", "")),
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    tuple(link.span_id.hex() for link in span.links),
                    _values(span.attributes),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.trace_state,
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                )


def _values(attributes: Sequence[KeyValue]) -> dict[str, str | int]:
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in attributes
    }


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status = collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        collector.release()
        server.shutdown()
        server.server_close()
        serving.join()

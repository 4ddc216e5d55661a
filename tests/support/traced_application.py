"""An application that traces with OpenTelemetry as its users write it: it sends in a transaction, and consumes.

    python -m tests.support.traced_application SERVICE_URL TOPIC...

The span `order` encloses a transaction that sends one message to each topic. Then each topic is consumed, and each
message is processed in a span `process` below the message's own context. The environment says where spans go.
"""

import sys

import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import tidewire


async def order(service_url: str, topics: list[str]) -> None:
    """Do all of it."""
    tracer = trace.get_tracer("shop")
    async with tidewire.connect(service_url) as client:
        with tracer.start_as_current_span("order"):
            async with client.transaction() as txn:
                for topic in topics:
                    async with client.producer(topic) as producer:
                        await producer.send(b"paid", key="k", properties={"shop": "1"}, txn=txn)
        for topic in topics:
            async with client.queue_consumer(topic, "billing") as consumer:
                message = await consumer.receive()
                with tracer.start_as_current_span("process", context=extract(message.properties)):
                    await consumer.acknowledge(message)


def main() -> None:
    """Run it, and send the last spans."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    anyio.run(order, sys.argv[1], sys.argv[2:])
    provider.shutdown()


if __name__ == "__main__":
    main()

"""Prometheus's text format, written and joined in small steps of the event loop.

The client library writes the text. With thousands of topics that takes long, so it gets a part of the samples at a
time. The texts of several brokers are joined line by line, because parsing them would take ten times as long.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

SAMPLES_AT_ONCE: Final = 200
"""Samples that are written in one step, which takes about 1 ms."""

LINES_AT_ONCE: Final = 500
"""Lines that are joined in one step, which takes about 1 ms."""

_HEAD_LINES: Final = 2
"""HELP and TYPE, which stand before the samples of each family."""

_LINE: Final = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_TYPE: Final = re.compile(rb"# TYPE (\S+) (\S+)")

log = structlog.get_logger(__name__)


async def exposed(metrics: Iterable[Metric]) -> bytes:
    """Return the text of these metrics."""
    pieces = []
    for metric in metrics:
        for first in range(0, max(1, len(metric.samples)), SAMPLES_AT_ONCE):
            part = Metric(metric.name, metric.documentation, metric.type)
            part.samples = metric.samples[first : first + SAMPLES_AT_ONCE]
            text = generate_latest(_registry_of(part))
            pieces.append(text if first == 0 else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES])
            await trio.lowlevel.checkpoint()
    return b"".join(pieces)


async def joined(found: Mapping[str, bytes | None]) -> bytes:
    """Return the texts of several brokers together, each sample with its broker. None: that one did not answer.

    `tidewire_broker_up` says which ones could be read.
    """
    up = GaugeMetricFamily("tidewire_broker_up", "Whether the broker answered this scrape", labels=["broker"])
    families: dict[bytes, _Family] = {}
    for broker, text in sorted(found.items()):
        own = None if text is None else await _families_of(broker, text)
        up.add_metric([broker], own is not None)
        for name, family in (own or {}).items():
            known = families.setdefault(name, family)
            # A broker of another release may have another type of this name, which nobody could read.
            if known is not family and known.type == family.type:
                known.samples += family.samples
    pieces = [generate_latest(_registry_of(up))]
    for family in families.values():
        pieces += [*family.head, *family.samples]
        await trio.lowlevel.checkpoint()
    return b"".join(pieces)


@dataclass(eq=False, slots=True)
class _Family:
    """The lines of one metric, each with its newline."""

    type: bytes
    head: list[bytes] = field(default_factory=list)
    samples: list[bytes] = field(default_factory=list)


async def _families_of(broker: str, text: bytes) -> dict[bytes, _Family] | None:
    """Return the metrics of a broker, whose samples get its id as a label; None if they cannot be read."""
    families: dict[bytes, _Family] = {}
    label = f'broker="{broker}"'.encode()
    comments: list[bytes] = []
    family: _Family | None = None
    for number, line in enumerate(text.split(b"\n")):
        if number % LINES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        if line.startswith(b"#"):
            comments.append(line + b"\n")
            if typed := _TYPE.fullmatch(line):
                family = families.setdefault(typed[1], _Family(typed[2]))
                family.head, comments = comments, []
        elif line:
            sample = _LINE.fullmatch(line)
            if sample is None or family is None:
                log.warning("the metrics of a broker cannot be read", broker=broker, line=line[:200].decode("latin-1"))
                return None
            name, labels, value = sample.groups()
            family.samples.append(b"%s{%s} %s\n" % (name, b",".join(filter(None, (label, labels))), value))
    return families


class _Fixed(Collector):
    """Gives metrics that exist already."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _registry_of(metric: Metric) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Fixed([metric]))
    return registry

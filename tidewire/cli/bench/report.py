"""What `tidewire bench` prints: percentiles and plots as text, or one JSON object. Pure."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidewire.cli.bench.histogram import ERROR, Histogram
from tidewire.cli.bench.timeline import Timeline

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)

BARS_MAX: Final = 16
"""At most this many bars of the histogram."""

BAR_COLUMNS: Final = 40

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_NICE: Final = (1.0, 2.0, 5.0)


@dataclass(slots=True)
class Series:
    """One kind of measured work, such as a send or a commit."""

    name: str
    timeline: Timeline = field(default_factory=Timeline)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run measured, without its warm-up."""

    what: str
    """The run in words."""
    settings: Mapping[str, Any]
    unit: str
    """What is counted, in the plural."""
    done: int
    """How many of them were done within `seconds`."""
    bytes: int
    """The bytes of the messages in them."""
    seconds: float
    series: Sequence[Series]

    @property
    def per_second(self) -> float:
        """How many of them were done each second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """10**6 bytes each second."""
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0


def as_json(result: Result) -> str:
    """One JSON object on one line. Times are in milliseconds."""
    return json.dumps(
        {
            **result.settings,
            "seconds": round(result.seconds, 3),
            result.unit: result.done,
            f"{result.unit}_per_second": round(result.per_second, 1),
            "megabytes_per_second": round(result.megabytes_per_second, 3),
            "latency_ms": {series.name: _latencies(series.timeline.whole()) for series in result.series},
            "over_time": {
                series.name: {
                    "slot_seconds": series.timeline.slot_seconds,
                    "slots": [_latencies(slot) for slot in series.timeline],
                }
                for series in result.series
            },
        }
    )


def _latencies(histogram: Histogram) -> dict[str, float]:
    shown = {"count": float(histogram.count), "mean": histogram.mean_seconds * 1000}
    shown |= {f"p{percent:g}": histogram.percentile(percent) * 1000 for percent in PERCENTILES}
    return {name: round(number, 3) for name, number in {**shown, "max": histogram.max_seconds * 1000}.items()}


def as_text(result: Result, *, is_unicode: bool = True) -> str:
    """Some lines for people. Without `is_unicode` the plots are made of ASCII."""
    lines = [
        result.what,
        f"  throughput  {result.per_second:,.0f} {result.unit}/s, {result.megabytes_per_second:,.2f} MB/s, "
        f"{result.done:,} in {result.seconds:.1f} s",
    ]
    for series in result.series:
        whole = series.timeline.whole()
        if not whole.count:
            continue
        told = [f"p{percent:g} {_time(whole.percentile(percent))}" for percent in PERCENTILES]
        lines.append(f"  {series.name:<11} {', '.join(told)}, max {_time(whole.max_seconds)}")
    first = result.series[0] if result.series else None
    if first is not None and (whole := first.timeline.whole()).count:
        lines += [*_over_time(first, is_unicode=is_unicode), *_bars(first.name, whole, is_unicode=is_unicode)]
    return "\n".join(lines)


def _over_time(series: Series, *, is_unicode: bool) -> list[str]:
    slots = [slot.percentile(99) if slot.count else None for slot in series.timeline]
    present = [slot for slot in slots if slot is not None]
    line = sparkline(slots, is_unicode=is_unicode)
    return [
        "",
        f"  p99 of {series.name}, every {series.timeline.slot_seconds:g} s: "
        f"{_time(min(present))} to {_time(max(present))}",
        f"  {line}",
    ]


def sparkline(values: Sequence[float | None], *, is_unicode: bool = True) -> str:
    """One character for each value, by its logarithm between the smallest and the largest; a space for None."""
    levels = _LEVELS if is_unicode else ".:-=+*#@"
    logs = [None if value is None else math.log(max(value, 1e-9)) for value in values]
    present = [log for log in logs if log is not None]
    low, high = min(present, default=0.0), max(present, default=0.0)
    step = (high - low) / (len(levels) - 1) or 1.0
    return "".join(" " if log is None else levels[round((log - low) / step)] for log in logs)


def _bars(name: str, whole: Histogram, *, is_unicode: bool) -> list[str]:
    bounds = _bounds(whole.percentile(0), whole.max_seconds)
    counts = whole.between(bounds)
    most = max(counts)
    block = "█" if is_unicode else "#"
    lines = ["", f"  {name}: how many took at most"]
    for bound, count in zip(bounds, counts, strict=True):
        columns = math.ceil(count / most * BAR_COLUMNS) if most else 0
        bar = f"{block * columns} " if columns else ""
        lines.append(f"  {_time(bound):>9} {bar}{count:,}")
    return lines


def _bounds(low_seconds: float, high_seconds: float) -> list[float]:
    """Round numbers (1, 2, 5, 10, ...) that reach from the smallest to the largest time; the last BARS_MAX of them."""
    bounds: list[float] = []
    exponent = math.floor(math.log10(max(low_seconds, 1e-6)))
    while not bounds or bounds[-1] < high_seconds:
        bounds += [bound for nice in _NICE if (bound := nice * 10.0**exponent) >= low_seconds * (1 - ERROR)]
        exponent += 1
    while len(bounds) > 1 and bounds[-2] >= high_seconds:
        bounds.pop()
    return bounds[-BARS_MAX:]


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{_three_digits(seconds * 1000)} ms" if seconds < 1 else f"{_three_digits(seconds)} s"


def _three_digits(number: float) -> str:
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}"

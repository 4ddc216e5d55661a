"""Writes the pipeline's results as one self-contained HTML file, and as an SVG picture."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pandas as pd

from . import charts

WIDTH = 1000
"""The width of the plots; a narrower page shows them smaller."""

TITLE = "Flights from New York, 2013"
STYLE = f"""
body {{ margin: 0; background: #fff; color: {charts.INK}; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  Helvetica, Arial, sans-serif; }}
main {{ max-width: {WIDTH}px; margin: 0 auto; padding: 32px 24px 64px; }}
h1 {{ font-size: 28px; margin: 0; }} h2 {{ font-size: 18px; margin: 40px 0 0; }}
p {{ margin: 2px 0 12px; color: {charts.MUTED}; max-width: 46em; }}
svg {{ display: block; width: 100%; height: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid {charts.GRID}; }}
th {{ color: {charts.MUTED}; font-weight: 500; }} .number {{ text-align: right; }}
rect:hover {{ opacity: .8; }}
"""


@dataclass
class Facts:
    """Facts about one run of the pipeline."""

    days: int
    transactions: int = 0
    events: int = 0
    aborted: int = 0
    """Transactions that were aborted and sent again."""
    committed: int = 0
    """Departures in the topic."""
    uncommitted: int = 0
    """Departures in the topic, including those of aborted transactions."""
    away_seconds: float = 0.0
    """From the broker's kill until it was ready again."""
    differences: int = 0
    """Differences between the results and what pandas computes."""
    changes: list[str] = field(default_factory=list)
    """Splits and merges of the topic's segments."""


def write_page(folder: Path, hourly: pd.DataFrame, chains: pd.DataFrame, facts: Facts) -> Path:
    """Write `flights.html` and `flights.svg`. Return the path of the HTML file."""
    numbers = charts.tiles(_numbers(hourly, chains, facts), WIDTH)
    drawings = [
        (
            "Departures a day",
            "by the day in New York; orange: more than 15 minutes late",
            charts.days(hourly, WIDTH),
        ),
        (
            "When it gets late",
            "share of late departures by hour of the day (New York): delays pile up towards the evening",
            charts.clock(hourly, WIDTH),
        ),
        (
            "The influence of the weather",
            "share of late departures by the weather of their hour: the windows, joined with the observations",
            charts.weather(hourly, WIDTH),
        ),
        (
            "Late flights make later flights late",
            "chains of flights of one aircraft, each late because the one before it landed late",
            charts.chain_lengths(chains, WIDTH),
        ),
        (
            "The longest chains",
            "minutes: total departure delay of all flights except the first",
            charts.longest(chains, WIDTH),
        ),
    ]
    subtitle = f"{facts.days} days, streamed through Tidewire and Spark. Broker and job were killed on the way."
    picture = charts.sheet(TITLE, subtitle, [("", "", numbers), *drawings])
    (folder / "flights.svg").write_text(picture.as_svg(), encoding="utf-8")
    sections = "".join(
        f"<h2>{escape(heading)}</h2><p>{escape(about)}</p>{drawing.as_svg()}" for heading, about, drawing in drawings
    )
    page = folder / "flights.html"
    page.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(TITLE)}</title><style>{STYLE}</style><main><h1>{escape(TITLE)}</h1><p>{escape(subtitle)}</p>"
        f"{numbers.as_svg()}{sections}{_story(facts)}{_table(chains)}</main></html>",
        encoding="utf-8",
    )
    return page


def _numbers(hourly: pd.DataFrame, chains: pd.DataFrame, facts: Facts) -> list[tuple[str, str]]:
    departures, late = int(hourly["departures"].sum()), int(hourly["late"].sum())
    return [
        (f"{facts.transactions:,}", "transactions committed"),
        (f"{departures:,}", f"departures, {late / departures:.0%} late"),
        (f"{len(hourly):,}", "windows of an hour"),
        (f"{len(chains):,}", "chains of late flights"),
        (f"{facts.differences}", "differences from pandas"),
    ]


def _story(facts: Facts) -> str:
    more = facts.uncommitted / facts.committed - 1
    sentences = [
        f"{facts.events:,} events went into one topic in {facts.transactions:,} transactions, one for each aircraft "
        f"and day. {facts.aborted:,} of them were sent, aborted and sent again. A reader of uncommitted messages "
        f"counts {facts.uncommitted:,} departures, {more:.1%} more than there were.",
        f"Meanwhile the topic's segments changed: {', '.join(facts.changes)}.",
        f"In the middle of a run the broker and the Spark job were killed (kill -9). The broker was ready again after "
        f"{facts.away_seconds:.1f} s, and the job continued from its checkpoints.",
    ]
    return "<h2>What happened on the way</h2>" + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _table(chains: pd.DataFrame) -> str:
    rows = "".join(
        f"<tr><td>{chain.tailnum}<td>{chain.started:%b %d %H:%M}<td class='number'>{chain.legs}"
        f"<td class='number'>{chain.delay_minutes:,}<td>{escape(str(chain.route))}"
        for chain in chains.sort_values("delay_minutes", ascending=False).head(20).itertuples(index=False)
    )
    head = "<tr><th>aircraft<th>from (UTC)<th class='number'>legs<th class='number'>minutes late<th>where"
    return f"<h2>The twenty costliest chains</h2><table>{head}{rows}</table>"

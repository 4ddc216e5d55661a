"""Draws plots as SVG without a library, fonts or scripts, so a page with them loads nothing from other servers.

Each function draws on a surface of a given width, and returns its SVG elements and its height. An element shows its
numbers when the mouse points at it (`<title>`).
"""

from collections.abc import Sequence
from datetime import date
from html import escape
from typing import NamedTuple

import pandas as pd

INK = "#1c2733"
MUTED = "#66727f"
GRID = "#e4e9ee"
CALM = "#a9c4d9"
LATE = "#d4572a"
HEAT = ["#eef2f5", "#fbe3d6", "#f6c3a6", "#ec9970", "#df7244", "#c24a1d", "#8f3210"]
FONT = "font-family='system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif'"
NEW_YORK = "America/New_York"


class Drawing(NamedTuple):
    """A finished drawing."""

    elements: str
    width: int
    height: int

    def as_svg(self) -> str:
        """Return a complete SVG element, which fills the available width."""
        box = f"viewBox='0 0 {self.width} {self.height}'"
        return f"<svg xmlns='http://www.w3.org/2000/svg' {box} {FONT} role='img'>{self.elements}</svg>"


def days(hourly: pd.DataFrame, width: int) -> Drawing:
    """Draw the departures of each day, on time and late."""
    by_day = hourly.groupby(hourly["hour"].dt.tz_convert(NEW_YORK).dt.date)[["departures", "late"]].sum()
    left, top, high = 44, 12, 180
    most = int(by_day["departures"].max())
    step = (width - left) / len(by_day)
    parts = _rules(left, width, top, high, most)
    for number, (day, row) in enumerate(by_day.iterrows()):
        x, broad = left + number * step + step * 0.12, step * 0.76
        whole, late = high * row["departures"] / most, high * row["late"] / most
        told = f"{day}: {row['departures']:,} departures, {row['late']:,} of them more than 15 minutes late"
        parts.append(f"<g><title>{told}</title>{_bar(x, top + high - whole, broad, whole - late, CALM)}")
        parts.append(f"{_bar(x, top + high - late, broad, late, LATE)}</g>")
    parts += _dates(list(by_day.index), left, step, top + high + 18)
    return Drawing("".join(parts), width, top + high + 28)


def clock(hourly: pd.DataFrame, width: int) -> Drawing:
    """Draw the share of late departures: a row for each hour of the day, a column for each day."""
    local = hourly["hour"].dt.tz_convert(NEW_YORK)
    cells = hourly.groupby([local.dt.date.rename("day"), local.dt.hour.rename("clock")])[["departures", "late"]].sum()
    dates = sorted(cells.index.unique("day"))
    left, top, high = 44, 4, 11
    step = (width - left) / len(dates)
    first, last = 5, 23
    parts = [
        _text(left - 8, top + (hour - first) * high + 9, f"{hour:02}:00", anchor="end")
        for hour in range(first, last + 1, 3)
    ]
    for day, hour, departures, late in cells.reset_index().itertuples(index=False):
        if first <= hour <= last:
            share = late / departures
            x, y = left + dates.index(day) * step, top + (hour - first) * high
            told = f"{day} {hour:02}:00: {late} of {departures} late"
            colour = HEAT[min(len(HEAT) - 1, int(share * len(HEAT) / 0.7))]
            parts.append(f"{_bar(x + 0.5, y + 0.5, step - 1, high - 1, colour, told)}")
    bottom = top + (last - first + 1) * high + 20
    parts += _dates(dates, left, step, bottom - 4)
    for number, colour in enumerate(HEAT):
        parts.append(_bar(width - 250 + number * 22, bottom + 10, 22, 9, colour))
    parts.append(_text(width - 258, bottom + 18, "late: none", anchor="end"))
    parts.append(_text(width - 250 + len(HEAT) * 22 + 8, bottom + 18, "60 % or more"))
    return Drawing("".join(parts), width, bottom + 26)


def weather(hourly: pd.DataFrame, width: int) -> Drawing:
    """Draw the share of late departures by the weather of their hour, which needs the join."""
    observed = hourly[hourly["observed"]]
    groups: list[tuple[str, pd.Series[float], list[float], list[str]]] = [
        ("wind, mph", observed["wind_speed"], [-1, 5, 10, 15, 20, 99], ["< 5", "5-10", "10-15", "15-20", "> 20"]),
        ("visibility, miles", observed["visib"], [-1, 1, 3, 6, 9.9, 99], ["< 1", "1-3", "3-6", "6-10", "10"]),
        ("rain, inches", observed["precip"], [-1, 0, 0.01, 0.05, 99], ["none", "to 0.01", "to 0.05", "more"]),
    ]
    top, high, gap, left = 12, 130, 34, 44
    broad = (width - left - gap * (len(groups) - 1)) / len(groups)
    shares = [_late_share(observed, pd.cut(column, edges, labels=labels)) for _, column, edges, labels in groups]
    most = max(0.05, max(float(share["share"].max()) for share in shares))
    parts = _rules(left, width, top, high, most * 100, " %")
    for number, ((name, *_), share) in enumerate(zip(groups, shares, strict=True)):
        x0 = left + number * (broad + gap)
        step = broad / len(share)
        for place, (label, row) in enumerate(share.iterrows()):
            tall = high * row["share"] / most
            told = f"{name} {label}: {row['share']:.0%} of {row['departures']:,.0f} departures late"
            parts.append(_bar(x0 + place * step + 3, top + high - tall, step - 6, tall, LATE, told))
            parts.append(_text(x0 + place * step + step / 2, top + high + 16, str(label), anchor="middle", size=11))
        parts.append(_text(x0 + broad / 2, top + high + 34, name, anchor="middle", colour=INK))
    return Drawing("".join(parts), width, top + high + 44)


def chain_lengths(chains: pd.DataFrame, width: int) -> Drawing:
    """Draw the number of chains of each length, and their total delay."""
    by_length = chains.groupby("legs")["delay_minutes"].agg(["size", "sum"])
    left, high, most = 60, 24, int(by_length["size"].max()) if len(by_length) else 1
    parts = []
    for number, (legs, row) in enumerate(by_length.iterrows()):
        y, long = 4 + number * (high + 6), (width - left - 190) * row["size"] / most
        parts.append(_text(left - 8, y + 16, f"{legs} legs", anchor="end", colour=INK))
        parts.append(_bar(left, y, max(long, 2), high, LATE, f"{row['size']:,} chains of {legs} legs"))
        parts.append(
            _text(left + max(long, 2) + 8, y + 16, f"{row['size']:,} chains, {row['sum'] / 60:,.0f} hours late")
        )
    return Drawing("".join(parts), width, 4 + len(by_length) * (high + 6))


def longest(chains: pd.DataFrame, width: int, shown: int = 6) -> Drawing:
    """Draw the chains with the most delay: each is a line, with a stop for each leg."""
    parts = []
    most = chains.sort_values(["legs", "delay_minutes"], ascending=False).head(shown)
    for number, chain in enumerate(most.itertuples(index=False)):
        y = 22 + number * 46
        legs = str(chain.route).split(" ")
        parts.append(_text(0, y - 4, str(chain.tailnum), colour=INK, weight=600))
        parts.append(_text(0, y + 13, f"{chain.started:%b %d}, +{chain.delay_minutes} min"))
        step = (width - 130) / max(6, len(legs))
        parts.append(f"<path d='M120 {y}H{120 + step * (len(legs) - 1):.0f}' stroke='{LATE}' stroke-width='3'/>")
        for place, leg in enumerate(legs):
            x = 120 + place * step
            inside = LATE if place else "#fff"
            dot = f"cx='{x:.0f}' cy='{y}' r='6' fill='{inside}' stroke='{LATE}' stroke-width='3'"
            parts.append(f"<circle {dot}/>")
            parts.append(_text(x - 6, y + 21, leg, size=10))
    return Drawing("".join(parts), width, 22 + len(most) * 46)


def tiles(numbers: Sequence[tuple[str, str]], width: int) -> Drawing:
    """Draw large numbers with their labels."""
    gap = 14
    broad = (width - gap * (len(numbers) - 1)) / len(numbers)
    parts = []
    for place, (number, what) in enumerate(numbers):
        x = place * (broad + gap)
        parts.append(f"<rect x='{x:.1f}' y='0' width='{broad:.1f}' height='68' rx='8' fill='#f4f7f9'/>")
        parts.append(_text(x + 14, 32, number, size=22, colour=INK, weight=650))
        parts.append(_text(x + 14, 54, what, size=11.5))
    return Drawing("".join(parts), width, 68)


def sheet(title: str, subtitle: str, drawings: Sequence[tuple[str, str, Drawing]], columns: int = 1) -> Drawing:
    """Arrange drawings below each other on white, each with a heading and a caption."""
    margin, y, width = 32, 48, max(drawing.width for *_, drawing in drawings) + 64
    parts = [_text(margin, y, title, size=26, colour=INK, weight=700), _text(margin, y + 24, subtitle, size=13)]
    y += 46
    for heading, about, drawing in drawings:
        if heading:
            parts.append(_text(margin, y + 18, heading, size=16, colour=INK, weight=650))
            parts.append(_text(margin, y + 36, about, size=12))
            y += 50
        parts.append(f"<g transform='translate({margin} {y})'>{drawing.elements}</g>")
        y += drawing.height + 22
    return Drawing(f"<rect width='{width}' height='{y}' fill='#fff'/>" + "".join(parts), width, y)


def _dates(days: Sequence[date], left: float, step: float, y: float) -> list[str]:
    """Draw about ten dates, each in the middle of its column."""
    return [
        _text(left + (number + 0.5) * step, y, f"{day:%b} {day.day}", anchor="middle")
        for number, day in enumerate(days)
        if number % max(1, len(days) // 10) == 0
    ]


def _late_share(hours: pd.DataFrame, group: "pd.Series[str]") -> pd.DataFrame:
    sums = hours.groupby(group, observed=False)[["departures", "late"]].sum()
    return sums.assign(share=(sums["late"] / sums["departures"]).fillna(0.0))


def _rules(left: float, right: float, top: float, high: float, most: float, unit: str = "") -> list[str]:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = top + high * (1 - part)
        parts.append(f"<path d='M{left} {y:.1f}H{right}' stroke='{GRID}'/>")
        parts.append(_text(left - 8, y + 4, f"{most * part:,.0f}{unit}", anchor="end"))
    return parts


def _bar(x: float, y: float, width: float, height: float, colour: str, told: str = "") -> str:
    title = f"<title>{escape(told)}</title>" if told else ""
    box = f"x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{max(0.0, height):.1f}' fill='{colour}'"
    return f"<rect {box}>{title}</rect>" if title else f"<rect {box}/>"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: float = 12, colour: str = MUTED, weight: int = 400
) -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' font-weight='{weight}'"
    return f"<text {place} fill='{colour}'>{escape(text)}</text>"

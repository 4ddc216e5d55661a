"""The parts of the flights' pipeline, without Spark: its answers, its watermark, its comparison and its page."""

import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pandas as pd
import pytest

from examples.flights import expected
from examples.flights.compare import differences
from examples.flights.flights import AircraftDay, read_flights, transactions
from examples.flights.ingest import OPEN_MAX
from examples.flights.jobs.chains import Chain, Event, advance
from examples.flights.jobs.watermark import WATERMARK_DELAY
from examples.flights.page import Facts, write_page
from examples.flights.processes import Broker, Process
from examples.flights.run import KEYS, in_rounds, main

DAYS = 8
PICTURE_BYTES_MAX = 150_000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights(DAYS)


@pytest.fixture(scope="module")
def sent(flights: pd.DataFrame) -> list[AircraftDay]:
    return transactions(flights)


def test_transactions_hold_every_event_once_in_the_order_of_the_schedule(
    flights: pd.DataFrame, sent: list[AircraftDay]
) -> None:
    events = [(event.leg, event.kind) for day in sent for _, event in day.events]
    departed, landed = int(flights["dep_delay"].notna().sum()), int(flights["air_time"].notna().sum())
    assert len(events) == len(set(events)) == len(flights) + landed
    assert sum(kind == "departed" for _, kind in events) == departed
    firsts = [min(event.leg.split("/")[1] for _, event in day.events) for day in sent]
    assert firsts == sorted(firsts)
    assert {(day.tailnum, day.day) for day in sent if day.is_aborted_first} != set()
    assert sum(len(some) for some in in_rounds(sent)) == len(sent)


def test_events_in_any_order_make_the_chains_that_pandas_finds(flights: pd.DataFrame, sent: list[AircraftDay]) -> None:
    by_aircraft: dict[str, list[Event]] = {}
    for day in sent:
        for time_ms, event in day.events:
            if event.delay is not None and day.tailnum != "NA":
                waiting = Event(time_ms, event.kind, event.leg, f"{event.origin}-{event.dest}", event.delay)
                by_aircraft.setdefault(day.tailnum, []).append(waiting)
    found = []
    random = Random(5)
    for tailnum, events in by_aircraft.items():
        random.shuffle(events)
        chain: Chain | None = None
        for one in sorted(events, key=lambda event: event.turn):
            chain, ended = advance(chain, one)
            found += [(tailnum, ended)] if ended is not None and ended.legs > 1 else []
        found += [(tailnum, chain)] if chain is not None and chain.legs > 1 else []
    table = pd.DataFrame(
        [
            (name, _time(one.started_ms), _time(one.ended_ms), one.legs, one.delay_minutes, one.route)
            for name, one in found
        ],
        columns=["tailnum", "started", "ended", "legs", "delay_minutes", "route"],
    )
    assert len(table) > 10
    assert differences("chains", expected.chains(flights), table, KEYS["chains"]) == []


def _time(time_ms: int) -> pd.Timestamp:
    return pd.Timestamp(time_ms, unit="ms", tz="UTC")


def test_in_a_whole_year_nothing_comes_behind_the_watermark() -> None:
    """E23: no event is later than earlier transactions, or transactions that overtake it, by more than the delay."""
    year = read_flights(365)
    departed = year["scheduled"] + year["dep_delay"] * expected.MINUTE
    landed = departed + year["air_time"] * expected.MINUTE
    times = pd.concat([departed.fillna(year["scheduled"]), departed, landed], axis=1)
    transaction = [year["aircraft"], year["scheduled"].dt.floor("D")]
    sent = pd.DataFrame({"at": year["scheduled"], "first": times.min(axis=1), "last": times.max(axis=1)})
    sent = sent.groupby(transaction).agg({"at": "min", "first": "min", "last": "max"}).sort_values("at")
    overtaking = sent["last"].cummax().shift(-2 * OPEN_MAX)
    hours = int(WATERMARK_DELAY.removesuffix(" hours"))
    assert timedelta(hours=hours - 6) < (overtaking - sent["first"]).max() < timedelta(hours=hours)


def test_what_is_missing_too_many_changed_or_doubled_is_named(flights: pd.DataFrame) -> None:
    right = expected.hourly(flights)
    key = KEYS["hourly"]
    assert differences("hourly", right, right.sample(frac=1, random_state=1), key) == []
    wrong = pd.concat([right.drop(index=2), right.loc[[5]]]).reset_index(drop=True)
    late = int(right["late"].iloc[0])
    wrong.loc[0, "late"] = late + 1
    wrong.loc[7, "origin"] = "ZRH"
    said = differences("hourly", right, wrong, key)
    assert [sentence.split(" ", 3)[1] for sentence in said].count("ZRH") == 1
    assert sum(sentence.endswith("is there more than once") for sentence in said) == 1
    assert sum(sentence.endswith("is missing") for sentence in said) == 2
    assert sum(sentence.endswith("should not be there") for sentence in said) == 1
    (changed,) = (sentence for sentence in said if " has " in sentence)
    assert changed.endswith(f"has late {late + 1} instead of {late}")
    none = differences("hourly", right, right.iloc[:0], key)
    assert none[-1] == f"hourly: and {len(right) - 5} more rows"


class Page(HTMLParser):
    """What a browser would load and show."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_from_elsewhere(flights: pd.DataFrame, tmp_path: Path) -> None:
    chains = expected.chains(flights)
    facts = Facts(DAYS, 5432, 14_000, 543, 7000, 7700, 1.5, 0, ["split segment 0", "merged segments 2 and 3"])
    page = Page()
    written = write_page(tmp_path, expected.hourly(flights), chains, facts).read_text(encoding="utf-8")
    page.feed(written)
    assert page.tags.count("svg") == 6
    assert "script" not in page.tags
    assert "url(" not in written
    assert page.loaded == []
    for text in ("5,432", "10.0% more", "split segment 0, merged segments 2 and 3", chains["route"].iloc[0].split()[0]):
        assert text in page.text
    picture = (tmp_path / "flights.svg").read_bytes()
    assert len(picture) < PICTURE_BYTES_MAX
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_page_of_nothing_can_be_written_too(flights: pd.DataFrame, tmp_path: Path) -> None:
    """A wrong result is worth looking at, and it may be empty."""
    write_page(tmp_path, expected.hourly(flights)[:1], expected.chains(flights)[:0], Facts(1, committed=1))


def test_a_folder_with_other_things_in_it_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkout also has a folder `broker`, and the remains of an earlier run are removed first."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(sys, "argv", ["run", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "contains other files (Makefile); give a folder that may be emptied" in capsys.readouterr().err
    assert (tmp_path / "broker").is_dir()


def test_a_broker_ends_when_its_start_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []

    def interrupted(process: Process) -> str:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "line", interrupted)
    with pytest.raises(KeyboardInterrupt), Broker(tmp_path / "data", tmp_path / "log"):
        pass
    (process,) = started
    assert process._process.returncode is not None

"""What the doctor finds, as a table: facts on one side, the kinds of findings on the other."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.doctor.facts import (
    Assigned,
    Damage,
    Facts,
    Fence,
    FolderFacts,
    Kept,
    RecordFacts,
    Registered,
    Told,
    Unfinished,
    Waiting,
)
from broker.doctor.finding import Finding
from broker.doctor.findings import RULES, examine, lasting, unowned
from broker.doctor.report import FINDINGS_MAX, Report
from broker.doctor.subscription_rules import AWAY_SECONDS
from broker.unread import UNKNOWN, Left, Unread
from storage.ages import SKEW_MAX_MS

SEGMENT = "segment://public/default/a/0000-ffff-0"
TOPIC = "topic://public/default/a"
ONE = Registered("folder", "1.0", "http://one:8080")
TWO = Registered("folder", "1.0", "http://two:8080")
CALM = Told(0, 100, 2, unread=Unread())
OPEN = Kept(frozenset({"one"}), is_deleting=False)
CLOSED = Kept(frozenset(), is_deleting=False)


def records(**changed: Any) -> RecordFacts:
    """A cluster of two brokers in which all is well, but for what is given."""
    usual: dict[str, Any] = {
        "cluster": "c",
        "registered": {"one": ONE, "two": TWO},
        "claims": {SEGMENT: "one", "coordinator://0": "one", "coordinator://1": "two"},
        "journals": {"one": "folder", "two": "folder"},
        "logs": {SEGMENT: OPEN},
        "ledgers": {7: SEGMENT},
        "folders": {7: "folder"},
    }
    return RecordFacts(**{**usual, **changed})


FOLDER = FolderFacts(
    path="/data",
    identity="folder",
    cluster="c",
    metadata="etcd",
    ledgers=frozenset({7}),
    brokers=frozenset({"one", "two"}),
    running=frozenset({"one", "two"}),
)


def facts(
    said: RecordFacts | None = None,
    folder: FolderFacts | None = FOLDER,
    told: Mapping[str, Told | None] | None = None,
    **more: Any,
) -> Facts:
    """The facts of that cluster."""
    return Facts(
        records=said or records(), folder=folder, told={"one": CALM, "two": CALM} if told is None else told, **more
    )


LED = replace(FOLDER, fence=Fence(3, "one", has_ended=False))
FOLLOWING = dict.fromkeys(("one", "two"), CALM._replace(store={"leads": False, "epoch": 3}))
GONE = records(registered={"two": TWO}, claims={"coordinator://0": "two", "coordinator://1": "two"})
"""Broker one has ended. It left a segment open, and its claims have gone with its session."""
STOPPED = records(registered={}, claims={})

LEFT = Left(3, grew=True, is_spread=True, away_seconds=AWAY_SECONDS)


def leaving(left: Left) -> Told:
    return CALM._replace(unread=Unread(left={(TOPIC, "s"): left}))


GROWS = leaving(LEFT)
"""Messages come for a subscription, and nobody reads them at this broker."""

TABLE: Mapping[str, tuple[Facts, list[str]]] = {
    "all is well": (facts(), []),
    "nobody reads a subscription": (facts(told={"one": GROWS, "two": CALM}), ["subscription-unread"]),
    "its backlog stands still": (facts(told={"one": leaving(LEFT._replace(grew=False))}), []),
    "its consumers may come back": (facts(told={"one": leaving(LEFT._replace(away_seconds=AWAY_SECONDS - 1))}), []),
    "its consumers left one broker a while ago, and another just now": (
        facts(told={"one": GROWS, "two": leaving(LEFT._replace(away_seconds=1))}),
        [],
    ),
    "it is read at another broker": (
        facts(told={"one": GROWS, "two": CALM._replace(unread=Unread(consumed=[(TOPIC, "s")]))}),
        [],
    ),
    "it may be read at a silent broker": (facts(told={"one": GROWS, "two": None}), ["broker-silent"]),
    "it may be read at an older broker": (facts(told={"one": GROWS, "two": CALM._replace(unread=UNKNOWN)}), []),
    "nothing is known of the folder": (facts(folder=None), []),
    "nothing is known of the metadata": (
        Facts(records=None, folder=FOLDER, told={"one": CALM, "two": CALM}),
        ["metadata-unread"],
    ),
    "the folder does not answer": (
        facts(folder=None, data_dir="/data", unread_folder="It is away."),
        ["folder-unread"],
    ),
    "a file is damaged": (facts(folder=replace(FOLDER, unreadable={"/data/fence": "it is torn"})), ["damaged-file"]),
    "a record is damaged": (facts(records(unreadable={"/brokers/x": "no JSON"})), ["damaged-record"]),
    "the folder is another cluster's": (facts(folder=replace(FOLDER, cluster="d")), ["other-cluster"]),
    "a ledger has no file": (facts(folder=replace(FOLDER, ledgers=frozenset())), ["ledger-without-file"]),
    "its file is being removed": (facts(records(leaving={7}), replace(FOLDER, ledgers=frozenset())), []),
    "its file is in another folder": (facts(records(folders={7: "far"}), replace(FOLDER, ledgers=frozenset())), []),
    "a file has no record": (facts(records(ledgers={})), ["files-without-record"]),
    "a file is going": (facts(records(ledgers={}, leaving={7})), []),
    "a file is not ours": (facts(folder=replace(FOLDER, unknown=("notes.txt",))), ["unknown-files"]),
    "a journal lost entries": (facts(records(damages={7: Damage(4096, "it is torn")})), ["journal-damage"]),
    "a journal is another one's": (facts(misfits={"one": "It is an older copy."}), ["journal-misfit"]),
    "a broker's folder was removed": (
        facts(folder=replace(FOLDER, brokers=frozenset({"one"})), misfits={"two": "It is missing."}),
        ["journal-without-folder"],
    ),
    "a folder that is needed was removed": (
        facts(folder=replace(FOLDER, brokers=frozenset({"two"})), misfits={"one": "It is missing."}),
        ["journal-misfit"],
    ),
    "a broker was killed a moment ago": (
        facts(folder=replace(FOLDER, running=frozenset({"two"}), ended=frozenset({"one"})), told={"one": None}),
        ["broker-ended"],
    ),
    "a broker is stopped": (facts(told={"one": None, "two": CALM}), ["broker-silent"]),
    "a disk is full": (
        facts(told={"one": CALM._replace(problem="The disk is full. Free space")}),
        ["broker-cannot-serve"],
    ),
    "a broker lost its session": (
        facts(records(registered={"one": ONE}, claims={SEGMENT: "one"}), told={}),
        ["broker-without-session"],
    ),
    "its ledgers wait": (facts(GONE, replace(FOLDER, running=frozenset({"two"}))), ["journal-unrecovered"]),
    "its ledgers are being recovered": (
        facts(replace(GONE, recovering={"one": "two"}), replace(FOLDER, running=frozenset({"two"}))),
        ["journal-in-recovery"],
    ),
    "all brokers are stopped": (
        facts(STOPPED, replace(FOLDER, running=frozenset()), told={}, is_running=False),
        ["journal-to-replay"],
    ),
    "all brokers stopped well": (
        facts(
            replace(STOPPED, logs={SEGMENT: CLOSED}), replace(FOLDER, running=frozenset()), told={}, is_running=False
        ),
        [],
    ),
    "an owner is not registered": (
        facts(records(registered={"two": TWO}, logs={}), replace(FOLDER, running=frozenset({"two"}))),
        ["owner-gone"],
    ),
    "a broker drains": (facts(records(draining={"one"})), ["drain-unfinished"]),
    "a broker has drained": (
        facts(records(draining={"one"}, claims={"coordinator://0": "two", "coordinator://1": "two"})),
        [],
    ),
    "an assigned topic is still owned": (
        facts(records(assigned={SEGMENT: Assigned("two", "move", "one", 5)})),
        ["hand-over-unfinished"],
    ),
    "an assigned topic is not taken": (
        facts(records(assigned={"persistent://a/b/c": Assigned("two", "move", "one", 5)})),
        ["hand-over-unfinished"],
    ),
    "the next owner does not run": (
        facts(records(assigned={"persistent://a/b/c": Assigned("three", "move", "one", 5)})),
        ["hand-over-unfinished"],
    ),
    "a split is open": (facts(records(unfinished={TOPIC: Unfinished("a split", 9)})), ["change-unfinished"]),
    "records wait": (facts(records(waiting={SEGMENT: Waiting(3, 9)})), ["records-unapplied"]),
    "records wait for nobody": (
        facts(records(waiting={"segment://a/b/c/0-1-0": Waiting(3, 9)})),
        ["records-unapplied"],
    ),
    "transactions never end": (facts(records(overdue={"/txn/id/1_1": 1})), ["transactions-overdue"]),
    "a coordinator has no owner": (facts(records(claims={"coordinator://0": "one"})), ["coordinators-unowned"]),
    "the settings differ": (
        facts(told={"one": CALM, "two": CALM._replace(coordinators=1)}),
        ["settings-differ"],
    ),
    "the releases differ": (
        facts(records(registered={"one": ONE, "two": TWO._replace(release="2.0")})),
        ["mixed-releases"],
    ),
    "a clock is ahead": (facts(told={"one": CALM, "two": CALM._replace(ahead_ms=61_000)}), ["clocks-differ"]),
    "a clock is far behind": (facts(told={"two": CALM._replace(ahead_ms=-SKEW_MAX_MS - 1)}), ["clocks-differ"]),
    "clocks differ a little": (facts(told={"two": CALM._replace(ahead_ms=59_000)}), []),
    "nobody leads the metadata": (facts(folder=LED, told=FOLLOWING), ["metadata-without-controller"]),
    "its leader has ended": (
        facts(folder=replace(LED, fence=Fence(3, "one", has_ended=True)), told=FOLLOWING),
        ["metadata-without-controller"],
    ),
    "one leads": (facts(folder=LED, told={**FOLLOWING, "one": CALM._replace(store={"leads": True})}), []),
    "nobody shares the metadata": (facts(folder=LED), []),
    "two lead": (
        facts(folder=LED, told=dict.fromkeys(("one", "two"), CALM._replace(store={"leads": True, "epoch": 3}))),
        ["metadata-with-two-controllers"],
    ),
    "the controller changes often": (
        facts(told={"one": CALM._replace(store={"joined_in_last_hour": 13, "epoch": 40}), "two": CALM}),
        ["metadata-unsteady"],
    ),
    "a write waits": (facts(told={"one": CALM._replace(store={"oldest_write_seconds": 6})}), ["metadata-writes-wait"]),
    "metadata lags": (facts(told={"one": CALM, "two": CALM._replace(revision=5_000)}), ["metadata-behind"]),
    "metadata lags a little": (facts(told={"one": CALM, "two": CALM._replace(revision=1_000)}), []),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_disagreement_is_found_and_nothing_else(case: str) -> None:
    """E1, E3, C11, C17: and a side that is not known is no disagreement."""
    given, kinds = TABLE[case]
    assert [finding.kind for finding in examine(given)] == kinds


def test_every_finding_says_what_to_do_in_sentences() -> None:
    found = [finding for given, _kinds in TABLE.values() for finding in examine(given)]
    for finding in found:
        assert finding.about
        assert finding.advice[0].isupper()
        assert finding.what.endswith("."), finding
        assert finding.advice.endswith("."), finding


def test_the_documentation_has_every_finding() -> None:
    page = Path(__file__).parents[3] / "docs/operations/failures.md"
    documented = re.findall(r"^\| `([a-z-]+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted({kind for _given, kinds in TABLE.values() for kind in kinds})


def test_every_rule_is_shown_by_a_row() -> None:
    silent = [rule.__name__ for rule in RULES if not any(list(rule(given)) for given, _kinds in TABLE.values())]
    assert silent == []


def test_what_has_passed_by_the_second_look_is_no_finding() -> None:
    """A split that went on between the looks is one that goes on, although it is still open."""
    stalled, moved = (Finding("change-unfinished", topic, "What.", "Do.", "9") for topic in ("a", "b"))
    passed, new = (Finding("owner-gone", broker, "What.", "Do.") for broker in ("one", "two"))
    found = lasting([stalled, moved, passed], [stalled, moved._replace(state="10"), new])
    assert found == [stalled]


def test_a_busy_segment_is_no_finding() -> None:
    """It has records of ended transactions at each look, but the same ones only if nobody applies them."""
    before, busy, stuck = (examine(facts(records(waiting={SEGMENT: Waiting(5, oldest)}))) for oldest in (9, 12, 9))
    assert lasting(before, busy) == []
    assert [finding.kind for finding in lasting(before, stuck)] == ["records-unapplied"]


def test_what_nobody_owns_is_counted_by_its_reason() -> None:
    names = ["persistent://p/d/deleted", "persistent://p/d/lost", "persistent://p/d/left", "persistent://p/d/given"]
    logs = {
        SEGMENT: OPEN,
        names[0]: Kept(frozenset(), is_deleting=True),
        names[1]: CLOSED,
        names[2]: Kept(frozenset({"three"}), is_deleting=False),
        names[3]: CLOSED,
        "persistent://p/d/idle": CLOSED,
    }
    said = records(
        logs=logs,
        ledgers={7: SEGMENT, 8: names[1]},
        damages={8: Damage(0, "it is torn")},
        assigned={names[3]: Assigned("two", "move", "one", 5)},
    )
    assert unowned(facts(said)) == {
        "being deleted": 1,
        "damaged": 1,
        "waits for the journal of three": 1,
        "assigned to two": 1,
        "idle: nobody uses it": 1,
    }


def test_the_report_says_who_owns_what_and_what_was_not_looked_at() -> None:
    report = Report(facts(records(draining={"two"})), []).as_json()
    assert [(one["broker"], one["state"], one["owns"]) for one in report["brokers"]] == [
        ("one", "running", {"coordinators": 1, "segments": 1}),
        ("two", "draining", {"coordinators": 1}),
    ]
    assert (report["unowned"], report["notLooked"]) == ({}, [])
    many = [Finding("drain-unfinished", str(number), "What.", "Do.") for number in range(FINDINGS_MAX + 7)]
    cut = Report(facts(), many).as_json()
    assert (len(cut["findings"]), cut["more"], report["more"]) == (FINDINGS_MAX, 7, 0)
    blind = Report(Facts(records=None), []).as_json()
    assert [len(blind[name]) for name in ("brokers", "unowned", "notLooked")] == [0, 0, 3]

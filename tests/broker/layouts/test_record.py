"""Records are read back as written, damaged ones are refused, and administrators see Pulsar's form."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given

from broker.errors import LayoutTooLarge, LayoutUnreadable
from broker.layouts import record as layout_record
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout, create
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.layouts.record import LAYOUT_BYTES_MAX, admin_view, from_json, subscriptions_in, to_json
from tests.support.layouts import NOW_MS, layouts

SPLIT_OPEN = (
    create(2, NOW_MS, creation_id="c-1", properties={"team": "a"})
    .add_subscription("s", LayoutSubscription(SubscriptionKind.QUEUE, "s-1", StartPosition.LATEST, NOW_MS))
    .begin_split(1)
)
SPLIT_OPEN = replace(SPLIT_OPEN, auto_scale=AutoScaleOverride(enabled=True, split_msg_rate_in=5), last_merge_ms=NOW_MS)


@given(layouts())
def test_a_layout_is_read_back_as_it_was_written(layout: Layout) -> None:
    assert from_json(to_json(layout)) == layout
    assert subscriptions_in(to_json(layout)) == layout.subscriptions


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_of_an_earlier_version_is_read(version: int) -> None:
    """Events that the earlier version did not record have not happened."""
    raw = json.loads(to_json(SPLIT_OPEN))
    raw["version"] = version
    del raw["subscriptions"]["s"]["creating"]
    if version == 1:
        del raw["subscriptions"]["s"]["deleting"]
        for added in ("pruned", "deleting", "autoScalePolicy", "lastSplitMs", "lastMergeMs"):
            del raw[added]
        for segment in raw["segments"].values():
            del segment["merges"]
    known = SPLIT_OPEN if version == 2 else replace(SPLIT_OPEN, auto_scale=None, last_merge_ms=None)
    assert from_json(orjson.dumps(raw)) == known


def test_the_record_in_full() -> None:
    """Later versions rely on the stored form. If you change this test, assign a new version number."""
    segment = {
        "state": "ACTIVE",
        "parentIds": [],
        "childIds": [],
        "createdAtEpoch": 0,
        "sealedAtEpoch": -1,
        "createdAtMs": NOW_MS,
        "sealedAtMs": -1,
        "merges": 0,
    }
    assert json.loads(to_json(SPLIT_OPEN)) == {
        "version": 3,
        "creationId": "c-1",
        "epoch": 0,
        "nextSegmentId": 4,
        "segments": {
            "0": {"segmentId": 0, "hashRange": {"start": 0, "end": 32767}, **segment},
            "1": {"segmentId": 1, "hashRange": {"start": 32768, "end": 65535}, **segment},
        },
        "properties": {"team": "a"},
        "subscriptions": {
            "s": {
                "type": "QUEUE",
                "creationId": "s-1",
                "start": "LATEST",
                "createdAtMs": NOW_MS,
                "creating": False,
                "deleting": False,
            }
        },
        "intent": {
            "parentIds": [1],
            "children": [
                {"segmentId": 2, "hashRange": {"start": 32768, "end": 49151}},
                {"segmentId": 3, "hashRange": {"start": 49152, "end": 65535}},
            ],
            "sealing": False,
        },
        "pruned": {},
        "deleting": False,
        "autoScalePolicy": {"enabled": True, "splitMsgRateInThreshold": 5.0},
        "lastSplitMs": -1,
        "lastMergeMs": NOW_MS,
        "segmentsMin": 1,
    }


def test_a_migrated_segment_keeps_its_old_topic() -> None:
    raw = orjson.loads(to_json(create(1, NOW_MS, creation_id="c")))
    raw["segments"]["0"]["legacyTopicName"] = "persistent://public/default/x"
    layout = from_json(orjson.dumps(raw))
    assert layout.segment(0).legacy_topic_name == "persistent://public/default/x"
    assert from_json(to_json(layout)) == layout
    assert admin_view(layout)["segments"]["0"]["legacy"] is True  # type: ignore[index]


def test_administrators_see_exactly_pulsars_form() -> None:
    layout = create(1, 5, creation_id="c", properties={"a": "b"}).begin_split(0)
    assert layout.intent is not None
    assert json.loads(orjson.dumps(admin_view(layout.replace_segments(layout.intent, 7).finish()))) == {
        "epoch": 1,
        "nextSegmentId": 3,
        "segments": {
            "0": {
                "segmentId": 0,
                "hashRange": {"start": 0, "end": 65535},
                "state": "SEALED",
                "parentIds": [],
                "childIds": [1, 2],
                "createdAtEpoch": 0,
                "sealedAtEpoch": 1,
                "createdAtMs": 5,
                "sealedAtMs": 7,
                "sealed": True,
                "active": False,
                "root": True,
                "leaf": False,
                "legacy": False,
            },
            **{
                str(number): {
                    "segmentId": number,
                    "hashRange": hash_range,
                    "state": "ACTIVE",
                    "parentIds": [0],
                    "childIds": [],
                    "createdAtEpoch": 1,
                    "sealedAtEpoch": -1,
                    "createdAtMs": 7,
                    "sealedAtMs": -1,
                    "sealed": False,
                    "active": True,
                    "root": False,
                    "leaf": True,
                    "legacy": False,
                }
                for number, hash_range in [(1, {"start": 0, "end": 32767}), (2, {"start": 32768, "end": 65535})]
            },
        },
        "properties": {"a": "b"},
    }


def _set(*path: str | int, to: object) -> Callable[[Any], None]:
    def apply(raw: Any) -> None:
        for key in path[:-1]:
            raw = raw[key]
        raw[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_set("version", to=4), "version 4; this software reads versions 1 to 3"),
        (lambda raw: raw.pop("version"), "version"),
        (lambda raw: raw.pop("intent"), "intent"),
        (lambda raw: raw["segments"].pop("0"), "do not divide"),
        (_set("segments", to=[]), "items"),
        (_set("segments", "0", to=None), "NoneType"),
        (_set("segments", "0", "state", to="OPEN"), "OPEN"),
        (_set("segments", "0", "segmentId", to="0"), "whole number"),
        (_set("segments", "0", "segmentId", to=True), "whole number"),
        (_set("segments", "0", "hashRange", "end", to=32766), "do not divide"),
        (_set("segments", "0", "legacyTopicName", to=5), "expected text"),
        (_set("epoch", to=1.5), "whole number"),
        (_set("epoch", to=-1), "epochs"),
        (_set("nextSegmentId", to=1), "never allocated"),
        (_set("creationId", to=None), "expected text"),
        (_set("properties", "team", to=1), "expected text"),
        (_set("subscriptions", "s", "type", to="TOPIC"), "TOPIC"),
        (_set("intent", "parentIds", 0, to=7), "do not exist"),
        (_set("intent", "children", 0, "segmentId", to=0), "not reserved"),
        (_set("intent", "sealing", to=1), "true or false"),
    ],
)
def test_a_damaged_record_is_refused_with_a_reason(damage: Callable[[Any], None], says: str) -> None:
    raw = orjson.loads(to_json(SPLIT_OPEN))
    damage(raw)
    with pytest.raises(LayoutUnreadable, match=says):
        from_json(orjson.dumps(raw))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff"])
def test_what_is_no_layout_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(LayoutUnreadable):
        from_json(data)


def test_a_layout_must_fit_its_record() -> None:
    with pytest.raises(LayoutTooLarge, match=str(LAYOUT_BYTES_MAX)):
        to_json(create(1, NOW_MS, creation_id="c", properties={"a": "b" * LAYOUT_BYTES_MAX}))


def test_an_intent_that_could_not_be_finished_is_refused_before_anything_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = create(1, NOW_MS, creation_id="c").begin_split(0)
    assert opened.intent is not None
    finished = opened.replace_segments(opened.intent, NOW_MS).finish()
    # Room for the open intent, not for what it becomes.
    monkeypatch.setattr(layout_record, "LAYOUT_BYTES_MAX", len(to_json(finished)) - 1)
    assert len(orjson.dumps(orjson.loads(to_json(replace(opened, intent=None))))) < layout_record.LAYOUT_BYTES_MAX
    with pytest.raises(LayoutTooLarge):
        to_json(opened)
    # A subscription created meanwhile takes up room too.
    monkeypatch.setattr(layout_record, "LAYOUT_BYTES_MAX", len(to_json_unbounded(opened)) + 10)
    with pytest.raises(LayoutTooLarge):
        to_json(
            opened.add_subscription("s", LayoutSubscription(SubscriptionKind.STREAM, "i", StartPosition.EARLIEST, 0))
        )


def to_json_unbounded(layout: Layout) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_record, "LAYOUT_BYTES_MAX", 2**62)
        assert layout.intent is not None
        return to_json(layout.replace_segments(layout.intent, NOW_MS).finish())

"""Encodes layouts: as records for the metadata store, and in Pulsar's JSON for administrators.

The record uses Pulsar's names where Pulsar's metadata has the same field. It adds what this broker needs: the format's
version, the creation id, subscriptions and the open intent. Fields that can be computed are not stored. The JSON for
administrators is exactly Pulsar's, including computed fields, because Pulsar's clients map it onto classes.

A layout must fit in one record of the metadata store. Finishing an open intent makes it larger. So `to_json` also
refuses a layout whose finished form would be too large. The error then comes before a segment is sealed.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from broker.errors import AutoScalePolicyInvalid, LayoutTooLarge, LayoutUnreadable
from broker.layouts.autoscale_policy import AutoScaleOverride, stored_override_of
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import (
    Child,
    HashRange,
    Intent,
    LayoutSubscription,
    Segment,
    SegmentState,
    StartPosition,
    SubscriptionKind,
)
from storage.unknown_fields import restored, unknown_in

VERSION: Final = 3
_VERSIONS_READ: Final = (1, 2, 3)
"""Version 1 has no fields for pruning, deletion and automatic scaling; versions 1 and 2 have none for subscriptions
that are being created. In such a record, none of these has happened."""

LAYOUT_BYTES_MAX: Final = 900_000
"""Less than the embedded store's limit of 1 MiB for a record, which leaves room for the rest of the change set."""

DECODED_KEPT: Final = 2
"""Decoded layouts in the cache. A layout with a thousand segments takes 16 ms to decode, and each segment needs it."""

_FIELDS: Final = frozenset(
    {
        "version",
        "creationId",
        "epoch",
        "nextSegmentId",
        "segments",
        "properties",
        "subscriptions",
        "intent",
        "pruned",
        "deleting",
        "autoScalePolicy",
        "lastSplitMs",
        "lastMergeMs",
        "segmentsMin",
    }
)
_SEGMENT_FIELDS: Final = frozenset(
    {
        "segmentId",
        "hashRange",
        "state",
        "parentIds",
        "childIds",
        "createdAtEpoch",
        "sealedAtEpoch",
        "createdAtMs",
        "sealedAtMs",
        "legacyTopicName",
        "merges",
    }
)
_SUBSCRIPTION_FIELDS: Final = frozenset({"type", "creationId", "start", "createdAtMs", "creating", "deleting"})
_INTENT_FIELDS: Final = frozenset({"parentIds", "children", "sealing"})

_LATE_MS: Final = 2**53 - 1
_NEVER: Final = -1


def to_json(layout: Layout) -> bytes:
    """Encode a layout as the value of its record.

    Raises:
        LayoutTooLarge: it would exceed LAYOUT_BYTES_MAX, now or when its open intent is finished.
    """
    data = _encode(layout)
    longest = len(data)
    if layout.intent is not None:
        longest = max(longest, len(_encode(layout.replace_segments(layout.intent, _LATE_MS))))
    if longest > LAYOUT_BYTES_MAX:
        raise LayoutTooLarge(
            f"The topic's layout would take {longest} bytes, but the limit is {LAYOUT_BYTES_MAX}. "
            "Prune segments or delete subscriptions first."
        )
    return data


@lru_cache(maxsize=DECODED_KEPT)
def from_json(data: bytes) -> Layout:
    """Decode and check a record's value. The last results are cached by their bytes.

    Raises:
        LayoutUnreadable: the value is not a layout, has a newer version, or breaks an invariant.
    """
    try:
        raw = orjson.loads(data)
        if raw["version"] not in _VERSIONS_READ:
            raise LayoutUnreadable(
                f"The layout has version {raw['version']!r}; this software reads versions 1 to {VERSION}."
            )
        layout = _decode(raw)
    except (KeyError, TypeError, ValueError, AttributeError, AutoScalePolicyInvalid) as error:
        raise LayoutUnreadable(f"The layout cannot be read: {error!r}.") from error
    wrong = wrong_in(layout)
    if wrong:
        raise LayoutUnreadable(f"The layout is inconsistent: {'; '.join(wrong)}.")
    return layout


def subscriptions_in(data: bytes) -> Mapping[str, LayoutSubscription]:
    """Decode only the subscriptions of a record's value, for lists of many topics. It costs a tenth of `from_json`.

    Raises:
        LayoutUnreadable: the value has none that can be read. Nothing else of it is checked.
    """
    try:
        return {name: _subscription(value) for name, value in orjson.loads(data)["subscriptions"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LayoutUnreadable(f"The layout's subscriptions cannot be read: {error!r}.") from error


def admin_view(layout: Layout) -> dict[str, object]:
    """Return the layout as the JSON content of `GET /admin/v2/scalable/<topic>`."""
    return {
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_segment_id,
        "segments": {str(segment.id): _segment_view(segment) for segment in layout.segments.values()},
        "properties": dict(layout.properties),
        **({} if layout.auto_scale is None else {"autoScalePolicy": layout.auto_scale.as_map()}),
    }


def _segment_view(segment: Segment) -> dict[str, object]:
    return {
        **_segment_record(segment),
        "sealed": not segment.is_active,
        "active": segment.is_active,
        "root": not segment.parents,
        "leaf": not segment.children,
        "legacy": segment.legacy_topic_name is not None,
    }


def _segment_record(segment: Segment) -> dict[str, object]:
    record: dict[str, object] = {
        "segmentId": segment.id,
        "hashRange": _range_record(segment.range),
        "state": segment.state.value,
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "createdAtEpoch": segment.created_at_epoch,
        "sealedAtEpoch": _NEVER if segment.sealed_at_epoch is None else segment.sealed_at_epoch,
        "createdAtMs": segment.created_at_ms,
        "sealedAtMs": _NEVER if segment.sealed_at_ms is None else segment.sealed_at_ms,
    }
    if segment.legacy_topic_name is not None:
        record["legacyTopicName"] = segment.legacy_topic_name
    return record


def _stored_segment(segment: Segment) -> dict[str, object]:
    return {**_segment_record(segment), "merges": segment.merges, **restored(segment.unknown)}


def _range_record(hash_range: HashRange) -> dict[str, int]:
    return {"start": hash_range.start, "end": hash_range.end}


def _encode(layout: Layout) -> bytes:
    return orjson.dumps(
        {
            "version": VERSION,
            "creationId": layout.creation_id,
            "epoch": layout.epoch,
            "nextSegmentId": layout.next_segment_id,
            "segments": {str(segment.id): _stored_segment(segment) for segment in layout.segments.values()},
            "properties": dict(layout.properties),
            "subscriptions": {
                name: {
                    "type": subscription.kind.value,
                    "creationId": subscription.creation_id,
                    "start": subscription.start.value,
                    "createdAtMs": subscription.created_at_ms,
                    "creating": subscription.is_creating,
                    "deleting": subscription.is_deleting,
                    **restored(subscription.unknown),
                }
                for name, subscription in layout.subscriptions.items()
            },
            "intent": None if layout.intent is None else _intent_record(layout.intent),
            "pruned": {str(segment.id): _stored_segment(segment) for segment in layout.pruned.values()},
            "deleting": layout.is_deleting,
            "autoScalePolicy": None if layout.auto_scale is None else _stored_policy(layout.auto_scale),
            "lastSplitMs": _NEVER if layout.last_split_ms is None else layout.last_split_ms,
            "lastMergeMs": _NEVER if layout.last_merge_ms is None else layout.last_merge_ms,
            "segmentsMin": layout.segments_min,
            **restored(layout.unknown),
        }
    )


def _stored_policy(policy: AutoScaleOverride) -> dict[str, object]:
    return {**policy.as_map(), **restored(policy.unknown)}


def _intent_record(intent: Intent) -> dict[str, object]:
    return {
        "parentIds": list(intent.parents),
        "children": [{"segmentId": child.id, "hashRange": _range_record(child.range)} for child in intent.children],
        "sealing": intent.sealing,
        **restored(intent.unknown),
    }


def _decode(raw: Mapping[str, Any]) -> Layout:
    segments = {int(key): _segment(value) for key, value in raw["segments"].items()}
    return Layout(
        creation_id=_text(raw["creationId"]),
        epoch=_whole(raw["epoch"]),
        next_segment_id=_whole(raw["nextSegmentId"]),
        segments=segments,
        properties={key: _text(value) for key, value in raw["properties"].items()},
        subscriptions={name: _subscription(value) for name, value in raw["subscriptions"].items()},
        intent=None if raw["intent"] is None else _intent(raw["intent"]),
        pruned={int(key): _segment(value) for key, value in raw.get("pruned", {}).items()},
        is_deleting=_switch(raw.get("deleting", False)),
        auto_scale=None if raw.get("autoScalePolicy") is None else stored_override_of(raw["autoScalePolicy"]),
        last_split_ms=_moment(raw.get("lastSplitMs", _NEVER)),
        last_merge_ms=_moment(raw.get("lastMergeMs", _NEVER)),
        # Earlier releases merged down to one segment, so a topic of theirs was promised no more.
        segments_min=_whole(raw.get("segmentsMin", 1)),
        unknown=unknown_in(raw, _FIELDS),
    )


def _segment(raw: Mapping[str, Any]) -> Segment:
    legacy_topic_name = raw.get("legacyTopicName")
    return Segment(
        id=_whole(raw["segmentId"]),
        range=_range(raw["hashRange"]),
        state=SegmentState(raw["state"]),
        parents=tuple(_whole(parent) for parent in raw["parentIds"]),
        children=tuple(_whole(child) for child in raw["childIds"]),
        created_at_epoch=_whole(raw["createdAtEpoch"]),
        created_at_ms=_whole(raw["createdAtMs"]),
        sealed_at_epoch=_moment(raw["sealedAtEpoch"]),
        sealed_at_ms=_moment(raw["sealedAtMs"]),
        legacy_topic_name=None if legacy_topic_name is None else _text(legacy_topic_name),
        merges=_whole(raw.get("merges", 0)),
        unknown=unknown_in(raw, _SEGMENT_FIELDS),
    )


def _range(raw: Mapping[str, Any]) -> HashRange:
    return HashRange(_whole(raw["start"]), _whole(raw["end"]))


def _subscription(raw: Mapping[str, Any]) -> LayoutSubscription:
    return LayoutSubscription(
        kind=SubscriptionKind(raw["type"]),
        creation_id=_text(raw["creationId"]),
        start=StartPosition(raw["start"]),
        created_at_ms=_whole(raw["createdAtMs"]),
        is_creating=_switch(raw.get("creating", False)),
        is_deleting=_switch(raw.get("deleting", False)),
        unknown=unknown_in(raw, _SUBSCRIPTION_FIELDS),
    )


def _intent(raw: Mapping[str, Any]) -> Intent:
    return Intent(
        parents=tuple(_whole(parent) for parent in raw["parentIds"]),
        children=tuple(Child(_whole(child["segmentId"]), _range(child["hashRange"])) for child in raw["children"]),
        sealing=_switch(raw["sealing"]),
        unknown=unknown_in(raw, _INTENT_FIELDS),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _moment(value: object) -> int | None:
    number = _whole(value)
    return None if number == _NEVER else number


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value

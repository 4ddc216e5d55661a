"""What a broker pushes, in the form in which `statistics` and `transactions` have what it answers.

It pushes fewer numbers than it answers: None stands for the others, such as a backlog in bytes. A part that no broker
has loaded has no counters.
"""

from typing import Any

from tidewire.cli.admin.statistics import View, total
from tidewire.cli.admin.watching import Parts
from tidewire.cli.endings import CommandFailed
from tidewire.cli.topic_paths import TopicPath

_COUNTERS = {
    "messagesIn": "messages_in",
    "bytesIn": "bytes_in",
    "messagesOut": "messages_out",
    "bytesOut": "bytes_out",
}


def pushed_topic(path: TopicPath, pushed: Parts) -> View:
    """Return a topic as `statistics.topic_view` does. A scalable topic's parts also have their place in the layout.

    Raises:
        CommandFailed: the topic does not exist, or its layout is damaged.
    """
    if pushed["problem"]:
        raise CommandFailed(str(pushed["problem"]))
    if path.is_scalable:
        parts = _segments(path, pushed)
        types = {name: one["type"].lower() for name, one in pushed["layout"]["subscriptions"].items()}
    else:
        # A broker of an earlier release does not say whether it exists.
        if not pushed.get("exists", True):
            raise CommandFailed(f"{path.topic} does not exist. Create it with `tidewire topics create {path.topic}`.")
        count = pushed["partitions"]
        names = [path.topic] if not count else [f"{path.topic}-partition-{index}" for index in range(count)]
        parts = [_part(name, pushed["logs"].get(name)) for name in names]
        types = {name: one["type"] for part in parts for name, one in part["subscriptions"].items()}
    subscriptions = [_whole(name, types[name], parts) for name in sorted(types)]
    return {"topic": path.topic, **total(parts), "parts": parts, "subscriptions": subscriptions}


def pushed_transactions(pushed: Parts) -> list[View]:
    """Return the open transactions of Pulsar's and Tidewire's clients, oldest first, as the list has them."""
    return [
        {
            "transaction": one["id"],
            "state": "OPEN",
            "openedAtMs": one["created_ms"],
            "timesOutAtMs": one["deadline_ms"],
            "endedAtMs": None,
            "writes": sorted({part["segment"] for part in one["participants"] if part["kind"] == "write"}),
            "acknowledgements": [
                {"topic": part["segment"], "subscription": part["subscription"]}
                for part in one["participants"]
                if part["kind"] == "ack"
            ],
            "unreadableRecords": sum(part["kind"] == "unreadable" for part in one["participants"]),
        }
        for one in pushed["open"]
        if one["protocol"] == "Pulsar"
    ]


def _segments(path: TopicPath, pushed: Parts) -> list[View]:
    layout = pushed["layout"]
    if layout is None:
        raise CommandFailed(f"{path.topic} does not exist. Create it with `tidewire topics create {path.topic}`.")
    found = []
    for one in sorted(layout["segments"].values(), key=lambda one: int(one["segmentId"])):
        place = segment_place(one)
        name = one.get("legacyTopicName") or (
            f"{path.topic.replace('topic://', 'segment://', 1)}/{place['hashRange']}-{place['segment']}"
        )
        found.append({**place, **_part(name, pushed["logs"].get(name)), "topic": path.topic})
    return found


def segment_place(answer: Any) -> View:  # noqa: ANN401 - JSON
    """Return a segment's place in its topic's layout, of the layout in Pulsar's JSON."""
    return {
        "segment": answer["segmentId"],
        "state": str(answer["state"]).lower(),
        "hashRange": f"{answer['hashRange']['start']:04x}-{answer['hashRange']['end']:04x}",
        "parents": answer["parentIds"],
        "children": answer["childIds"],
        "createdAtMs": answer["createdAtMs"],
        "sealedAtMs": answer["sealedAtMs"] if answer["sealed"] else None,
    }


def _part(name: str, log: Any) -> View:  # noqa: ANN401 - JSON, or None for one that is not loaded
    known = log or {}
    return {
        "part": name,
        **{ours: known.get(theirs) for ours, theirs in _COUNTERS.items()},
        "storedBytes": None,
        "producers": known.get("producers"),
        "producerNames": None,
        "subscriptions": {name: _counted(one) for name, one in known.get("subscriptions", {}).items()},
    }


def _counted(one: Parts) -> View:
    consumers = one["consumers"]
    return {
        "type": one["type"].lower(),
        "consumers": len(consumers),
        "backlog": one["backlog"],
        "backlogBytes": None,
        "oldestBacklogAtMs": None,
        "unackedMessages": sum(consumer["unacked"] for consumer in consumers),
        "consumersConnected": [
            {
                "consumer": consumer["name"],
                "permits": consumer["permits"],
                "unackedMessages": consumer["unacked"],
                "messagesOut": consumer["messages_out"],
                "bytesOut": None,
            }
            for consumer in consumers
        ],
    }


def _whole(name: str, kind: str, parts: list[View]) -> View:
    on = [part["subscriptions"][name] for part in parts if name in part["subscriptions"]]
    return {
        "subscription": name,
        "type": kind,
        "consumers": len({one["consumer"] for counted in on for one in counted["consumersConnected"]}),
        "backlog": sum(counted["backlog"] for counted in on),
        "backlogBytes": None,
        "oldestBacklogAtMs": None,
        "unackedMessages": sum(counted["unackedMessages"] for counted in on),
    }

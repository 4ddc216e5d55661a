"""Topics of both kinds in one form, made of what the admin HTTP API answers. The field names are stable.

A part is a segment of a scalable topic, a partition, or the whole of a regular topic without partitions. A backlog
counts as the broker does: messages that were sent as one batch count as one. Counters begin when the owner loads the
part. None stands for what the broker does not say.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidewire.cli.asking import Brokers, NotAccepted
from tidewire.cli.topic_paths import TopicPath

View = dict[str, Any]
Answer = Mapping[str, Any]

_NOT_FOUND: Final = 404
_SUMMED: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "storedBytes")


def topic_view(brokers: Brokers, path: TopicPath) -> View:
    """Return a topic's parts, and its subscriptions over all parts.

    Raises:
        NotAnswered: no broker answered.
        NotAccepted: the broker refused, or the topic does not exist.
    """
    if path.is_scalable:
        answer = brokers.ask("GET", path.root + "/stats")
        parts = [_part(one["name"], one, int(number)) for number, one in answer["segments"].items()]
        parts.sort(key=lambda part: int(part["segment"]))
    else:
        answer = brokers.ask("GET", path.root + "/stats")
        parts = [_part(name, one) for name, one in _partitions(brokers, path, answer).items()]
    subscriptions = [_whole(name, one, parts) for name, one in sorted(answer["subscriptions"].items())]
    return {"topic": path.topic, **total(parts), "parts": parts, "subscriptions": subscriptions}


def subscription_view(topic: View, name: str) -> View:
    """Return one subscription of a `topic_view`, with what each part counts.

    Raises:
        NotAccepted: the topic has no such subscription.
    """
    whole = [one for one in topic["subscriptions"] if one["subscription"] == name]
    if not whole:
        raise NotAccepted(
            f"{topic['topic']} has no subscription {name}. `tidewire subscriptions list` shows those it has.",
            _NOT_FOUND,
        )
    parts = [(part, part["subscriptions"][name]) for part in topic["parts"] if name in part["subscriptions"]]
    return {
        "topic": topic["topic"],
        **whole[0],
        "consumersConnected": [{"part": part["part"], **one} for part, on in parts for one in on["consumersConnected"]],
        "parts": [{"part": part["part"], **_without_consumers(on)} for part, on in parts],
    }


def _partitions(brokers: Brokers, path: TopicPath, statistics: Answer) -> Mapping[str, Answer]:
    if not brokers.ask("GET", path.root + "/partitions")["partitions"]:
        return {path.topic: statistics}
    partitions: Mapping[str, Answer] = brokers.ask("GET", path.root + "/partitioned-stats")["partitions"]
    return dict(sorted(partitions.items(), key=lambda item: int(item[0].rpartition("-")[2])))


def _part(name: str, answer: Answer, segment: int | None = None) -> View:
    producers = answer.get("producers")
    if producers is None:
        producers = [one["producerName"] for one in answer.get("publishers", ())]
    return {
        "part": name,
        **({} if segment is None else {"segment": segment, "state": answer["state"].lower()}),
        "messagesIn": answer.get("msgInCounter"),
        "bytesIn": answer.get("bytesInCounter"),
        "messagesOut": answer.get("msgOutCounter"),
        "bytesOut": answer.get("bytesOutCounter"),
        "storedBytes": answer.get("storageSize"),
        "producers": len(producers),
        "producerNames": producers,
        "subscriptions": {name: _counted(one) for name, one in answer.get("subscriptions", {}).items()},
    }


def _counted(answer: Answer) -> View:
    """A subscription on one part. Segments tell their consumers under another name than regular topics."""
    connected = answer.get("connected", answer["consumers"])
    return {
        "type": answer["type"].lower(),
        "consumers": len(answer["consumers"]),
        "backlog": answer["msgBacklog"],
        "backlogBytes": answer["backlogSize"],
        "oldestBacklogAtMs": answer["earliestMsgPublishTimeInBacklog"] or None,
        "unackedMessages": answer["unackedMessages"],
        "consumersConnected": [
            {
                "consumer": one["consumerName"],
                "permits": one["availablePermits"],
                "unackedMessages": one["unackedMessages"],
                "messagesOut": one["msgOutCounter"],
                "bytesOut": one["bytesOutCounter"],
            }
            for one in connected
        ],
    }


def _whole(name: str, answer: Answer, parts: Iterable[View]) -> View:
    """A subscription over all parts. One consumer may read several of them."""
    on = [part["subscriptions"][name] for part in parts if name in part["subscriptions"]]
    return {
        "subscription": name,
        "type": answer["type"].lower(),
        "consumers": answer["consumerCount"],
        "backlog": answer["msgBacklog"],
        "backlogBytes": sum(one["backlogBytes"] for one in on),
        "oldestBacklogAtMs": min((one["oldestBacklogAtMs"] for one in on if one["oldestBacklogAtMs"]), default=None),
        "unackedMessages": sum(one["unackedMessages"] for one in on),
    }


def _without_consumers(counted: View) -> View:
    return {name: value for name, value in counted.items() if name != "consumersConnected"}


def total(parts: Iterable[View]) -> View:
    """Return the sums over all parts. A producer of several parts is one, where the parts name their producers."""
    known = list(parts)
    names = [part["producerNames"] for part in known]
    return {
        **{name: _sum([part[name] for part in known]) for name in _SUMMED},
        "producers": None if None in names else len({name for ones in names for name in ones}),
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None if none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None

"""Message ids as text that people can read, copy and give back, and other places to begin reading.

    1000:5                  entry 5 of ledger 1000
    1000:5:2/10             the third of the ten messages in that entry
    3:1000:5:2/10           the same on segment 3, or partition 3
    3:1000:5,4:1001:7       the same of a message that was read when segment 4 was read up to 1001:7

So the text holds the whole position of a reader, on all segments.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from tidewire.cli.endings import UsageError
from tidewire.protocol.positions import MessageId, Position

NO_SEGMENT: Final = -1
"""The segment of messages on a plain topic."""

_PLACE: Final = re.compile(r"(?:([0-9]{1,19}):)?([0-9]{1,19}):([0-9]{1,19})(?::([0-9]{1,9})/([0-9]{1,9}))?")
_ONE: Final = r"(?:[0-9]{1,19}:)?[0-9]{1,19}:[0-9]{1,19}(?::[0-9]{1,9}/[0-9]{1,9})?"
_WHOLE: Final = re.compile(f"{_ONE}(?:,{_ONE})*")
_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])")
_WORDS: Final[Mapping[str, Literal["earliest", "latest"]]] = {"earliest": "earliest", "latest": "latest"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def text_of(message_id: MessageId) -> str:
    """The id as text."""
    others = sorted(
        (segment, place) for segment, place in message_id.others.items() if segment != message_id.segment_id
    )
    return ",".join(_text(segment, place) for segment, place in [(message_id.segment_id, message_id.position), *others])


def position_text(place: Position) -> str:
    """The position within its segment as text."""
    return _text(NO_SEGMENT, place)


def message_id_of(text: str) -> MessageId | None:
    """The id that the text is, or None if it is none."""
    if _WHOLE.fullmatch(text) is None:
        return None
    places = {}
    for one in text.split(","):
        found = _PLACE.fullmatch(one)
        assert found is not None, "the whole text was matched"
        segment, ledger, entry, index, size = found.groups()
        place = Position(int(ledger), int(entry), *(() if index is None else (int(index), int(size))))
        places[NO_SEGMENT if segment is None else int(segment)] = place
    first, *_ = places
    return MessageId(first, *places[first], others={key: place for key, place in places.items() if key != first})


def beginning_of(
    text: str, now: datetime, flag: str = "--from"
) -> Literal["earliest", "latest"] | MessageId | datetime:
    """Where `flag` says to begin: a word, a message id, a time in ISO 8601, or how long ago, such as 15m.

    Raises:
        UsageError: it is none of them, or before 1970.
    """
    if text in _WORDS:
        return _WORDS[text]
    message_id = message_id_of(text)
    if message_id is not None:
        return message_id
    ago = _AGO.fullmatch(text)
    try:
        moment = datetime.fromisoformat(text) if ago is None else now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    except (ValueError, OverflowError):
        raise UsageError(
            f"{flag} {text!r} is no place to begin. Give earliest, latest, a time such as 2013-01-31T06:15:00Z, how "
            f"long ago such as 15m, or a message id such as 1000:5."
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise UsageError(f"{flag} {text!r} is before 1970, and no message is so old. Give earliest.")
    return moment


def _text(segment: int, place: Position) -> str:
    batch = "" if place.batch_index < 0 else f":{place.batch_index}/{place.batch_size}"
    return f"{'' if segment == NO_SEGMENT else f'{segment}:'}{place.ledger_id}:{place.entry_id}{batch}"

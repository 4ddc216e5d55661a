"""The options of format "tidewire" for reading, and their values (for writing: write_options.py).

    service_url                  pulsar://HOST:PORT[,HOST:PORT] of some brokers, tried in turn; required
    topic                        topic://TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME, or several of them
                                 separated by commas
    topic_pattern                topic://TENANT/NAMESPACE/REGEX in place of `topic`: every scalable topic of that
                                 namespace whose whole name matches; a stream also follows later ones
    starting_position            earliest, latest, a time (2024-05-01T12:00:00Z, or milliseconds since the epoch), or
                                 JSON by topic and segment (positions.py) [batch: earliest; stream: latest]
    ending_position              the same, for batches [latest]
    isolation                    read_committed, or read_uncommitted: also messages of open and aborted transactions
                                 [read_committed]
    schema                       auto: `value` has the type of the topic's schema; none: it is binary [none]
    columns                      the columns to read, separated by commas. Without this option Spark converts all of
                                 them, needed or not; key and value alone cost half as much [all]
    fail_on_data_loss            whether to fail when unread messages are gone [true]
    partition_bytes              a segment with more than this to read is divided among tasks [134217728]
    push_filters                 whether to apply filters before Spark does, for batches; needs the Spark setting
                                 spark.sql.python.filterPushdown.enabled=true. Spark 4.3 then applies a filter to later
                                 queries of the same data frame without one, too, and they lack rows: load a data frame
                                 for each query [false]
    max_rows_per_trigger         most rows of a micro-batch
    max_bytes_per_trigger        most bytes of a micro-batch, as stored, to within 64 KiB a segment
    subscription                 name of a subscription that a stream moves with it, so that other tools see its lag,
                                 and brokers keep segments until the stream has read them
    operation_timeout_seconds    how long a broker may take to connect, to answer, or to send the next message [30]

An unknown option is an error that names it, because a misspelt one would otherwise be ignored silently. Spark passes
option names in lower case, and its own have no underscores (`failOnDataLoss`). So neither case nor underscores matter
here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Final, NamedTuple, Self

from tidewire.protocol.addresses import BrokerAddress, parse_addresses
from tidewire.protocol.errors import InvalidName
from tidewire.protocol.topic_names import PERSISTENT, SCALABLE
from tidewire.spark.errors import InvalidOption
from tidewire.spark.positions import EARLIEST_START, LATEST_START, OTHERS, Boundary, parse_boundary
from tidewire.spark.schema import SCHEMA

OPERATION_TIMEOUT_SECONDS_DEFAULT: Final = 30.0
SECONDS_MAX: Final = 3600.0
"""A higher value is most likely in the wrong unit."""
PARTITION_BYTES_DEFAULT: Final = 128 * 1024 * 1024
PARTITION_BYTES_MIN: Final = 64 * 1024
"""The broker measures sizes only to within this."""

ALL_COLUMNS: Final = frozenset(SCHEMA.fieldNames())

_BATCH_ONLY: Final = ("ending_position", "push_filters")
_STREAM_ONLY: Final = ("max_rows_per_trigger", "max_bytes_per_trigger", "subscription")
READ_NAMES: Final = (
    *("service_url", "topic", "topic_pattern", "starting_position", "ending_position", "isolation", "schema"),
    *("columns", "fail_on_data_loss", "partition_bytes", "push_filters", *_STREAM_ONLY, "operation_timeout_seconds"),
)
WRITE_ONLY_NAMES: Final = (
    "txn_app_id",
    "txn_version",
    "also_commit",
    "trust_batch_numbers",
    "transaction_timeout_seconds",
)
_WRITTEN_FORMS: Final = ("json", "avro")

_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "service_url",
    "subscribe": "topic",
    "subscribepattern": "topic_pattern",
    "startingoffsets": "starting_position",
    "endingoffsets": "ending_position",
    "maxoffsetspertrigger": "max_rows_per_trigger",
}
"""What the options of Spark's Kafka connector are here."""

_ADDED_TO_TABLES: Final = "provider"
"""What `CREATE TABLE ... USING tidewire` adds to the options."""

TOPIC: Final = re.compile(r"(?:topic|persistent)://[^/,]+/[^/,]+/[^,]+")
_PATTERN: Final = re.compile(r"topic://([^/]+/[^/]+)/(.+)")


class Use(Enum):
    """What the options are for."""

    BATCH = "a batch"
    STREAM = "a stream"


class Pattern(NamedTuple):
    """The topics of a namespace whose names match."""

    namespace: str
    expression: str

    def matches(self, topic: str) -> bool:
        """Whether a topic, given by its full name, matches."""
        name = topic.removeprefix(f"{SCALABLE}{self.namespace}/")
        return name != topic and re.fullmatch(self.expression, name) is not None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options."""

    service: tuple[BrokerAddress, ...]
    """The brokers that the user named, tried in turn."""
    topics: tuple[str, ...] = ()
    """Full names; empty when there is a pattern."""
    pattern: Pattern | None = None
    operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS_DEFAULT
    starting: Boundary = EARLIEST_START
    ending: Boundary = LATEST_START
    uncommitted: bool = False
    decoded: bool = False
    columns: frozenset[str] = ALL_COLUMNS
    fail_on_data_loss: bool = True
    partition_bytes: int = PARTITION_BYTES_DEFAULT
    push_filters: bool = False
    rows_max: int | None = None
    bytes_max: int | None = None
    subscription: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use | None = None) -> Self:
        """Check what the user gave. Options for another use are refused once the `use` is known.

        Raises:
            InvalidOption: an option is unknown, missing or wrong; the error names it.
        """
        options = by_name(given, READ_NAMES, others=WRITE_ONLY_NAMES)
        for name in WRITE_ONLY_NAMES:
            if name in options:
                raise InvalidOption(f"option {name} is for writing; options for reading are {', '.join(READ_NAMES)}")
        for name in {Use.BATCH: _STREAM_ONLY, Use.STREAM: _BATCH_ONLY, None: ()}[use]:
            if name in options:
                raise InvalidOption(f"option {name} is not for {use.value if use else ''}")
        topics, pattern = _topics(options)
        starting = _boundary(options, "starting_position", LATEST_START if use is Use.STREAM else EARLIEST_START)
        if use is Use.BATCH and starting == LATEST_START:
            raise InvalidOption("option starting_position: a batch that starts at latest has nothing to read")
        if use is Use.STREAM and any(segment == OTHERS for _, segment, _ in starting.places):
            raise InvalidOption(f"option starting_position: {OTHERS} in place of a segment's name is for a batch")
        ending = _boundary(options, "ending_position", LATEST_START)
        if ending == EARLIEST_START:
            raise InvalidOption("option ending_position: there is nothing before earliest")
        return cls(
            service=service_of(options),
            topics=topics,
            pattern=pattern,
            operation_timeout_seconds=operation_timeout_of(options),
            starting=starting,
            ending=ending,
            uncommitted=choice_of(options, "isolation", "read_committed", "read_uncommitted"),
            decoded=_decoded(options),
            columns=_columns(options),
            fail_on_data_loss=choice_of(options, "fail_on_data_loss", "false", "true", default=True),
            partition_bytes=count_of(options, "partition_bytes", PARTITION_BYTES_MIN) or PARTITION_BYTES_DEFAULT,
            push_filters=choice_of(options, "push_filters", "false", "true"),
            rows_max=count_of(options, "max_rows_per_trigger", 1),
            bytes_max=count_of(options, "max_bytes_per_trigger", 1),
            subscription=options.get("subscription") or None,
        )


def by_name(given: Mapping[str, str], known: Sequence[str], others: Sequence[str] = ()) -> dict[str, str]:
    """The given options, with the spelling of the `known` names or of the `others`.

    Raises:
        InvalidOption: an option is neither.
    """
    by_bare_name = {_bare(name): name for name in (*known, *others)}
    if _ADDED_TO_TABLES in {name.lower() for name in given}:
        # Spark 4.0 to 4.3 keep a table's options, and pass them to no Python data source that reads or writes it.
        raise InvalidOption(
            "Spark does not pass a table's options to Python data sources; in place of CREATE TABLE, use "
            "CREATE TEMPORARY VIEW ... USING tidewire OPTIONS (...)"
        )
    for name in given:
        if name.lower() == "path":
            raise InvalidOption('a topic is not a path: leave it out of load and save, and give .option("topic", ...)')
        if _bare(name) not in by_bare_name:
            meant = _meant(_bare(name), known)
            begun = "format" if meant is None else f"did you mean {meant}? Format"
            raise InvalidOption(f"unknown option {name.lower()!r}; {begun} tidewire knows {', '.join(known)}")
    return {by_bare_name[_bare(name)]: value for name, value in given.items()}


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def _meant(bare_name: str, known: Sequence[str]) -> str | None:
    """The name that the user perhaps meant; None if none is similar."""
    by_bare_name = {_bare(name): name for name in known}
    by_bare_name |= {theirs: ours for theirs, ours in _OF_KAFKA.items() if ours in known}
    similar = get_close_matches(bare_name, by_bare_name, 1)
    return by_bare_name[similar[0]] if similar else None


def service_of(options: Mapping[str, str]) -> tuple[BrokerAddress, ...]:
    """The brokers that the user named.

    Raises:
        InvalidOption: the option is missing, or holds something else than addresses.
    """
    url = options.get("service_url")
    if not url:
        raise missing("service_url", "pulsar://127.0.0.1:6650")
    try:
        return parse_addresses(url)
    except InvalidName as error:
        raise InvalidOption(f"option service_url: {error}") from error


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], Pattern | None]:
    named, pattern = options.get("topic"), options.get("topic_pattern")
    if named and pattern:
        raise InvalidOption("options topic and topic_pattern: give one of them")
    if pattern:
        return (), _pattern(pattern)
    if not named:
        raise missing("topic", "topic://public/default/flights")
    topics = tuple(dict.fromkeys(name.strip() for name in named.split(",")))
    for topic in topics:
        if not TOPIC.fullmatch(topic):
            raise InvalidOption(
                f"option topic: {topic!r} is not the full name of a topic; "
                f"give it as {SCALABLE}TENANT/NAMESPACE/NAME or {PERSISTENT}TENANT/NAMESPACE/NAME"
            )
    return topics, None


def _pattern(text: str) -> Pattern:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise InvalidOption(
            f"option topic_pattern: {text!r} is not a pattern; give it as {SCALABLE}TENANT/NAMESPACE/REGEX"
        )
    try:
        re.compile(found[2])
    except re.error as error:
        raise InvalidOption(f"option topic_pattern: {found[2]!r} is not a regular expression: {error}") from error
    return Pattern(found[1], found[2])


def _boundary(options: Mapping[str, str], name: str, default: Boundary) -> Boundary:
    text = options.get(name)
    if text is None:
        return default
    try:
        return parse_boundary(text)
    except ValueError as error:
        raise InvalidOption(f"option {name}: {error}") from error


def _columns(options: Mapping[str, str]) -> frozenset[str]:
    text = options.get("columns")
    if text is None:
        return ALL_COLUMNS
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in ALL_COLUMNS:
            raise InvalidOption(f"option columns: {name!r} is none of {', '.join(SCHEMA.fieldNames())}")
    return frozenset(named)


def _decoded(options: Mapping[str, str]) -> bool:
    form = options.get("schema", "").lower()
    if form in _WRITTEN_FORMS:
        raise InvalidOption(f"option schema: {form!r} is for writing; auto reads values by the topic's own schema")
    return choice_of(options, "schema", "none", "auto")


def choice_of(options: Mapping[str, str], name: str, no: str, yes: str, *, default: bool = False) -> bool:
    """Whether the user chose `yes`.

    Raises:
        InvalidOption: the text is neither `no` nor `yes`.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in (no, yes):
        raise InvalidOption(f"option {name}: {text!r} is neither {no} nor {yes}")
    return text.lower() == yes


def count_of(options: Mapping[str, str], name: str, least: int) -> int | None:
    """An option's number; None when the option is missing.

    Raises:
        InvalidOption: it is not a number, or less than `least`.
    """
    text = options.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise InvalidOption(f"option {name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def seconds_of(options: Mapping[str, str], name: str, default: float) -> float:
    """An option's number of seconds.

    Raises:
        InvalidOption: it is not a number in the allowed range.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= SECONDS_MAX:
        raise InvalidOption(f"option {name}: {text!r} is not a number of seconds above 0 and up to {SECONDS_MAX:.0f}")
    return seconds


def operation_timeout_of(options: Mapping[str, str]) -> float:
    """The time limit for an operation.

    Raises:
        InvalidOption: it is not a number in the allowed range.
    """
    return seconds_of(options, "operation_timeout_seconds", OPERATION_TIMEOUT_SECONDS_DEFAULT)


def missing(name: str, example: str) -> InvalidOption:
    """The error for a missing required option."""
    return InvalidOption(f'option {name} is missing; give it as .option("{name}", "{example}")')

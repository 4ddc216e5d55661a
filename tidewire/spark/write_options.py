"""The options of format "tidewire" for writing, and what they may say.

    service_url                  pulsar://HOST:PORT of any broker; required
    topic                        topic://TENANT/NAMESPACE/NAME; without it, a column `topic` says it row by row
    schema                       what `value` is: none, it is bytes or text; auto, what the column's type says
                                 (primitives, text, and structs as JSON); json or avro, a struct. Other than none, the
                                 schema is registered with the topic, which refuses one that its others do not go
                                 with [none]
    txn_app_id                   a name under which batches are counted: each is written once, however often it is
                                 tried. Of a stream it takes the place of the query's id; another query may not
                                 go back behind what one has written [stream: the query's id]
    txn_version                  with txn_app_id, the number of this batch: nothing is written, which the log says, if
                                 one of this number was that had the same rows. A stream counts by itself
    also_commit                  with txn_version, transactions of the same batch, MOST:LEAST with commas in between,
                                 that its commit commits, too
    trust_batch_numbers          true: a batch whose number was written, or a higher one, counts as written, whatever
                                 rows it has; for one that cannot compute its rows twice alike [false]
    transaction_timeout_seconds  how long a task may take from its first row to the commit of the batch; after that
                                 its rows are given up [600]
    operation_timeout_seconds    how long a broker may take to connect or to answer [30]

A batch has at most 10,000 tasks that have rows, since one decision names all of their transactions. While a transaction
is open, what others write behind its first row waits to be read, so a time-out of hours is no remedy for slow tasks.

Batches are appended (`mode("append")`), and so are streams: Spark lets no sink in Python update or complete. What an
aggregation changes can be written in foreachBatch, as a batch with the micro-batch's number as txn_version, and is then
written once, too.

As for reading, an option that is not listed is refused by name, and neither case nor underscores count in names
(options.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.topic_names import SCALABLE
from tidewire.spark.errors import InvalidOption
from tidewire.spark.options import (
    OPERATION_TIMEOUT_SECONDS_DEFAULT,
    READ_NAMES,
    TOPIC,
    WRITE_ONLY_NAMES,
    Use,
    by_name,
    choice_of,
    count_of,
    missing,
    operation_timeout_of,
    seconds_of,
    service_of,
)

TRANSACTION_TIMEOUT_SECONDS_DEFAULT: Final = 600.0

WRITE_NAMES: Final = ("service_url", "topic", "schema", *WRITE_ONLY_NAMES, "operation_timeout_seconds")
_SPARKS_OWN: Final = ("checkpoint_location", "query_name")
"""Spark hands these over with ours."""
_READ_ONLY: Final = tuple(name for name in READ_NAMES if name not in WRITE_NAMES)


class Form(Enum):
    """How values are written."""

    NONE = "none"
    AUTO = "auto"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options that were checked."""

    service: BrokerAddress
    topic: str | None = None
    """In full; None when a column says it."""
    form: Form = Form.NONE
    txn_app_id: str | None = None
    txn_version: int | None = None
    transaction_timeout_seconds: float = TRANSACTION_TIMEOUT_SECONDS_DEFAULT
    operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS_DEFAULT
    also_commit: tuple[tuple[int, int], ...] = ()
    """Ids of transactions that others have opened in the batch's group."""
    trust_batch_numbers: bool = False
    checkpoint: str | None = None
    """The folder of a stream's checkpoint, where its option names it."""

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use) -> Self:
        """Check what the user gave.

        Raises:
            InvalidOption: an option is unknown, missing, wrong, or for something else; its text names it.
        """
        options = by_name(given, WRITE_NAMES, others=(*_READ_ONLY, *_SPARKS_OWN))
        for name in _READ_ONLY:
            if name in options:
                raise InvalidOption(f"option {name} is for reading; options for writing are {', '.join(WRITE_NAMES)}")
        application, version = options.get("txn_app_id"), count_of(options, "txn_version", 0)
        if use is Use.STREAM and version is not None:
            raise InvalidOption("option txn_version is not for a stream, which counts its batches by itself")
        if use is Use.BATCH and (application is None) != (version is None):
            given_one, other = ("txn_version", "txn_app_id") if application is None else ("txn_app_id", "txn_version")
            raise InvalidOption(f"option {given_one}: give {other} too; only both together name the batch")
        if "also_commit" in options and version is None:
            raise InvalidOption("option also_commit: give txn_app_id and txn_version too; they name the batch")
        if application == "":
            raise InvalidOption("option txn_app_id is empty")
        return cls(
            service=service_of(options),
            topic=_topic(options),
            form=_form(options),
            txn_app_id=application,
            txn_version=version,
            also_commit=_transactions(options.get("also_commit", "")),
            transaction_timeout_seconds=seconds_of(
                options, "transaction_timeout_seconds", TRANSACTION_TIMEOUT_SECONDS_DEFAULT
            ),
            operation_timeout_seconds=operation_timeout_of(options),
            trust_batch_numbers=choice_of(options, "trust_batch_numbers", "false", "true"),
            checkpoint=options.get("checkpoint_location"),
        )


def check_topic(topic: str) -> str | None:
    """What is wrong with a topic to write to, as the end of a sentence; None if nothing is."""
    if not TOPIC.fullmatch(topic):
        return f"{topic!r} is not the full name of a topic; give it as {SCALABLE}TENANT/NAMESPACE/NAME"
    if not topic.startswith(SCALABLE):
        return f"{topic} takes no transactions, by which Spark's rows are written; write to a {SCALABLE} topic"
    return None


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic is None:
        return None
    if not topic:
        raise missing("topic", "topic://public/default/flights")
    wrong = check_topic(topic)
    if wrong is not None:
        raise InvalidOption(f"option topic: {wrong}")
    return topic


def _form(options: Mapping[str, str]) -> Form:
    text = options.get("schema", Form.NONE.value).lower()
    try:
        return Form(text)
    except ValueError:
        names = ", ".join(form.value for form in Form)
        raise InvalidOption(f"option schema: {text!r} is none of {names}") from None


def _transactions(text: str) -> tuple[tuple[int, int], ...]:
    found = [re.fullmatch(r"(\d{1,19}):(\d{1,19})", one.strip()) for one in text.split(",") if one.strip()]
    if None in found:
        raise InvalidOption(
            f"option also_commit: {text!r} is not a list of transactions; give it as MOST:LEAST,MOST:LEAST"
        )
    return tuple((int(one[1]), int(one[2])) for one in found if one is not None)

"""The options of format "tidewire" for writing, and their values.

    service_url                  pulsar://HOST:PORT[,HOST:PORT] of some brokers, tried in turn; required
    topic                        topic://TENANT/NAMESPACE/NAME; without it, a column `topic` gives each row's topic
    schema                       the form of `value`: none: bytes or text; auto: by the column's type (primitives, text,
                                 and structs as JSON); json or avro: a struct. Except with none, the schema is
                                 registered with the topic, which refuses one that is incompatible with its others
                                 [none]
    txn_app_id                   a name under which batches are numbered: each is written once, however often it is
                                 tried. For a stream it replaces the query's id; a new query must not reuse numbers that
                                 another one has written [stream: the query's id]
    txn_version                  with txn_app_id, the number of this batch: if a batch of this number with the same rows
                                 was written, nothing is written again, and the log says so. A stream numbers its
                                 batches itself
    also_commit                  with txn_version, transactions of the same batch, MOST:LEAST separated by commas, which
                                 its commit commits, too
    trust_batch_numbers          true: a batch whose number, or a higher one, was written counts as written, whatever
                                 its rows; for a query that cannot compute the same rows twice [false]
    transaction_timeout_seconds  how long a task may take from its first row to the commit of the batch; after that
                                 the broker aborts its transaction [600]
    operation_timeout_seconds    how long a broker may take to connect or to answer [30]

A batch has at most 10,000 tasks with rows, because one decision names all of their transactions. An open transaction
holds back readers behind its first row, so do not set a timeout of hours to help slow tasks.

Batches are appended (`mode("append")`), and so are streams: Spark has no update mode for Python sinks, and a topic
cannot be overwritten as in complete mode. To write an aggregation's changes, write each micro-batch in foreachBatch,
with its number as txn_version. Each is then written once, too.

As for reading, an unknown option is an error that names it, and neither case nor underscores matter in names
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
"""Spark passes these together with the user's options."""
_READ_ONLY: Final = tuple(name for name in READ_NAMES if name not in WRITE_NAMES)


class Form(Enum):
    """The form in which values are written."""

    NONE = "none"
    AUTO = "auto"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options."""

    service: tuple[BrokerAddress, ...]
    """The brokers that the user named, tried in turn."""
    topic: str | None = None
    """The full name; None when a column gives it."""
    form: Form = Form.NONE
    txn_app_id: str | None = None
    txn_version: int | None = None
    transaction_timeout_seconds: float = TRANSACTION_TIMEOUT_SECONDS_DEFAULT
    operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS_DEFAULT
    also_commit: tuple[tuple[int, int], ...] = ()
    """Ids of transactions that others opened in the batch's group."""
    trust_batch_numbers: bool = False
    checkpoint: str | None = None
    """The folder of a stream's checkpoint, if the option names it."""

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use) -> Self:
        """Check what the user gave.

        Raises:
            InvalidOption: an option is unknown, missing, wrong, or for another use; the error names it.
        """
        options = by_name(given, WRITE_NAMES, others=(*_READ_ONLY, *_SPARKS_OWN))
        for name in _READ_ONLY:
            if name in options:
                raise InvalidOption(f"option {name} is for reading; options for writing are {', '.join(WRITE_NAMES)}")
        application, version = options.get("txn_app_id"), count_of(options, "txn_version", 0)
        if use is Use.STREAM and version is not None:
            raise InvalidOption("option txn_version is not for a stream, which numbers its batches itself")
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
    """What is wrong with a topic to write to, as the end of a sentence; None if nothing is wrong."""
    if not TOPIC.fullmatch(topic):
        return f"{topic!r} is not the full name of a topic; give it as {SCALABLE}TENANT/NAMESPACE/NAME"
    if not topic.startswith(SCALABLE):
        return f"{topic} takes no transactions, which the sink needs; write to a {SCALABLE} topic"
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

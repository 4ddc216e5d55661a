"""kcat, as people type it. `scripts/need.py debian:kcat` installs it."""

import json
import os
import subprocess
from collections.abc import Callable
from typing import Final, TypeAlias, get_args

import pytest

from scripts.need import place
from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Codec, Place, ProducerOptions
from tests.support.kafka_clients.every import CONFLUENT
from tests.support.kafka_clients.reading import read_all

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("client", [CONFLUENT], indirect=True)]

RUN_SECONDS_MAX: Final = 180.0

Kcat: TypeAlias = Callable[..., str]


@pytest.fixture
def kcat(address: str) -> Kcat:
    """Return a function that runs kcat at the shared broker, and returns what it prints."""
    place("debian:kcat")

    def run(*arguments: str, stdin: str = "") -> str:
        ended = subprocess.run(
            ["kcat", "-b", address, *arguments],
            input=stdin,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            encoding="utf-8",
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.parametrize("codec", get_args(Codec))
def test_lines_become_records_and_come_back(kcat: Kcat, station: Station, topic: str, codec: Codec) -> None:
    """K42: with keys, in each codec. Other clients read them, too."""
    lines = "".join(f"till-{n}:order {n}\n" for n in range(50))
    kcat("-P", "-t", topic, "-K:", "-z", codec, stdin=lines)
    assert kcat("-C", "-t", topic, "-e", "-q", "-K:") == lines
    got = read_all(station.consumer(), Place(topic))
    assert [(one.key, one.value) for one in got] == [(b"till-%d" % n, b"order %d" % n) for n in range(50)]


def test_headers_and_null_values_come_back(kcat: Kcat, station: Station, topic: str) -> None:
    """K42: `-Z` writes an empty value as null."""
    kcat("-P", "-t", topic, "-K:", "-Z", "-H", "trace=first", "-H", "trace=second", stdin="deleted:\nkept:here\n")
    printed = kcat("-C", "-t", topic, "-e", "-q", "-f", r"%o %k %S %h\n")
    assert printed == "0 deleted -1 trace=first,trace=second\n1 kept 4 trace=first,trace=second\n"
    (deleted, kept) = read_all(station.consumer(), Place(topic))
    assert (deleted.value, kept.value) == (None, b"here")
    assert deleted.headers == kept.headers == (("trace", b"first"), ("trace", b"second"))


def test_topics_and_brokers_are_listed(kcat: Kcat, station: Station, name: str, address: str) -> None:
    """K43: with their partitions and leaders."""
    station.admin().create(name, 3)
    listed = json.loads(kcat("-L", "-J", "-t", name))
    (broker,) = listed["brokers"]
    assert broker["name"] == address
    (topic,) = listed["topics"]
    assert topic["topic"] == name
    assert [(one["partition"], one["leader"]) for one in topic["partitions"]] == [(n, broker["id"]) for n in range(3)]
    assert f'topic "{name}" with 3 partitions' in kcat("-L")


def test_reading_begins_where_it_is_told(kcat: Kcat, station: Station, topic: str) -> None:
    """K39: at an offset, so many from the end, or at a time."""
    producer = station.producer()
    for n in range(10):
        producer.send(topic, b"%d" % n, timestamp_ms=1_000 * (n + 1))
    producer.flush()
    read = ("-C", "-t", topic, "-e", "-q", "-f", "%s ")
    assert kcat(*read, "-o", "7") == "7 8 9 "
    assert kcat(*read, "-o", "-2") == "8 9 "
    assert kcat(*read, "-o", "s@5500") == "5 6 7 8 9 "
    assert kcat(*read, "-o", "beginning", "-c", "3") == "0 1 2 "
    assert kcat("-Q", "-t", f"{topic}:0:4000") == f"{topic} [0] offset 3\n"
    assert kcat("-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset 10\n"


def test_a_group_reads_each_record_once(kcat: Kcat, station: Station, name: str) -> None:
    """K36: kcat commits when it leaves, and goes on from there."""
    station.admin().create(name, 2)
    kcat("-P", "-t", name, "-p", "0", stdin="a\nb\n")
    kcat("-P", "-t", name, "-p", "1", stdin="c\n")
    read = ("-G", name, "-e", "-q", "-X", "auto.offset.reset=earliest", "-f", r"%p %o %s\n", name)
    assert sorted(kcat(*read).splitlines()) == ["0 0 a", "0 1 b", "1 0 c"]
    kcat("-P", "-t", name, "-p", "1", stdin="d\n")
    assert kcat(*read) == "1 1 d\n"
    assert {place.partition: one.offset for place, one in station.admin().committed(name).items()} == {0: 2, 1: 2}


def test_only_committed_records_are_read(kcat: Kcat, station: Station, topic: str) -> None:
    """K3, K13, K21: kcat reads committed records unless it is told otherwise, and finds the end behind an abort."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit), (b"dropped", producer.abort)):
        producer.begin()
        producer.send(topic, value)
        producer.flush()
        end()
    read = ("-C", "-t", topic, "-e", "-q")
    assert kcat(*read) == "kept\n"
    assert kcat(*read, "-X", "isolation.level=read_uncommitted") == "kept\ndropped\n"

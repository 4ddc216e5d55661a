"""How busy a broker is: averages of a minute, and what is worth a report."""

import pytest

from broker.cluster.broker_load import IDLE, SAMPLES_KEPT, BrokerLoad, LoadWindow

BUSY = BrokerLoad(0.5, 1_000_000, 2_000_000, 100)


@pytest.mark.parametrize(
    ("reported", "now", "is_due"),
    [
        (IDLE, IDLE, False),
        (IDLE, BrokerLoad(0.04, 40_000, 40_000, 9), False),
        (IDLE, BrokerLoad(0.06, 0, 0, 0), True),
        (IDLE, BrokerLoad(0, 60_000, 0, 0), True),
        (IDLE, BrokerLoad(0, 0, 60_000, 0), True),
        (IDLE, BrokerLoad(0, 0, 0, 10), False),
        (IDLE, BrokerLoad(0, 0, 0, 11), True),
        (BUSY, BUSY, False),
        (BUSY, BUSY._replace(busy=0.6, topics=120), False),
        (BUSY, BUSY._replace(busy=0.63), True),
        (BUSY, BUSY._replace(bytes_in=1_300_000), True),
        (BUSY, BUSY._replace(bytes_out=1_400_000), True),
        (BUSY, BUSY._replace(topics=126), True),
        (BUSY, IDLE, True),
    ],
)
def test_only_what_has_changed_by_a_quarter_is_reported(reported: BrokerLoad, now: BrokerLoad, is_due: bool) -> None:
    assert now.differs(reported) is is_due


def test_a_load_is_the_average_of_the_last_minute() -> None:
    """A burst counts for as long as the samples are kept, and not for more than its part of them."""
    window = LoadWindow(10)
    window.begin(5, 1_000, 0)
    seen = [window.take(5 + 6, 1_000 + 600_000, 60, 3) for _ in range(SAMPLES_KEPT + 1)]
    assert seen[:SAMPLES_KEPT] == [BrokerLoad(0.1, 10_000, 1, 3)] * SAMPLES_KEPT
    assert seen[SAMPLES_KEPT] == BrokerLoad(0, 0, 0, 3)
    window.begin(1_000, 10**9, 10**9)
    assert window.take(1_000, 10**9, 10**9, 0) == IDLE


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"busy": "much", "bytesIn": 1, "bytesOut": 1, "topics": 1}'])
def test_a_damaged_report_is_none(value: bytes) -> None:
    assert BrokerLoad.decode(value) is None


def test_a_report_comes_back_and_may_have_more() -> None:
    """C22: a later release may add fields."""
    assert BrokerLoad.decode(BUSY.encode()) == BUSY
    assert BrokerLoad.decode(BUSY.encode()[:-1] + b',"disk":1}') == BUSY

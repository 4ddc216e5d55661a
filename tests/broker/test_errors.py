"""Errors as users read them."""

import pytest

from broker.errors import BrokerError, sentences


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("the disk is full", "The disk is full."),
        ("the disk is full. Free space.", "The disk is full. Free space."),
        ("Batch 7 is written. Continue with batch 8", "Batch 7 is written. Continue with batch 8."),
        # A name stays as it is.
        ("topic://public/default/x is closed", "topic://public/default/x is closed."),
        ("'x' is not a valid name: it is too long", "'x' is not a valid name: it is too long."),
        ("5:3 was not sent yet", "5:3 was not sent yet."),
    ],
)
def test_an_error_is_shown_as_whole_sentences(message: str, shown: str) -> None:
    assert sentences(BrokerError(message)) == shown

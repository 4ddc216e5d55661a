"""What a client of another protocol is told."""

import pytest

from broker.ports import NO_PORTS, Ports


@pytest.mark.parametrize("spoken", ["Pulsar", "Kafka", "HTTP"])
def test_a_protocol_that_is_not_served_is_said_to_be_so(spoken: str) -> None:
    """E12: an address is given only if there is one."""
    assert NO_PORTS.refusal(spoken, "TLS").endswith(f" This broker has no port for {spoken}.")
    served = Ports(pulsar="Pulsar's", http="HTTP's", kafka="Kafka's")
    assert served.refusal(spoken, "TLS").endswith(f" Give it the address for {spoken}: {spoken}'s.")

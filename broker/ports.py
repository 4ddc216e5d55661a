"""What the broker says to a client that came to the port of another protocol. Pure."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ports:
    """Where clients reach this broker, by protocol; None if the broker does not serve it."""

    pulsar: str | None = None
    http: str | None = None
    kafka: str | None = None

    def refusal(self, spoken: str, here: str) -> str:
        """Say that a client speaks one protocol at the port of another, and what to do. See `SpokenProtocol`."""
        wrong = f"The client speaks {spoken} at the port for {here}."
        if spoken == "TLS":
            return f"{wrong} The broker serves no TLS. Turn TLS off in the client, or end it in a proxy."
        address = {"Pulsar": self.pulsar, "HTTP": self.http, "Kafka": self.kafka}[spoken]
        if address is None:
            return f"{wrong} This broker has no port for {spoken}."
        return f"{wrong} Give it the address for {spoken}: {address}."


NO_PORTS: Final = Ports()
"""Of sessions whose broker listens nowhere."""

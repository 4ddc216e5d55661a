"""One thing that is wrong with a cluster, and what rules need to say it. Pure."""

from collections.abc import Collection
from typing import Final, NamedTuple

from broker.doctor.facts import Facts, RecordFacts

NAMED_MAX: Final = 3
"""How many names a finding gives as examples."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    kind: str
    """For programs: the name of the rule's finding, such as `ledger-without-file`."""
    about: str
    """The broker, topic, ledger or key that it is about."""
    what: str
    """What is wrong, in sentences."""
    advice: str
    """What to do, in sentences."""
    state: str = ""
    """Two findings with another state are about two states of a thing that goes on."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What stays the same if the next look finds the same."""
        return self.kind, self.about, self.state


def records_of(facts: Facts) -> RecordFacts:
    """Return what the metadata store says; nothing, if it could not be read."""
    return RecordFacts() if facts.records is None else facts.records


def counted(names: Collection[str], what: str) -> str:
    """Return the number of names, and some of them."""
    some = ", ".join(sorted(names)[:NAMED_MAX])
    more = ", ..." if len(names) > NAMED_MAX else ""
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({some}{more})"

"""A member of a group of ordered consumers that takes no notice of anything. Tests override what they look at."""

from broker.layouts.layout import Layout


class QuietMember:
    """Implements `Member`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        """Do nothing."""

    def sent_away(self) -> None:
        """Do nothing."""

    def taken_up(self, segment_id: int, session: str) -> None:
        """Do nothing."""

    def closed(self, segment_id: int, session: str) -> None:
        """Do nothing."""

"""Why an entry cannot be converted."""


class Unconvertible(ValueError):
    """The entry has no form in the other protocol. The message says why, for the log. It harms no other entry."""

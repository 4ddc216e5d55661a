"""Where the admin HTTP API has a topic. Scalable and regular topics have different paths."""

from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus

from tidewire.cli.endings import UsageError

_PARTS: Final = len(("tenant", "namespace", "name"))
_ROOTS: Final = {"topic": "/admin/v2/scalable", "persistent": "/admin/v2/persistent"}


class TopicPath(NamedTuple):
    """A topic, and the path of its resource."""

    topic: str
    """The full name."""
    is_scalable: bool
    """Whether it is `topic://`; otherwise it is `persistent://`."""
    name: str
    """TENANT/NAMESPACE/NAME, percent-encoded."""

    @property
    def root(self) -> str:
        """The topic's resource."""
        return f"{_ROOTS['topic' if self.is_scalable else 'persistent']}/{self.name}"

    @property
    def migration(self) -> str:
        """What migrates the regular topic of this name."""
        return f"{_ROOTS['topic']}/{self.name}/migrate"

    @property
    def schemas(self) -> str:
        """The resource of the topic's schemas. Both kinds have them in one place."""
        return f"/admin/v2/schemas/{self.name}"

    def subscription(self, name: str) -> str:
        """The resource of a subscription. On regular topics, its name is encoded as Pulsar's tools do it: twice."""
        if self.is_scalable:
            return f"{self.root}/subscriptions/{quote(name, safe='')}"
        return f"{self.root}/subscription/{quote(quote_plus(name), safe='')}"


def topic_path(topic: str) -> TopicPath:
    """Return where a topic is. Both kinds are known by the scheme.

    Raises:
        UsageError: `topic` is not the full name of a topic.
    """
    scheme, separator, rest = topic.partition("://")
    parts = rest.split("/")
    if scheme not in _ROOTS or not separator or len(parts) != _PARTS or not all(parts):
        raise UsageError(
            f"{topic!r} is not the name of a topic. Give it as topic://TENANT/NAMESPACE/NAME or "
            "persistent://TENANT/NAMESPACE/NAME."
        )
    return TopicPath(topic, scheme == "topic", "/".join(quote(part, safe="") for part in parts))


def scalable_path(topic: str, why: str) -> TopicPath:
    """Return where a scalable topic is.

    Raises:
        UsageError: `topic` is not the full name of one. The message adds `why` to a regular topic's name.
    """
    found = topic_path(topic)
    if not found.is_scalable:
        raise UsageError(f"{topic} is a regular topic. {why}")
    return found

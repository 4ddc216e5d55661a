"""Names of topics, partitions and segments: which are legal, and how they are parsed and printed.

    persistent://tenant/namespace/local                a topic, or the whole of a partitioned one
    persistent://tenant/namespace/local-partition-3    one partition of it
    topic://tenant/namespace/local                     a scalable topic
    segment://tenant/namespace/local/8000-ffff-1       its segment 1, which holds the hashes 8000 to ffff (inclusive)

A name has exactly one spelling: `TopicName.parse(str(name)) == name`, and different names are different topics. So this
module is stricter than Pulsar. It refuses empty parts instead of dropping them (`/x/`, `t//n/x`). Hexadecimal digits
are lower case, and numbers have no leading zeros. Short names are the one exception, because clients rely on them: `x`
means `persistent://public/default/x` and `t/n/x` means `persistent://t/n/x`.

Tenants and namespaces consist of ASCII letters, digits and `_ - = : .`, as in Pulsar. A local name may contain any text
except `/`, control characters, line separators and lone surrogates. Nothing is decoded: `a%2Fb` is a local name of five
characters, on the wire and in HTTP paths. (An HTTP path carries it encoded once more.) The names `.` and `..` are
refused, because HTTP clients remove them from paths.

Pulsar's older four-part names (`persistent://tenant/cluster/namespace/local`) and `non-persistent://` are refused with
their own reasons. A name that only looks like a partition (`x-partition-03`, `x-partition-`) is a plain topic.
"""

import re
import unicodedata
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from storage.errors import ExpectedError

NAME_BYTES_MAX: Final = 1024
"""The longest name, in bytes of UTF-8. Names become keys of metadata records, percent-encoded."""

HASH_MAX: Final = 0xFFFF
"""The highest key hash. A scalable topic's segments divide the range 0..HASH_MAX."""

SEGMENT_ID_MAX: Final = 2**63 - 1
"""On the wire, segment ids are signed 64-bit numbers."""

PARTITION_INDEX_MAX: Final = 2**31 - 1
"""On the wire, partition indexes are signed 32-bit numbers."""

DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

_UNPRINTABLE = "a name must not contain control characters, line separators or lone surrogates"
_TOO_LONG = f"a name must be at most {NAME_BYTES_MAX} bytes long"
_PARTITION = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]*)", re.DOTALL)
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_DESCRIPTOR = re.compile(r"(?P<start>[0-9a-f]{4})-(?P<end>[0-9a-f]{4})-(?P<id>0|[1-9][0-9]*)", re.ASCII)
# Control characters, surrogates, line and paragraph separators: they cannot be printed or encoded, or they break lines.
_CATEGORIES_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})


class InvalidTopicName(ExpectedError, ValueError):
    """The text is not a legal name. The client is at fault, and a retry does not help."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        shown = name if len(name) <= 200 else name[:200] + "…"
        super().__init__(f"{shown!r} is not a valid name: {reason}.")


class NonPersistentTopic(InvalidTopicName):
    """The name is legal in Pulsar, but this broker stores every topic."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "non-persistent topics are not supported. Use persistent://")


class Domain(StrEnum):
    """The kind of topic: the part of its name before `://`."""

    PERSISTENT = "persistent"
    TOPIC = "topic"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True, order=True)
class SegmentDescriptor:
    """A segment's hash range and id within its scalable topic, such as `8000-ffff-1`.

    Raises:
        InvalidTopicName: the range is backwards, or a number is out of range.
    """

    hash_start: int
    """The lowest key hash it holds."""
    hash_end: int
    """The highest key hash it holds, inclusive."""
    segment_id: int
    """Unique within its topic, never reused."""

    def __post_init__(self) -> None:
        if not 0 <= self.hash_start <= self.hash_end <= HASH_MAX:
            raise InvalidTopicName(str(self), "a segment's hash range must run upwards within 0000-ffff")
        if not 0 <= self.segment_id <= SEGMENT_ID_MAX:
            raise InvalidTopicName(str(self), f"a segment's id must be from 0 to {SEGMENT_ID_MAX}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `<start>-<end>-<id>`: twice four lower-case hexadecimal digits, then a decimal number.

        Raises:
            InvalidTopicName: the text has another form, the range is backwards, or the id is out of range.
        """
        match = _DESCRIPTOR.fullmatch(text)
        if match is None:
            raise InvalidTopicName(
                text, "a segment must be written like 8000-ffff-1: start and end in lower-case hex, decimal id"
            )
        return cls(int(match["start"], 16), int(match["end"], 16), _number(match["id"]))

    def __str__(self) -> str:
        return f"{self.hash_start:04x}-{self.hash_end:04x}-{self.segment_id}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """One legal name. The constructor checks it, so an object of this class needs no further validation.

    Raises:
        InvalidTopicName: a part is illegal, or the domain and the presence of a segment do not match.
    """

    domain: Domain
    tenant: str
    namespace: str
    """The namespace's own name, without the tenant."""
    local: str
    segment: SegmentDescriptor | None = None
    """Set exactly for `segment://` names."""

    def __post_init__(self) -> None:
        name = str(self)
        problem = _entity_problem("tenant", self.tenant)
        problem = problem or _entity_problem("namespace", self.namespace)
        problem = problem or _local_problem(self.local)
        if problem is not None:
            raise InvalidTopicName(name, problem)
        if (self.domain is Domain.SEGMENT) != (self.segment is not None):
            raise InvalidTopicName(name, "segment:// names, and no others, end in a segment such as 8000-ffff-1")
        # This check is last: after the others, every character can be encoded.
        if len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidTopicName(name, _TOO_LONG)

    @classmethod
    def parse(cls, text: str, *, short_domain: Domain = Domain.PERSISTENT) -> Self:
        """Parse a full name, or a short one (`x`, `t/n/x`), which gets `short_domain`.

        Raises:
            InvalidTopicName: the name is illegal; the message says why.
        """
        # A client chooses the length, so a name that is too long is refused before any work.
        if len(text) > NAME_BYTES_MAX:
            raise InvalidTopicName(text, _TOO_LONG)
        scheme, separator, rest = text.partition("://")
        domain = _domain(scheme, text) if separator else short_domain
        parts = (rest if separator else text).split("/")
        if not separator and len(parts) == 1:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if domain is Domain.SEGMENT and len(parts) != 4:
            raise InvalidTopicName(text, "a segment's name must be segment://tenant/namespace/topic/8000-ffff-1")
        if domain is not Domain.SEGMENT and len(parts) == 4:
            raise InvalidTopicName(text, "names with a cluster (tenant/cluster/namespace/topic) are not supported")
        try:
            descriptor = SegmentDescriptor.parse(parts.pop()) if domain is Domain.SEGMENT else None
            if len(parts) != 3:
                raise InvalidTopicName(
                    text, "it must be <domain>://tenant/namespace/topic, tenant/namespace/topic or topic"
                )
            tenant, namespace, local = parts
            return cls(domain, tenant, namespace, local, descriptor)
        except InvalidTopicName as error:
            # The client knows the name that it sent, not the expanded one.
            raise InvalidTopicName(text, error.reason) from None

    def __str__(self) -> str:
        plain = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"
        return plain if self.segment is None else f"{plain}/{self.segment}"

    @property
    def tenant_namespace(self) -> str:
        """The namespace in Pulsar's usual form, `tenant/namespace`."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def partition_index(self) -> int | None:
        """The 3 of `x-partition-3` on `persistent://`; None for any other name."""
        match = self._partition_match()
        return None if match is None else int(match["index"])

    @property
    def partitioned_topic(self) -> Self:
        """The topic that this name is a partition of; the name itself if it is not a partition."""
        match = self._partition_match()
        return self if match is None else replace(self, local=match["base"])

    def partition(self, index: int) -> Self:
        """Return the name of partition `index` of this topic.

        Raises:
            InvalidTopicName: this is not a `persistent://` topic, it is a partition, or the index is out of range.
        """
        if self.domain is not Domain.PERSISTENT or self.partition_index is not None:
            raise InvalidTopicName(
                str(self), "only a persistent:// topic that is not itself a partition has partitions"
            )
        if not 0 <= index <= PARTITION_INDEX_MAX:
            raise InvalidTopicName(str(self), f"partition {index} is not within 0..{PARTITION_INDEX_MAX}")
        return replace(self, local=f"{self.local}-partition-{index}")

    @property
    def scalable_topic(self) -> Self:
        """The scalable topic of a segment; for a `topic://` name, the name itself.

        Raises:
            InvalidTopicName: it is a `persistent://` name, which belongs to no scalable topic.
        """
        if self.domain is Domain.PERSISTENT:
            raise InvalidTopicName(str(self), "a persistent:// topic is not part of a scalable topic")
        return replace(self, domain=Domain.TOPIC, segment=None)

    @property
    def as_scalable(self) -> Self:
        """The `topic://` name with the same tenant, namespace and local name. A migrated topic has this name."""
        return replace(self, domain=Domain.TOPIC, segment=None)

    @property
    def as_regular(self) -> Self:
        """The `persistent://` name with the same tenant, namespace and local name."""
        return replace(self, domain=Domain.PERSISTENT, segment=None)

    def segment_name(self, descriptor: SegmentDescriptor) -> Self:
        """Return the `segment://` name of one of this scalable topic's segments.

        Raises:
            InvalidTopicName: this is not a `topic://` name, or the descriptor is illegal.
        """
        if self.domain is not Domain.TOPIC:
            raise InvalidTopicName(str(self), "only a topic:// name has segments")
        return replace(self, domain=Domain.SEGMENT, segment=descriptor)

    def _partition_match(self) -> re.Match[str] | None:
        if self.domain is not Domain.PERSISTENT:
            return None
        match = _PARTITION.fullmatch(self.local)
        if match is None or _number(match["index"]) > PARTITION_INDEX_MAX:
            return None
        if _local_problem(match["base"]) is not None:
            return None  # The name before -partition- would be empty or illegal.
        return match


def subscription_problem(text: str) -> str | None:
    """Return why `text` is not a legal subscription name for administrators; None if it is legal.

    The rules are those of a topic's local name, except that a slash is allowed: in paths it is percent-encoded.
    """
    if len(text) > NAME_BYTES_MAX or len(text.encode(errors="replace")) > NAME_BYTES_MAX:
        return _TOO_LONG
    problem = _local_problem(text.replace("/", "-"))
    return None if problem is None else problem.replace("topic's own name", "subscription's name")


def text_problem(text: str) -> str | None:
    """Return why `text` cannot be a name of anything; None if it can. Logs and terminals print names unchanged."""
    if text.isascii() and text.isprintable():
        return None  # Most names. It takes one look in place of one for each character.
    if any(unicodedata.category(character) in _CATEGORIES_REFUSED for character in text):
        return _UNPRINTABLE
    return None


def _domain(scheme: str, name: str) -> Domain:
    if scheme == "non-persistent":
        raise NonPersistentTopic(name)
    try:
        return Domain(scheme)
    except ValueError:
        raise InvalidTopicName(name, "a name must begin with persistent://, topic:// or segment://") from None


def _entity_problem(what: str, text: str) -> str | None:
    if not text:
        return f"the {what} is empty"
    if not _ENTITY.fullmatch(text):
        return f"a {what} may contain only letters, digits and _ - = : ."
    if text in {".", ".."}:
        return f"a {what} must not be . or .."
    return None


def _local_problem(text: str) -> str | None:
    if not text or text.isspace():
        return "the topic's own name is empty"
    if text in {".", ".."}:
        return "a topic's own name must not be . or .."
    if "/" in text:
        return "a topic's own name must not contain /"
    return text_problem(text)


def _number(digits: str) -> int:
    # Python refuses to convert thousands of digits. A number that long is out of range in any case.
    return int(digits) if len(digits) <= len(str(SEGMENT_ID_MAX)) else SEGMENT_ID_MAX + 1

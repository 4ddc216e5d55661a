"""Names of topics, partitions and segments: what is legal, and how a name parses and prints.

    persistent://tenant/namespace/local                a topic, or the whole of a partitioned one
    persistent://tenant/namespace/local-partition-3    one partition of it
    topic://tenant/namespace/local                     a scalable topic
    segment://tenant/namespace/local/8000-ffff-1       its segment 1, which holds the hashes 8000 to ffff (inclusive)

A name has exactly one spelling: `TopicName.parse(str(name)) == name`, and two names that differ are two topics. That is
why this module is stricter than Pulsar where Pulsar is lenient: empty parts are refused instead of dropped
(`/x/`, `t//n/x`), hexadecimal digits are lower case, numbers carry no leading zeros. Short names are the one exception,
as clients rely on them: `x` means `persistent://public/default/x` and `t/n/x` means `persistent://t/n/x`.

Tenants and namespaces are made of ASCII letters, digits and `_ - = : .`, as in Pulsar. A local name may hold any text
but `/`, control characters, line separators and lone surrogates. Nothing is decoded: `a%2Fb` is a local name of five
characters, on the wire and in HTTP paths alike (where the path segment carries it encoded once more). The words `.`
and `..` are refused, since HTTP clients remove them from paths.

Pulsar's older four-part names (`persistent://tenant/cluster/namespace/local`) and `non-persistent://` are refused with
a reason of their own. A name that merely looks like a partition (`x-partition-03`, `x-partition-`) is a plain topic.
"""

import re
import unicodedata
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

NAME_BYTES_MAX: Final = 1024
"""A whole name's length as UTF-8; names become keys of metadata records, percent-encoded."""

HASH_MAX: Final = 0xFFFF
"""The highest key hash; a scalable topic's segments divide 0..HASH_MAX among them."""

SEGMENT_ID_MAX: Final = 2**63 - 1
"""Segment ids travel as signed 64-bit numbers."""

PARTITION_INDEX_MAX: Final = 2**31 - 1
"""Partition indexes travel as signed 32-bit numbers."""

DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

_UNPRINTABLE = "a name holds no control characters, line separators or lone surrogates"
_TOO_LONG = f"a name is at most {NAME_BYTES_MAX} bytes long"
_PARTITION = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]*)", re.DOTALL)
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_DESCRIPTOR = re.compile(r"(?P<start>[0-9a-f]{4})-(?P<end>[0-9a-f]{4})-(?P<id>0|[1-9][0-9]*)", re.ASCII)
# Control characters, surrogates, line and paragraph separators: unprintable, unencodable, or breaking lines of text.
_CATEGORIES_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})


class InvalidTopicName(ValueError):
    """The text is no legal name; the client that sent it is at fault, and asking again does not help."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        shown = name if len(name) <= 200 else name[:200] + "…"
        super().__init__(f"invalid topic name {shown!r}: {reason}")


class Domain(StrEnum):
    """What stands before `://`."""

    PERSISTENT = "persistent"
    TOPIC = "topic"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True, order=True)
class SegmentDescriptor:
    """Which part of a scalable topic a segment is: `8000-ffff-1`.

    Raises:
        InvalidTopicName: the range is backwards, or a number does not fit.
    """

    hash_start: int
    """The lowest key hash it holds."""
    hash_end: int
    """The highest key hash it holds, inclusive."""
    segment_id: int
    """Unique within its topic, never reused."""

    def __post_init__(self) -> None:
        if not 0 <= self.hash_start <= self.hash_end <= HASH_MAX:
            raise InvalidTopicName(str(self), "a segment's hash range runs upwards within 0000-ffff")
        if not 0 <= self.segment_id <= SEGMENT_ID_MAX:
            raise InvalidTopicName(str(self), f"a segment's id is at least 0 and at most {SEGMENT_ID_MAX}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `<start>-<end>-<id>`: four lower-case hexadecimal digits twice, then a decimal number.

        Raises:
            InvalidTopicName: it is written otherwise, the range is backwards, or the id does not fit.
        """
        match = _DESCRIPTOR.fullmatch(text)
        if match is None:
            raise InvalidTopicName(text, "a segment is written as 8000-ffff-1: lower-case hex, hex, decimal id")
        return cls(int(match["start"], 16), int(match["end"], 16), _number(match["id"]))

    def __str__(self) -> str:
        return f"{self.hash_start:04x}-{self.hash_end:04x}-{self.segment_id}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """One legal name. Construction checks it, so an object of this class needs no further validation.

    Raises:
        InvalidTopicName: a part is illegal, or a segment descriptor stands where none belongs or lacks where one does.
    """

    domain: Domain
    tenant: str
    namespace: str
    """The namespace within the tenant, without it."""
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
            raise InvalidTopicName(name, "segment:// names, and only they, end in a segment such as 8000-ffff-1")
        # Last, because by now every character can be encoded.
        if len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidTopicName(name, _TOO_LONG)

    @classmethod
    def parse(cls, text: str, *, short_domain: Domain = Domain.PERSISTENT) -> Self:
        """Read a full name, or a short one (`x`, `t/n/x`), which stands for one of `short_domain`.

        Raises:
            InvalidTopicName: with the reason.
        """
        # A client chooses the length, so a longer one is refused before any work on it.
        if len(text) > NAME_BYTES_MAX:
            raise InvalidTopicName(text, _TOO_LONG)
        scheme, separator, rest = text.partition("://")
        domain = _domain(scheme, text) if separator else short_domain
        parts = (rest if separator else text).split("/")
        if not separator and len(parts) == 1:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if domain is Domain.SEGMENT and len(parts) != 4:
            raise InvalidTopicName(text, "a segment is segment://tenant/namespace/topic/8000-ffff-1")
        if domain is not Domain.SEGMENT and len(parts) == 4:
            raise InvalidTopicName(text, "names with a cluster (tenant/cluster/namespace/topic) are not supported")
        try:
            descriptor = SegmentDescriptor.parse(parts.pop()) if domain is Domain.SEGMENT else None
            if len(parts) != 3:
                raise InvalidTopicName(
                    text, "expected <domain>://tenant/namespace/topic, tenant/namespace/topic or topic"
                )
            tenant, namespace, local = parts
            return cls(domain, tenant, namespace, local, descriptor)
        except InvalidTopicName as error:
            # What the client wrote explains more than what it was expanded to.
            raise InvalidTopicName(text, error.reason) from None

    def __str__(self) -> str:
        plain = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"
        return plain if self.segment is None else f"{plain}/{self.segment}"

    @property
    def tenant_namespace(self) -> str:
        """`tenant/namespace`, as Pulsar's administrators write a namespace."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def partition_index(self) -> int | None:
        """The 3 of `x-partition-3` on `persistent://`; None for any other name."""
        match = self._partition_match()
        return None if match is None else int(match["index"])

    @property
    def partitioned_topic(self) -> Self:
        """The topic that this is a partition of; the name itself when it is no partition."""
        match = self._partition_match()
        return self if match is None else replace(self, local=match["base"])

    def partition(self, index: int) -> Self:
        """Partition `index` of this topic.

        Raises:
            InvalidTopicName: this is not a `persistent://` topic, is a partition already, or the index does not fit.
        """
        if self.domain is not Domain.PERSISTENT or self.partition_index is not None:
            raise InvalidTopicName(str(self), "only a persistent:// topic that is no partition has partitions")
        if not 0 <= index <= PARTITION_INDEX_MAX:
            raise InvalidTopicName(str(self), f"partition {index} is not within 0..{PARTITION_INDEX_MAX}")
        return replace(self, local=f"{self.local}-partition-{index}")

    @property
    def scalable_topic(self) -> Self:
        """The `topic://` name that a segment belongs to; a `topic://` name is its own.

        Raises:
            InvalidTopicName: a `persistent://` name, which belongs to no scalable topic.
        """
        if self.domain is Domain.PERSISTENT:
            raise InvalidTopicName(str(self), "a persistent:// topic is not part of a scalable topic")
        return replace(self, domain=Domain.TOPIC, segment=None)

    @property
    def as_scalable(self) -> Self:
        """The `topic://` name of the same tenant, namespace and local name: what this topic is after its migration."""
        return replace(self, domain=Domain.TOPIC, segment=None)

    @property
    def as_regular(self) -> Self:
        """The `persistent://` name of the same tenant, namespace and local name."""
        return replace(self, domain=Domain.PERSISTENT, segment=None)

    def segment_name(self, descriptor: SegmentDescriptor) -> Self:
        """The `segment://` name of one of this scalable topic's segments.

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
            return None  # There is no topic that this could be a partition of.
        return match


def subscription_problem(text: str) -> str | None:
    """Why administrators cannot name a subscription so; None when they can.

    The rules of a topic's own name, but for a slash, which stands percent-encoded in paths.
    """
    if len(text) > NAME_BYTES_MAX or len(text.encode(errors="replace")) > NAME_BYTES_MAX:
        return _TOO_LONG
    problem = _local_problem(text.replace("/", "-"))
    return None if problem is None else problem.replace("topic's own name", "subscription's name")


def text_problem(text: str) -> str | None:
    """Why nobody may be named so, whatever it is; None when it can be. Logs and terminals show names as they are."""
    if any(unicodedata.category(character) in _CATEGORIES_REFUSED for character in text):
        return _UNPRINTABLE
    return None


def _domain(scheme: str, name: str) -> Domain:
    if scheme == "non-persistent":
        raise InvalidTopicName(name, "non-persistent topics are not supported")
    try:
        return Domain(scheme)
    except ValueError:
        raise InvalidTopicName(name, "a name begins with persistent://, topic:// or segment://") from None


def _entity_problem(what: str, text: str) -> str | None:
    if not text:
        return f"the {what} is empty"
    if not _ENTITY.fullmatch(text):
        return f"a {what} is made of letters, digits and _ - = : ."
    if text in {".", ".."}:
        return f"a {what} is neither . nor .."
    return None


def _local_problem(text: str) -> str | None:
    if not text or text.isspace():
        return "the topic's own name is empty"
    if text in {".", ".."}:
        return "a topic's own name is neither . nor .."
    if "/" in text:
        return "a topic's own name holds no /"
    return text_problem(text)


def _number(digits: str) -> int:
    # Python refuses to convert thousands of digits; nothing that long is in range, whatever its value.
    return int(digits) if len(digits) <= len(str(SEGMENT_ID_MAX)) else SEGMENT_ID_MAX + 1

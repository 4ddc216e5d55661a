"""The entries of one ledger that no consumer gets: control entries, and entries of aborted transactions.

A backlog is what is unread less what is hidden. So the owner of a log keeps the numbers of hidden entries, each with
its messages, and counts those in a range without reading the log. They take 12 bytes an entry in memory.

Once a ledger is closed and everything in it is decided, they never change again. They are then written beside the
ledger, even if there are none. The head of the file has their sums, for those who count whole ledgers. Everything in
the file can be found out again by reading the ledger. So a missing or damaged file is made again, and never stands for
"nothing is hidden" (K35).

    file = head [entry u64]*entries [messages u32]*entries
    head = [magic u32][crc32c of the head u32][ledger i64][entries u64][messages u64][crc32c of the rest u32]

The last digit of the magic is the format's version.

Pure.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Final, NamedTuple

import google_crc32c

_MAGIC: Final = 0x54574831  # "TWH1"
_HEAD: Final = struct.Struct(">IIqQQI")
HEAD_SIZE: Final = _HEAD.size
_ROW_SIZE: Final = 12

PAGE_ENTRIES_MAX: Final = 1024
"""Entries in a page. An entry of an aborted transaction stands before later ones, and moves only those of its page."""


class Hidden(NamedTuple):
    """How much is hidden in a range."""

    entries: int = 0
    messages: int = 0
    """A marker takes one index, as a message does. A snapshot of producers takes none."""

    def plus(self, other: "Hidden") -> "Hidden":
        """Both together."""
        return Hidden(self.entries + other.entries, self.messages + other.messages)

    def less(self, other: "Hidden") -> "Hidden":
        """This without the other, which is part of it."""
        return Hidden(self.entries - other.entries, self.messages - other.messages)


NOTHING_HIDDEN: Final = Hidden()


class DamagedHidden(ValueError):
    """The bytes are no list of this ledger's hidden entries. The message says why."""


class _Page(NamedTuple):
    entries: "array[int]"
    messages: "array[int]"


class HiddenEntries:
    """See the module's docstring."""

    __slots__ = ("_before", "_firsts", "_pages", "_sums", "_total")

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._firsts: list[int] = []
        """The first entry of each page."""
        self._sums: list[int] = []
        """The messages of each page."""
        self._before: list[Hidden] | None = []
        """What is hidden before each page; None if it must be summed again."""
        self._total = NOTHING_HIDDEN

    @property
    def total(self) -> Hidden:
        """All that is hidden in the ledger, as far as it was added."""
        return self._total

    def add(self, entry: int, messages: int) -> None:
        """Note that this entry is hidden. Adding it again changes nothing."""
        if not self._pages:
            self._pages.append(_Page(array("Q"), array("I")))
            self._firsts.append(entry)
            self._sums.append(0)
        number = max(0, bisect_right(self._firsts, entry) - 1)
        page = self._pages[number]
        at = bisect_left(page.entries, entry)
        if at < len(page.entries) and page.entries[at] == entry:
            return
        page.entries.insert(at, entry)
        page.messages.insert(at, messages)
        self._firsts[number] = page.entries[0]
        self._sums[number] += messages
        self._total = self._total.plus(Hidden(1, messages))
        self._before = None
        if len(page.entries) > PAGE_ENTRIES_MAX:
            self._divide(number)

    def upto(self, entry: int) -> Hidden:
        """How much is hidden at or below this entry."""
        if self._before is None:
            sums = accumulate(
                (Hidden(len(page.entries), messages) for page, messages in zip(self._pages, self._sums, strict=True)),
                Hidden.plus,
                initial=NOTHING_HIDDEN,
            )
            self._before = list(sums)
        number = bisect_right(self._firsts, entry) - 1
        if number < 0:
            return NOTHING_HIDDEN
        page = self._pages[number]
        within = bisect_right(page.entries, entry)
        return self._before[number].plus(Hidden(within, sum(page.messages[:within])))

    def _divide(self, number: int) -> None:
        """Halve a page. One that grows at its end stays nearly full."""
        page = self._pages[number]
        is_last = number + 1 == len(self._pages)
        half = PAGE_ENTRIES_MAX if is_last else PAGE_ENTRIES_MAX // 2
        self._pages[number : number + 1] = [
            _Page(page.entries[:half], page.messages[:half]),
            _Page(page.entries[half:], page.messages[half:]),
        ]
        self._firsts.insert(number + 1, page.entries[half])
        self._sums[number : number + 1] = [sum(page.messages[:half]), sum(page.messages[half:])]

    def encode(self, ledger: int) -> bytes:
        """The file's content."""
        entries, messages = array("Q"), array("I")
        for page in self._pages:
            entries += page.entries
            messages += page.messages
        rest = _big_endian(entries) + _big_endian(messages)
        fields = (ledger, *self._total, google_crc32c.value(rest))
        return _HEAD.pack(_MAGIC, google_crc32c.value(_HEAD.pack(_MAGIC, 0, *fields)), *fields) + rest

    @classmethod
    def decode(cls, ledger: int, data: bytes) -> "HiddenEntries":
        """What `encode` wrote for this ledger.

        Raises:
            DamagedHidden: the bytes are damaged, of another ledger or of another version.
        """
        total, crc = _checked_head(ledger, data)
        count, rest = total.entries, data[HEAD_SIZE:]
        if len(rest) != count * _ROW_SIZE or google_crc32c.value(rest) != crc:
            raise DamagedHidden("another length or checksum")
        entries, messages = array("Q", rest[: count * 8]), array("I", rest[count * 8 :])
        if sys.byteorder == "little":
            entries.byteswap()
            messages.byteswap()
        made = cls()
        made._pages = [
            _Page(entries[at : at + PAGE_ENTRIES_MAX], messages[at : at + PAGE_ENTRIES_MAX])
            for at in range(0, count, PAGE_ENTRIES_MAX)
        ]
        made._firsts = [page.entries[0] for page in made._pages]
        made._sums = [sum(page.messages) for page in made._pages]
        made._before = None
        made._total = total
        return made


def total_in(ledger: int, head: bytes) -> Hidden:
    """The sums in the head of the file that `HiddenEntries.encode` wrote for this ledger. Raises as `decode` does."""
    total, _crc = _checked_head(ledger, head)
    return total


def _checked_head(ledger: int, data: bytes) -> tuple[Hidden, int]:
    if len(data) < HEAD_SIZE:
        raise DamagedHidden(f"{len(data)} bytes are too few for a list of hidden entries")
    magic, crc, owner, entries, messages, rest_crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or owner != ledger:
        raise DamagedHidden("another format or ledger")
    if google_crc32c.value(_HEAD.pack(magic, 0, owner, entries, messages, rest_crc)) != crc:
        raise DamagedHidden("the checksum differs")
    return Hidden(entries, messages), rest_crc


def _big_endian(numbers: "array[int]") -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()

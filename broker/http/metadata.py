"""The metadata store over HTTP, for `tidewire metadata` and other tools: /admin/v2/metadata.

Refusals carry a reason (see `refusals`): 404 no such record, 412 a bad parameter, 501 the store keeps no snapshots, 503
the store cannot answer or there are too many watches. If an answer fails after it has begun, its last line is
`{"failed": REASON}`.

Lists are read page by page. So a list of any length needs bounded memory, and does not delay the broker's other work.
Each page is from one moment, but the whole list is not. A watch begins with all records from one moment, so it is
refused if there are too many. Changes are pushed, not polled. A slow reader is allowed: the store bounds what it has
not read, by folding it into one difference (M17). A reader that reads nothing for SEND_SECONDS_MAX is disconnected. A
watch ends when its reader leaves.

There are no changes here except snapshots, because a change would bypass the rules of the records' owners.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol
from urllib.parse import parse_qsl

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.errors import NotSupported
from broker.http.lines import Lines, NextLines, PushedLines
from broker.http.refusals import json_response, refusal
from broker.http.resources import LINES, Call, Parameter
from storage.metadata.readable import change_lines, failure_line, hit_line, listing_lines, record_line
from storage.metadata.store import MetadataStore, StoreUnavailable, TakesSnapshots, starting_with

PREFIX: Final = "/admin/v2/metadata"
WATCHES_MAX: Final = 64
"""Most watches at a time; further ones are refused. So watches leave connections for other clients."""
WATCH_RECORDS_MAX: Final = 20_000
"""Most records that a watch may begin with. Listing them is one step of the store and takes a tenth of a second."""
PAGE_RECORDS: Final = 256
"""How many records are read from the store at a time."""

_LIMIT_DIGITS_MAX: Final = 18
_END: Final = starting_with("")[1]


def calls(store: MetadataStore) -> list[Call]:
    """The calls, answered from `store`."""
    metadata = _MetadataCalls(store)
    prefix = Parameter("prefix", "Only records whose keys begin with this.")
    limit = Parameter("limit", "At most so many.", "integer")
    return [
        Call(
            *("GET", PREFIX + "/record", metadata.record),
            "Show one record of the metadata store.",
            "The record.",
            (Parameter("key", "Its key.", is_required=True),),
            errors=(404,),
        ),
        Call(
            *("GET", PREFIX + "/records", metadata.records),
            "List records in key order.",
            "A record on each line.",
            (prefix, limit),
            media_type=LINES,
        ),
        Call(
            *("GET", PREFIX + "/index", metadata.index),
            "List the entries of an index with keys in [from, to).",
            "An entry on each line.",
            (
                Parameter("name", "The name of the index.", is_required=True),
                Parameter("from", "The first key."),
                Parameter("to", "The key behind the last one."),
                limit,
            ),
            media_type=LINES,
        ),
        Call(
            *("GET", PREFIX + "/watch", metadata.watch),
            "Show the records, then every change as it happens.",
            "A record or change on each line.",
            (prefix,),
            media_type=LINES,
        ),
        Call(
            *("POST", PREFIX + "/snapshot", metadata.snapshot),
            "Write a snapshot now.",
            "What the snapshot covers. It is durable.",
            errors=(501,),
        ),
    ]


class _MetadataCalls:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._watching = trio.CapacityLimiter(WATCHES_MAX)

    async def record(self, request: Request) -> Response:
        key = _required(_parameters(request, "key"), "key")
        record = await self._store.get(key)
        if record is None:
            return refusal(404, f"There is no record {key!r}.")
        return Response(record_line(record), media_type="application/json")

    async def records(self, request: Request) -> Response:
        given = _parameters(request, "prefix", "limit")
        pages = _RecordPages(self._store, given.get("prefix", ""), _limit(given))
        return _LongAnswer(await pages.next(), pages)

    async def index(self, request: Request) -> Response:
        given = _parameters(request, "name", "from", "to", "limit")
        bounds = given.get("from", ""), given.get("to", _END)
        pages = _HitPages(self._store, _required(given, "name"), *bounds, _limit(given))
        return _LongAnswer(await pages.next(), pages)

    async def watch(self, request: Request) -> Response:
        prefix = _parameters(request, "prefix").get("prefix", "")
        if request.method == "HEAD":
            return Lines()
        if not self._watching.available_tokens:
            return refusal(
                503, f"{WATCHES_MAX} programs already watch this broker's metadata. Try again when one has ended."
            )
        if await self._more_than(WATCH_RECORDS_MAX, *starting_with(prefix)):
            reason = (
                f"More than {WATCH_RECORDS_MAX:,} records have keys that begin with {prefix!r}. Watch a longer prefix."
            )
            return refusal(412, reason)
        return PushedLines(_watching(self._store, prefix), self._watching)

    async def _more_than(self, count: int, start: str, end: str) -> bool:
        """Return whether there are more than `count` records. The check takes short steps."""
        while records := await self._store.scan(start, end, limit=PAGE_RECORDS):
            count -= len(records)
            if count < 0:
                return True
            start = records[-1].key + "\0"
        return False

    async def snapshot(self, request: Request) -> Response:
        _parameters(request)
        if not isinstance(self._store, TakesSnapshots):
            raise NotSupported("This broker's metadata store takes no snapshots. Back up etcd with its own tools.")
        taken = await self._store.take_snapshot()
        return json_response({"sequence": taken.sequence, "revision": taken.revision, "size_bytes": taken.size_bytes})


class _Pages(Protocol):
    """A list that is read in pieces."""

    async def next(self) -> Sequence[bytes]:
        """Return the next page's lines; empty at the end of the list."""


class _RecordPages:
    def __init__(self, store: MetadataStore, prefix: str, limit: int | None) -> None:
        self._store = store
        self._start, self._end = starting_with(prefix)
        self._left = limit

    async def next(self) -> Sequence[bytes]:
        size = PAGE_RECORDS if self._left is None else min(PAGE_RECORDS, self._left)
        if not size:
            return ()
        records = await self._store.scan(self._start, self._end, limit=size)
        if records:
            self._start = records[-1].key + "\0"
        if self._left is not None:
            self._left -= len(records)
        return [record_line(record) for record in records]


class _HitPages:
    """A list of index entries, in pages."""

    def __init__(self, store: MetadataStore, index: str, start: str, end: str, limit: int | None) -> None:
        self._store = store
        self._index = index
        self._start = start
        self._end = end
        self._left = limit
        self._after = ""

    async def next(self) -> Sequence[bytes]:
        size = PAGE_RECORDS if self._left is None else min(PAGE_RECORDS, self._left)
        hits = await self._store.query(self._index, self._start, self._end, limit=size, after=self._after)
        if hits:
            self._start, self._after = hits[-1].index_key, hits[-1].record.key
        if self._left is not None:
            self._left -= len(hits)
        return [hit_line(hit) for hit in hits]


class _LongAnswer(Lines):
    """A list of pages. The first page is given, so its errors are refused as elsewhere."""

    def __init__(self, page: Sequence[bytes], following: _Pages) -> None:
        super().__init__()
        self._page = page
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = self._page
        await self.begin(send)
        while page:
            await self.add(send, page)
            try:
                page = await self._following.next()
            except StoreUnavailable as failure:
                page = ()
                await self.add(send, [failure_line(str(failure))])
        await self.end(send)


@asynccontextmanager
async def _watching(store: MetadataStore, prefix: str) -> AsyncIterator[NextLines]:
    """Watch the records below a prefix, for `PushedLines`."""
    async with store.watch_range(*starting_with(prefix)) as watch:
        is_first = True

        async def next_lines() -> Iterable[bytes]:
            nonlocal is_first
            change = await watch.next()
            lines = listing_lines(change) if is_first else change_lines(change)
            is_first = False
            return lines

        yield next_lines


def _parameters(request: Request, *known: str) -> Mapping[str, str]:
    """Parse the request's parameters strictly: a damaged key must not read another record."""
    text = request.scope["query_string"].decode("ascii")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=10)
    except UnicodeDecodeError:
        raise HTTPException(412, "A parameter is not UTF-8. Encode all parameters as UTF-8.") from None
    except ValueError:
        allowed = ", ".join(known) or "none"
        raise HTTPException(412, f"The request has too many parameters. Known parameters: {allowed}.") from None
    given = dict(pairs)
    for name in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise HTTPException(412, f"There is no parameter {name[:50]!r}. Known parameters: {allowed}.")
    if len(given) < len(pairs):
        raise HTTPException(412, "A parameter is given twice. Give it once.")
    return given


def _required(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise HTTPException(412, f"The parameter {name} is missing or empty. Give a value.")
    return given[name]


def _limit(given: Mapping[str, str]) -> int | None:
    text = given.get("limit")
    if text is None:
        return None
    # The length is bounded, because Python refuses to convert thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= _LIMIT_DIGITS_MAX):
        raise HTTPException(412, f"The parameter limit must be a whole number, not {text[:50]!r}.")
    return int(text)

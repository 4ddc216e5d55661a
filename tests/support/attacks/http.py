"""Attacks over HTTP. Meanwhile a well-behaved client asks for the broker's health, and must get an answer."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

import h11
import trio

from broker.addresses import Address
from tests.support.attacks.attacker import LOST, Attacker
from tests.support.attacks.siege import Attack
from tests.support.attacks.witness import within
from tests.support.http import HEALTH, request

DRIBBLING: Final = 600
HEALTH_SECONDS: Final = 0.2
BODY_BYTES: Final = 2 * 1024 * 1024
METHODS: Final = ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW")
NAMES: Final = (
    *("a", "attacked", "..", ".", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "%00", "%0d%0aX:%20y", "%ff%fe", "a%2fb", "*"),
    *("a" * 1024, "a" * 1025, "%F0%9F%A6%80" * 100, "x-partition-0", "__change_events", "'", '"', "<b>", "%7f", " "),
)
PATHS: Final = (
    *("/admin/v2/brokers/health", "/metrics", "/", "//", "/admin", "/admin/v2/scalable/{}"),
    *("/admin/v2/scalable/{}/{}",),
    *("/admin/v2/scalable/public/default/{}", "/admin/v2/scalable/public/default/{}/stats"),
    *("/admin/v2/scalable/public/default/{}/split/{}", "/admin/v2/scalable/public/default/{}/merge/{}/{}"),
    *("/admin/v2/scalable/public/default/{}/migrate", "/admin/v2/scalable/public/default/{}/subscriptions/{}"),
    *("/admin/v2/scalable/public/default/{}/subscriptions/{}/seek", "/admin/v2/scalable/public/default/{}/{}/{}"),
    *("/admin/v2/scalable/public/default/{}/subscriptions/{}/skip-all",),
    *("/admin/v2/scalable/public/default/{}/autoScalePolicy", "/admin/v2/segments/public/default/{}/0000-ffff-0"),
    *("/admin/v2/segments/public/default/{}/{}/subscription/{}/backlog",),
    *("/admin/v2/segments/public/default/{}/0000-ffff-0/subscription/{}/seek",),
    *("/admin/v2/segments/public/default/{}/0000-ffff-0/messages", "/admin/v2/persistent/public/default/{}/messages"),
    *("/admin/v2/persistent/public/default/{}/examinemessage", "/admin/v2/persistent/public/default/{}/messageid/{}"),
    *("/admin/v2/persistent/public/default/{}/ledger/{}/entry/{}",),
    *("/admin/v2/persistent/public/default/{}/getMessageIdByIndex",),
    *("/admin/v2/persistent/public/default/{}/subscription/{}/position/{}",),
    *("/admin/v2/metadata/record", "/admin/v2/metadata/records", "/admin/v2/metadata/index"),
    *("/admin/v2/metadata/watch", "/admin/v2/metadata/snapshot", "/admin/v2/metadata/{}"),
)
"""Every route, with places for names. None of them is a witness's."""
PARAMETERS: Final = (
    *("numInitialSegments", "force", "type", "timestamp", "property", "prefix", "limit", "key", "name", "from", "to"),
    *("before", "count", "bytes", "initialPosition", "messagePosition", "index"),
)
VALUES: Final = (
    *("0", "1", "3", "-1", "1e9", "9" * 19, "9" * 5000, "true", "nan", "", "%00", "%ff", "QUEUE", "a=b", "=", "/txn"),
    *("earliest", "latest", "1:0", "1:0:5", "1:-1", f"{'9' * 18}:0", "9" * 16),
)
BODIES: Final = (
    b"",
    b"{}",
    b"[]",
    b'{"a":1}',
    b'{"enabled":"x"}',
    b"[" * 100_000,
    b"\xff" * 100,
    b'{"a":"' + b"x" * 9999,
)


async def malformed(attacker: Attacker) -> None:
    """Send malformed and ambiguous requests."""
    heads = (
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\nx",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100000000\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\nUpgrade: websocket\nConnection: upgrade\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    )

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.stream(attacker.http) as stream:
            sent = bytearray(chance.choice(heads))
            if chance.random() < 0.3:
                for _ in range(chance.randrange(1, 4)):
                    sent[chance.randrange(len(sent))] = chance.randrange(256)
            await stream.send_all(sent)
            await stream.send_eof()
            attacker.counts["requests"] += 1
            await attacker.ends(stream)

    await _beside_a_polite_client(attacker, 8, once)


async def junk(attacker: Attacker) -> None:
    """Send every method to every path with senseless names, parameters and bodies. None may be answered with 500."""

    async def once(attacker: Attacker, chance: Random) -> None:
        path = chance.choice(PATHS)
        path = path.format(*(chance.choice(NAMES).replace(" ", "%20") for _ in range(path.count("{}"))))
        if chance.random() < 0.7:
            given = (f"{chance.choice(PARAMETERS)}={chance.choice(VALUES)}" for _ in range(chance.randrange(1, 4)))
            path += "?" + "&".join(given)
        method, body = chance.choice(METHODS), chance.choice(BODIES)
        if "/watch" in path or method in {"HEAD", "CONNECT"}:
            body = b""
        async with attacker.stream(attacker.http) as stream:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            attacker.counts["requests"] += 1
            status = (await stream.receive_some(4096))[:13]
            if status.startswith(b"HTTP/1.1 500"):
                attacker.complaints.append(f"{method} {path} with {bytes(body[:50])!r} was answered {bytes(status)!r}")

    await _beside_a_polite_client(attacker, 8, once)


async def dribbling(attacker: Attacker) -> None:
    """Let hundreds of clients send a head or a body byte by byte."""

    async def once(attacker: Attacker, chance: Random) -> None:
        head = b"POST /admin/v2/scalable/public/default/a/autoScalePolicy HTTP/1.1\r\nHost: localhost\r\n"
        if chance.random() < 0.5:
            head += b"Content-Length: 1000000\r\n\r\n"
        async with attacker.stream(attacker.http) as stream:
            await stream.send_all(head)
            while True:
                await stream.send_all(b"x")
                await trio.sleep(chance.uniform(0.1, 1))

    await _beside_a_polite_client(attacker, DRIBBLING, once)


async def large_bodies(attacker: Attacker) -> None:
    """Send bodies that are larger than any path allows, with a length and in chunks."""

    async def once(attacker: Attacker, chance: Random) -> None:
        path = chance.choice(PATHS).replace("{}", "attacked")
        start = f"{chance.choice(('PUT', 'POST', 'GET', 'DELETE'))} {path} HTTP/1.1\r\nHost: localhost\r\n"
        async with attacker.stream(attacker.http) as stream, trio.open_nursery() as reading:
            reading.start_soon(_read, stream)
            if chance.random() < 0.5:
                await stream.send_all(start.encode() + f"Content-Length: {BODY_BYTES}\r\n\r\n".encode())
                await stream.send_all(b"{" * BODY_BYTES)
            else:
                await stream.send_all(start.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(BODY_BYTES // 65536):
                    await stream.send_all(b"10000\r\n" + b"[" * 65536 + b"\r\n")
            attacker.counts["bodies"] += 1
            reading.cancel_scope.cancel()

    await _beside_a_polite_client(attacker, 8, once)


async def pipelining(attacker: Attacker) -> None:
    """Send many requests at once on one connection, and read the answers late or never."""

    async def once(attacker: Attacker, chance: Random) -> None:
        path = chance.choice(
            ("/metrics", HEALTH, "/admin/v2/metadata/records?prefix=/", "/admin/v2/metadata/watch?prefix=/")
        )
        one = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        async with attacker.stream(attacker.http) as stream:
            for _ in range(20):
                await stream.send_all(one * 50)
                attacker.counts["requests"] += 50
            if chance.random() < 0.5:
                await trio.sleep_until(attacker.until)
            with trio.move_on_after(1):
                await _read(stream)

    await _beside_a_polite_client(attacker, 20, once)


async def _read(stream: trio.SocketStream) -> None:
    with suppress(*LOST):
        while await stream.receive_some(65536):
            pass


async def _beside_a_polite_client(
    attacker: Attacker, tasks: int, attack: Callable[[Attacker, Random], Awaitable[None]]
) -> None:
    """Attack in parallel until the time is over and the well-behaved client has got an answer.

    The broker may close a connection before it reads the request, in favour of a newer one. So the well-behaved client
    retries. But at least one of its requests must be answered.
    """
    told = trio.Event()

    async def ask() -> None:
        while True:
            try:
                answer = await request(Address(*attacker.http), "GET", HEALTH)
            except (AssertionError, h11.RemoteProtocolError, *LOST):
                attacker.counts["questions about health dropped"] += 1
            else:
                attacker.counts["answers about health"] += 1
                if answer.status != 200:
                    attacker.complaints.append(f"the broker's health was told as {answer.status} {answer.body!r}")
                told.set()
            await trio.sleep(HEALTH_SECONDS)

    async def attack_until_told() -> None:
        await attacker.in_parallel(tasks, attack)
        while not told.is_set():
            attacker.until = trio.current_time() + 1
            await attacker.in_parallel(tasks, attack)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await within(attack_until_told(), "the broker's health was not told")
        nursery.cancel_scope.cancel()


ATTACKS: Final = (
    Attack("http.malformed", malformed),
    Attack("http.junk", junk),
    Attack("http.dribbling", dribbling),
    Attack("http.large-bodies", large_bodies),
    Attack("http.pipelining", pipelining),
)

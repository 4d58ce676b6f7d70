"""How the libraries of app servers write a POST: names, case and order of headers, tokens, sizes.

The lines are those that each library sends over HTTP/1.1; `{…}` is filled in for each sender or
each request. A line with `{topic}` or `{urgency}` is left out where the sender sets none.
"""

import math
import random

import msgspec

BODY_BYTES_MIN, BODY_BYTES_MAX = 100, 3_900
_BODY_BYTES_MEDIAN = 420  # an encrypted JSON object with a title, a text and a link
_BODY_SPREAD = 0.9  # sigma of the logarithm


class Library(msgspec.Struct, frozen=True):
    name: str
    lines: tuple[str, ...]
    ttls_s: tuple[int, ...]  # the library's default, and what its users set
    legacy: bool = False  # aesgcm: salt and key are headers
    padded_bytes: int = 0  # every body has this size; 0: bodies are as long as their texts


LIBRARIES = (
    Library(
        "pywebpush",
        (
            "Host: {host}",
            "User-Agent: python-requests/2.{version}.0",
            "Accept-Encoding: gzip, deflate",
            "Accept: */*",
            "Connection: keep-alive",
            "content-encoding: aes128gcm",
            "ttl: {ttl_s}",
            "urgency: {urgency}",
            "topic: {topic}",
            "Authorization: vapid t={token},k={key}",
            "Content-Length: {length}",
        ),
        (0, 60, 43_200),
    ),
    Library(
        "web-push (Node)",
        (
            "TTL: {ttl_s}",
            "Content-Length: {length}",
            "Content-Type: application/octet-stream",
            "Content-Encoding: aes128gcm",
            "Authorization: vapid t={token}, k={key}",
            "Urgency: {urgency}",
            "Topic: {topic}",
            "Host: {host}",
            "Connection: {connection}",
        ),
        (2_419_200, 3600, 86_400),
    ),
    Library(
        "webpush-go",
        (
            "Host: {host}",
            "User-Agent: Go-http-client/1.1",
            "Content-Length: {length}",
            "Authorization: vapid t={token}, k={key}",
            "Content-Encoding: aes128gcm",
            "Content-Type: application/octet-stream",
            "Topic: {topic}",
            "Ttl: {ttl_s}",
            "Urgency: {urgency}",
            "Accept-Encoding: gzip",
        ),
        (30, 600, 86_400),
    ),
    Library(
        "minishlink/web-push (PHP)",
        (
            "Host: {host}",
            "User-Agent: GuzzleHttp/7",
            "Content-Type: application/octet-stream",
            "Content-Encoding: aes128gcm",
            "TTL: {ttl_s}",
            "Urgency: {urgency}",
            "Topic: {topic}",
            "Authorization: vapid t={token}, k={key}",
            "Content-Length: {length}",
        ),
        (2_419_200, 300),
        padded_bytes=3_155,
    ),
    Library(
        "webpush-java",
        (
            "TTL: {ttl_s}",
            "Content-Type: application/octet-stream",
            "Content-Encoding: aesgcm",
            "Encryption: salt={salt}",
            "Authorization: WebPush {token}",
            "Crypto-Key: dh={dh};p256ecdsa={key}",
            "Urgency: {urgency}",
            "Topic: {topic}",
            "Content-Length: {length}",
            "Host: {host}",
            "Connection: Keep-Alive",
            "User-Agent: Apache-HttpAsyncClient/4.1.{version} (Java/17.0.{version})",
        ),
        (2_419_200, 28_800),
        legacy=True,
    ),
    Library(
        "web-push (Rust)",
        (
            "host: {host}",
            "accept: */*",
            "accept-encoding: deflate, gzip",
            "user-agent: curl/8.{version}.0 isahc/1.7.2",
            "ttl: {ttl_s}",
            "urgency: {urgency}",
            "topic: {topic}",
            "content-encoding: aes128gcm",
            "content-type: application/octet-stream",
            "authorization: vapid t={token}, k={key}",
            "content-length: {length}",
        ),
        (2_419_200, 120),
    ),
    Library(
        "web-push (Ruby)",
        (
            "Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3",
            "Accept: */*",
            "User-Agent: Ruby",
            "Content-Type: application/octet-stream",
            "Ttl: {ttl_s}",
            "Urgency: {urgency}",
            "Content-Encoding: aes128gcm",
            "Authorization: vapid t={token},k={key}",
            "Connection: {connection}",
            "Host: {host}",
            "Content-Length: {length}",
        ),
        (2_419_200, 86_400),
    ),
    Library(
        "web-push-csharp",
        (
            "Host: {host}",
            "TTL: {ttl_s}",
            "Urgency: {urgency}",
            "Topic: {topic}",
            "Authorization: WebPush {token}",
            "Encryption: salt={salt}",
            "Crypto-Key: dh={dh};p256ecdsa={key}",
            "Content-Type: application/octet-stream",
            "Content-Length: {length}",
            "Content-Encoding: aesgcm",
        ),
        (2_419_200, 3600),
        legacy=True,
    ),
    Library(
        "a client of our own kind on httpx, behind a proxy",
        (
            "Host: {host}",
            "X-Forwarded-For: 203.0.113.{version}",
            "X-Forwarded-Proto: https",
            "X-Request-Id: {request_id}",
            "Accept: */*",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "User-Agent: python-httpx/0.{version}.2",
            "TTL: {ttl_s}",
            "Urgency: {urgency}",
            "Topic: {topic}",
            "Content-Encoding: aes128gcm",
            "Authorization: vapid t={token}, k={key}",
            "Content-Length: {length}",
        ),
        (60, 3600),
    ),
)


class Habits(msgspec.Struct, frozen=True):
    """What one sender does with its library. Every fourth sender uses its token again; every
    fourth, of both kinds, opens a connection for each POST."""

    library: Library
    ttl_s: int
    urgency: str  # empty: not said
    topics: bool
    version: int
    reuses_token: bool
    reuses_connection: bool

    def template(self, host: str, ttl_s_min: int) -> str:
        """All header lines; what differs from request to request is still `{…}`."""
        left_out = [
            *(["{topic}"] if not self.topics else []),
            *(["{urgency}"] if not self.urgency else []),
        ]
        lines = [line for line in self.library.lines if not any(one in line for one in left_out)]
        known = {
            "host": host,
            "ttl_s": max(self.ttl_s, ttl_s_min),
            "urgency": self.urgency,
            "version": self.version,
            "connection": "keep-alive" if self.reuses_connection else "close",
        }
        text = "\r\n".join(lines)
        for name, value in known.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def body_bytes(self, rng: random.Random) -> int:
        if self.library.padded_bytes:
            return self.library.padded_bytes
        size = round(rng.lognormvariate(math.log(_BODY_BYTES_MEDIAN), _BODY_SPREAD))
        return min(max(size, BODY_BYTES_MIN), BODY_BYTES_MAX)


def habits_of(number: int, rng: random.Random) -> Habits:
    library = LIBRARIES[rng.randrange(len(LIBRARIES))]
    return Habits(
        library=library,
        ttl_s=rng.choice(library.ttls_s),
        urgency=rng.choice(("", "", "normal", "high", "low")),
        topics=rng.random() < 0.3,
        version=rng.randrange(1, 40),
        reuses_token=number % 4 == 0,
        reuses_connection=number // 4 % 4 != 0,
    )

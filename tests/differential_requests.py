"""Random requests for `tests.differential`: valid, invalid and malformed ones, and the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from urllib.parse import urlencode

SECRET = "SECRETSECRET"
"""A placeholder in a target or body for the receipt or slot that a service returned itself."""
CHECK_TOKEN, ADMIN_TOKEN = "check-token-0123456789", "admin-token-0123456789"
HOST = "limen.test"
MAX_BODY, MAX_BATCH = 20_000, 50
Headers = tuple[tuple[str, str], ...]
_ID = re.compile(r"[!-~]{1,64}")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is sent to both services."""

    kind: str
    method: str = "POST"
    target: str = "/v1/check"
    headers: Headers = ()
    body: bytes | None = None
    version: str = "1.1"
    chunks: int = 0
    """In how many chunks the body is sent; 0 sends Content-Length."""
    secrets: tuple[str, str] = ("", "")
    """The replacements of `SECRET` for the old and the new service."""
    raw: bytes = b""
    """The whole request, if it is malformed; the other fields are ignored then."""

    def encoded(self, side: int) -> tuple[bytes, bytes]:
        """Return head and body for the old (0) or the new (1) service."""
        if self.raw:
            return self.raw, b""
        secret = self.secrets[side]
        target = self.target.replace(SECRET, secret)
        lines = [f"{self.method} {target} HTTP/{self.version}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = b""
        if self.body is not None:
            body = self.body.replace(SECRET.encode(), secret.encode())
            if self.chunks:
                lines.append("Transfer-Encoding: chunked")
                body = _chunked(body, self.chunks)
            else:
                lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1"), body

    @property
    def has_own_id(self) -> bool:
        """Whether the request has a valid X-Request-Id, which the response repeats."""
        values = [value for name, value in self.headers if name.lower() == "x-request-id"]
        return bool(values) and _ID.fullmatch(values[0]) is not None


def _chunked(body: bytes, chunks: int) -> bytes:
    size = max(1, -(-len(body) // chunks))
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"


def rules() -> dict[str, Any]:
    """Return rules of all kinds. Periods are long, so that time changes no decision."""

    def of_path(name: str, limits: Any, **more: Any) -> dict[str, Any]:
        return {"name": name, "match": {"path": f"/{name}"}, "key": "user", "limits": limits} | more

    return {
        "rules": [
            {"name": "search", "match": {"path": "/search/*", "method": ["GET", "POST"]},
             "key": ["user"], "limits": ["20/day", "200/week"]},
            {"name": "search-shadow", "match": {"path": "/search/*"}, "key": "user",
             "limits": "3/day", "mode": "shadow"},
            of_path("bucket", "10/day token_bucket burst 12"),
            of_path("leaky", "100/day leaky_bucket burst 3 max_delay 1 hour"),
            of_path("sliding", "10/day sliding_counter"),
            of_path("month", ["50/month", "7/week fixed_window"]),
            of_path("first", "6/day fixed_window from_first"),
            of_path("rolling", "8/day rolling_window count_denied"),
            of_path("interval", "50/day packed_window min_interval 1 hour"),
            of_path("rollout", "4/day", enforce_percent=50),
            of_path("variants", "9/day", variants=[
                {"name": "bucket", "percent": 30, "algorithm": "token_bucket"},
                {"name": "generous", "percent": 30, "limits": "25/day"}]),
            {"name": "api", "match": {"path": {"is": "/api/*", "not": "/api/free/*"}},
             "key": "user", "limits": "10/day", "tiers": {
                 "by": "plan", "default": "8/day", "limits": {
                     "free": "5/day", "pro": ["30/day", "60/week sliding_counter"],
                     "enterprise": "unlimited"}}},
            {"name": "login", "match": {"path": "/login"}, "key": ["ip", "account"],
             "missing": "deny", "limits": "5/day"},
            {"name": "org", "match": {"path": "/org/*"}, "key": ["org", "user"],
             "limits": "12/day", "overrides": [
                 {"key": {"org": "acme"}, "limits": "30/day"},
                 {"key": {"org": "acme", "user": "3"}, "limits": "2/day"},
                 {"key": {"org": "ours"}, "limits": "unlimited"}]},
            of_path("chat", "100/week token_bucket", cost="tokens"),
            of_path("upload", "90/week", cost="size", missing="deny"),
            of_path("heavy", "40/week", cost=3),
            of_path("everyone", "1000/week", key=[]),
            {"name": "per-address", "key": "ip", "limits": "400/week fixed_window"},
            {"name": "networks", "match": {"ip": ["203.0.113.0/24", "2001:db8:bad::/48"]},
             "mode": "block"},
            {"name": "closed", "match": {"path": "/closed/*"}, "mode": "block"},
            of_path("off", "1/week", mode="off"),
            {"name": "export", "match": {"path": "/export"}, "key": "user", "limits": "40/day",
             "concurrency": {"slots": 2, "lease": "1h"}},
            {"name": "import", "match": {"path": "/import"},
             "concurrency": {"slots": 3, "lease": "2h"}},
            {"name": "by-address", "match": {"domain": "shop", "descriptor": "remote_address"},
             "key": "remote_address", "limits": "9/day fixed_window"},
            {"name": "by-pair", "match": {"domain": "shop", "descriptor": "plan/user"},
             "key": ["plan", "user"], "limits": ["7/day", "70/week"]},
            {"name": "descriptor-block", "match": {"domain": "shop", "descriptor": "bad"},
             "mode": "block"},
        ],
        "exemptions": [
            {"name": "status-page", "match": {"path": ["/status", "/api/free/*"]}},
            {"name": "staff", "match": {"user": "0"}, "rules": ["search", "api"]},
        ],
    }  # fmt: skip


_PATHS = (
    "/search/cats", "/search/dogs", "/bucket", "/leaky", "/sliding", "/month", "/first", "/rolling",
    "/interval", "/rollout", "/variants", "/api/items", "/api/free/x", "/login", "/org/x", "/chat",
    "/upload", "/heavy", "/everyone", "/closed/x", "/off", "/export", "/import", "/status",
    "/other",
)  # fmt: skip
_ADDRESSES = (
    "10.0.0.1", "10.0.0.2", "192.0.2.7", "203.0.113.9", "2001:db8::1", "2001:db8:bad::5",
    "::ffff:192.0.2.7", "no address",
)  # fmt: skip
_LIMITS = (
    "5/day", "3/day; 9/week", "4/day token_bucket", "6/week sliding_counter", "2/day leaky_bucket",
    "7/month", "5/day fixed_window from_first", "1000000000/day token_bucket",
    "3/day rolling_window",
)  # fmt: skip
_BAD_LIMITS = (
    "", "5", "5/", "x/day", "5/fortnight", "0/day", "-1/day", "20000/day packed_window",
    "5/day 5/day",
    "2000/day rolling_window", "5/day; 5/day", "5/day burst", "9" * 40 + "/day", "5/day \u00e9",
)  # fmt: skip
_NOT_JSON = (
    b"", b" ", b"{", b"}", b"{}}", b'{"attributes":', b'{"attributes":{"user":"1"},}', b"[", b"[{]",
    b"NaN", b'{"cost":NaN}', b"\xff\xfe", b'{"attributes":{"user":"\xff"}}', b"\xef\xbb\xbf{}",
    b'{"attributes":{"user":"\\ud800"}}', b"'single'", b"[" * 3_000, b'{"a":' * 1_500, b"\x00",
    b'{"attributes":{"user":"\x01"}}', b"{} {}", b'{"cost":01}', b'{"cost":1e5}', b'{"cost":1.0}',
)  # fmt: skip
_WRONG: tuple[Any, ...] = (
    None, 1, 1.5, True, "text", [], [[]], [1], {}, {"attributes": None}, {"attributes": []},
    {"attributes": {"user": 1}}, {"attributes": {"user": None}}, {"attributes": {"": "x"}},
    {"attributes": {"n" * 101: "x"}}, {"attributes": {"user": "x" * 4_097}},
    {"attributes": {f"a{n}": "x" for n in range(101)}}, {"attributes": {"user": "1"}, "unknown": 1},
    {"attributes": {"user": "1"}, "costs": 1}, {"attributes": {"user": "1"}, "key": "k"},
    {"key": "k"}, {"limits": "5/day"}, {"key": "", "limits": "5/day"}, {"key": 1,
    "limits": "5/day"},
    {"key": "k", "limits": []}, {"key": "k", "limits": ["5/day", 1]}, {"key": "k", "limits": 5},
    {"key": "k" * 4_097, "limits": "5/day"}, {"key": "k", "limits": ["5/day"] * 101},
    {"attributes": {"path": "/chat", "user": "1", "tokens": "many"}},
    {"attributes": {"path": "/chat", "user": "1", "tokens": "-1"}},
    {"attributes": {"path": "/chat", "user": "1", "tokens": "1.5"}},
    {"attributes": {"user": "1"}, "peek": 1}, {"attributes": {"user": "1"}, "peek": None},
)  # fmt: skip
_BAD_COSTS: tuple[Any, ...] = (-1, 10**10, 10**30, "1", 1.5, 2.0, True, None, [], {})
_PROFILES: tuple[Headers, ...] = (
    (("Host", HOST), ("User-Agent", "curl/8.5.0"), ("Accept", "*/*"),
     ("Content-Type", "application/x-www-form-urlencoded")),
    (("Host", HOST), ("User-Agent", "python-requests/2.32"), ("Accept-Encoding", "gzip, deflate"),
     ("Accept", "*/*"), ("Connection", "keep-alive"), ("Content-Type", "application/json")),
    (("Host", f"{HOST}:8080"), ("User-Agent", "Go-http-client/1.1"), ("Accept-Encoding", "gzip")),
    (("host", HOST), ("content-type", "application/json"), ("accept", "text/html")),
)  # fmt: skip
_PATHS_TO_NOWHERE = (
    "/v1", "/v1/", "/v1/checks", "/v1/check/", "//v1/check", "/V1/check", "/v1/check.json",
    "/v2/check",
    "/v1//check", "/v1/./check", "/v1/x/../check", "/v1/slots/", "/v1/usage/", "/v1/authx",
    "/json/", "/v1/check%20", "/v1/check%00", "/v1/\u00e9", "/v1/" + "x" * 300, "/v1/check;x",
    "/v1/none",
)  # fmt: skip
_SPELLINGS = (
    "/v1/%63heck", "/v1%2Fcheck", "/v1%2fcheck", "/%76%31/check", "/v1/check?x=1", "/v1/check?",
    "/v1/check#fragment", f"http://{HOST}/v1/check", "http://other.test/v1/check", "/v1/%zz",
    f"https://{HOST}:443/v1/check?x=1", f"HTTP://{HOST}/v1/check", "http:///v1/check", "/v1/ch%",
    f"http://user@{HOST}/v1/check", "v1/check", "?x", "http://[::1]/v1/check", "ftp://x/v1/check",
)  # fmt: skip


class Generator:
    """Draws requests for one pair of services, and keeps the receipts and slots they return."""

    def __init__(self, random: Random, *, needs_token: bool) -> None:
        self.random = random
        self._needs_token = needs_token
        self._receipts: list[tuple[str, str]] = []
        self._slots: list[tuple[str, str]] = []
        self._malformed: list[tuple[str, bytes]] = []
        """The malformed requests that are still to be sent, before all of them come again."""
        self._number = 0
        self._kinds: dict[Callable[[], Request], int] = {
            self._check: 40, self._own_limits: 8, self._list: 4, self._invalid_json: 3,
            self._wrong_types: 4, self._invalid_values: 3, self._too_long: 1, self._refund: 4,
            self._settle: 4, self._acquire: 5, self._held: 5, self._usage: 5, self._envoy: 6,
            self._auth: 14, self._auth_prefix: 6, self._wrong_method: 2, self._nowhere: 2,
            self._spelling: 2, self._health: 1,
        }  # fmt: skip

    def learn(self, old: Any, new: Any) -> None:
        """Keep the receipts and slots of a pair of responses, for later requests."""
        if isinstance(old, list) and isinstance(new, list):
            for pair in zip(old, new, strict=False):
                self.learn(*pair)
        elif isinstance(old, dict) and isinstance(new, dict):
            self.learn(old.get("verdict"), new.get("verdict"))
            for name, known in (("receipt", self._receipts), ("slot", self._slots)):
                secrets = old.get(name), new.get(name)
                if isinstance(secrets[0], str) and isinstance(secrets[1], str):
                    known.append((secrets[0], secrets[1]))
                    del known[:-100]

    def request(self) -> Request:
        """Return a request that is HTTP, though it may ask for nonsense."""
        kinds, weights = list(self._kinds), list(self._kinds.values())
        request = self.random.choices(kinds, weights)[0]()
        headers = request.headers + self._common_headers(request)
        version = "1.0" if self._chance(0.02) else "1.1"
        chunks = 0
        if request.body is not None and version == "1.1" and self._chance(0.06):
            chunks = self.random.randint(1, 4)
        return replace(request, headers=headers, version=version, chunks=chunks)

    def malformed(self) -> Request:
        """Return a request that is not HTTP/1.1, or hardly."""
        self._malformed = self._malformed or self.random.sample(MALFORMED, len(MALFORMED))
        name, raw = self._malformed.pop()
        return Request(f"malformed: {name}", raw=raw)

    def mutated(self) -> Request:
        """Return a request of which some bytes were changed, removed or added."""
        request = self.request()
        while request.secrets != ("", ""):  # a receipt is valid in one service only
            request = self.request()
        raw = bytearray(b"".join(request.encoded(0)))
        for _ in range(self.random.randint(1, 3)):
            place = self.random.randrange(len(raw))
            change = self.random.randrange(4)
            if change == 0:
                raw[place] = self.random.choice(b"\x00\r\n \t:;,/\xff09Az{}[]\"'%")
            elif change == 1:
                del raw[place : place + self.random.randint(1, 4)]
            elif change == 2:
                raw[place:place] = self.random.randbytes(2)
            else:
                raw[place:place] = raw[place : place + self.random.randint(1, 30)]
            if not raw:
                break
        return Request("mutated", raw=bytes(raw) or b"\r\n")

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _common_headers(self, request: Request) -> Headers:
        is_auth = request.kind.startswith("auth")
        headers: list[tuple[str, str]] = [] if is_auth else [*self.random.choice(_PROFILES)]
        self._number += 1
        if self._chance(0.8):
            headers.append(("X-Request-Id", f"request-{self._number}"))
        elif self._chance(0.3):
            ids = ("", "two words", "x" * 65, "\u00e9", "a,b", "x" * 64)
            headers.append(("X-Request-Id", self.random.choice(ids)))
        if self._chance(0.1):
            headers.append(("X-Sequence", str(self._number)))
        if self._chance(0.02):
            headers.append(("Connection", self.random.choice(("close", "Close", "x, close", "x"))))
        if self._chance(0.03):
            origins = ("http://evil.test", "http://localhost:3000", "null", "http://127.0.0.1")
            headers.append(("Origin", self.random.choice(origins)))
        if self._chance(0.01):
            headers += [("Upgrade", "h2c"), ("Connection", "Upgrade")]
        headers += self._token_headers(is_auth)
        return tuple(headers)

    def _token_headers(self, is_auth: bool) -> list[tuple[str, str]]:
        name = "X-Limen-Token" if is_auth and self._chance(0.9) else "Authorization"
        valid = (name, f"Bearer {CHECK_TOKEN}")
        if self._chance(0.8 if self._needs_token else 0.9):
            return [valid] if self._needs_token else []
        values = (
            CHECK_TOKEN, f"bearer {CHECK_TOKEN}", f"Bearer  {CHECK_TOKEN}", f"Bearer {ADMIN_TOKEN}",
            f"Bearer {CHECK_TOKEN}x", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "",
            "Bearer \u00e9",
        )  # fmt: skip
        other = (name, self.random.choice(values))
        return self.random.choice(([], [other], [other], [valid], [valid, other], [valid, valid]))

    def _attributes(self) -> dict[str, str]:
        choose = self.random.choice
        attributes = {"user": str(self.random.randrange(12)), "path": choose(_PATHS)}
        optional = {
            "method": ("GET", "POST", "DELETE"), "ip": _ADDRESSES, "account": ("a", "b"),
            "plan": ("free", "pro", "enterprise", "gold"), "org": ("acme", "ours", "x"),
            "tokens": ("1", "5", "20", "0"), "size": ("1", "30", "200"), "\u00e9": ("\u2603",),
        }  # fmt: skip
        for name, values in optional.items():
            if self._chance(0.4):
                attributes[name] = choose(values)
        if self._chance(0.1):
            attributes["user"] = choose(("", "\u00e9", "a=b&c", "\U0001f600", 'quote"', "x" * 500))
        if self._chance(0.1):
            del attributes[choose(sorted(attributes))]
        return attributes

    def _question(self) -> dict[str, Any]:
        question: dict[str, Any] = {"attributes": self._attributes()}
        if self._chance(0.2):
            question["cost"] = self.random.choice((0, 1, 2, 5, 50, 10**9))
        if self._chance(0.15):
            question["peek"] = self._chance(0.7)
        return question

    def _own_question(self) -> dict[str, Any]:
        limits: Any = self.random.choice(_LIMITS)
        if self._chance(0.2):
            limits = self.random.sample(_LIMITS, 2)
        elif self._chance(0.2):
            limits = self.random.choice(_BAD_LIMITS)
        question = self._question() | {"key": f"job:{self.random.randrange(10)}", "limits": limits}
        del question["attributes"]
        return question

    def _json(self, value: Any) -> bytes:
        separators = self.random.choice(((",", ":"), (", ", ": ")))
        return json.dumps(value, separators=separators, ensure_ascii=self._chance(0.5)).encode()

    def _check(self) -> Request:
        return Request("check", body=self._json(self._question()))

    def _own_limits(self) -> Request:
        return Request("check, own limits", body=self._json(self._own_question()))

    def _list(self) -> Request:
        count = self.random.choice((0, 1, 2, 3, 5, MAX_BATCH, MAX_BATCH + 1))
        items: list[Any] = [
            self._question() if self._chance(0.8) else self._own_question() for _ in range(count)
        ]
        if items and self._chance(0.2):
            items[self.random.randrange(count)] = self.random.choice(_WRONG)
        return Request("check, list", body=self._json(items))

    def _invalid_json(self) -> Request:
        target = self.random.choice(("/v1/check", "/v1/check", "/v1/slots", "/v1/refund", "/json"))
        return Request("invalid JSON", target=target, body=self.random.choice(_NOT_JSON))

    def _wrong_types(self) -> Request:
        target = self.random.choice(("/v1/check", "/v1/check", "/v1/slots", "/v1/settle", "/json"))
        return Request("wrong types", target=target, body=self._json(self.random.choice(_WRONG)))

    def _invalid_values(self) -> Request:
        question = self._question() | {"cost": self.random.choice(_BAD_COSTS)}
        return Request("invalid values", body=self._json(question))

    def _too_long(self) -> Request:
        length = self.random.choice((MAX_BODY - 1, MAX_BODY, MAX_BODY + 1, 2 * MAX_BODY))
        body = b'{"attributes":{"user":"1"}}'
        return Request("body at the limit", body=body.ljust(length))

    def _secrets(self, known: list[tuple[str, str]]) -> tuple[str, str]:
        garbage = ("x", "", "A" * 50, "a.b.c", "%2e", "\u00e9", "x" * 3_000, "AAAA=", "_-_-")
        if not known or self._chance(0.15):
            text = self.random.choice(garbage)
            return text, text
        old, new = self.random.choice(known)
        if self._chance(0.1):
            return old[:-3], new[:-3]
        if self._chance(0.05):
            return old + "A", new + "A"
        return old, new

    def _refund(self) -> Request:
        body: Any = {"receipt": SECRET}
        if self._chance(0.1):
            body = self.random.choice(({"receipt": 1}, {}, [], {"receipt": SECRET, "x": 1}, None))
        known = self._receipts if self._chance(0.95) else self._slots
        secrets = self._secrets(known)
        return Request("refund", target="/v1/refund", body=self._json(body), secrets=secrets)

    def _settle(self) -> Request:
        actual = self.random.choice(
            (0, 1, 3, 40, {"tokens": 2}, {"tokens": 30}, {"size": 1, "tokens": 2}, -1, {}, "1",
            None,
             {"tokens": -1}, {"tokens": 1.5}, {"other": 1})
        )  # fmt: skip
        body = self._json({"receipt": SECRET, "actual": actual})
        secrets = self._secrets(self._receipts)
        return Request("settle", target="/v1/settle", body=body, secrets=secrets)

    def _acquire(self) -> Request:
        body: dict[str, Any] = {"attributes": self._attributes()}
        body["attributes"]["path"] = self.random.choice(("/export", "/export", "/import", "/chat"))
        if self._chance(0.3):
            concurrency: Any = self.random.choice(
                ({"slots": 2, "lease": 3600}, {"slots": 1, "lease": 7200.5}, {"slots": 0,
                "lease": 1},
                 {"slots": 1}, {"slots": 1, "lease": 0}, {"slots": 1, "lease": 1, "x": 1}, None)
            )  # fmt: skip
            body = {"key": f"report:{self.random.randrange(5)}", "concurrency": concurrency}
            if self._chance(0.3):
                body["limits"] = self.random.choice((*_LIMITS, *_BAD_LIMITS))
        return Request("slots, acquire", target="/v1/slots", body=self._json(body))

    def _held(self) -> Request:
        method = self.random.choice(("POST", "DELETE", "DELETE", "DELETE", "GET"))
        target = f"/v1/slots/{SECRET}{'?x=1' if self._chance(0.1) else ''}"
        secrets = self._secrets(self._slots if self._chance(0.95) else self._receipts)
        body = b"" if method == "POST" and self._chance(0.5) else None
        return Request(f"slots, {method}", method=method, target=target, body=body, secrets=secrets)

    def _usage(self) -> Request:
        query = urlencode(self._attributes())
        if self._chance(0.2):
            query = self.random.choice(
                ("", "user", "user=", "user=1&user=2", "user=%zz", "user=%ff", "=x", "&",
                "user=1;b=2",
                 "user=\u00e9", "a=" + "x" * 4_097, "&".join(f"a{n}=1" for n in range(101)),
                     "u=1&&b=2")
            )  # fmt: skip
        return Request("usage", method="GET", target=f"/v1/usage?{query}")

    def _envoy(self) -> Request:
        choose = self.random.choice
        descriptors: list[Any] = []
        for _ in range(choose((1, 1, 1, 1, 1, 2, 2, 3, 3, 0))):
            address = [("remote_address", choose(_ADDRESSES))]
            pair = [("plan", choose(("free", "pro"))), ("user", str(self.random.randrange(4)))]
            others = ([("other", "x")], [("bad", "x")], [("bad", "x")], [("", "")])
            entries = choose((address, address, pair, pair, choose(others)))
            descriptor: dict[str, Any] = {
                "entries": [{"key": key, "value": value} for key, value in entries]
            }
            if self._chance(0.1):
                units = ("DAY", "MONTH", "UNKNOWN", "FORTNIGHT", 4)
                limit = {"requestsPerUnit": choose((0, 3, 9)), "unit": choose(units)}
                descriptor["limit"] = limit
            if self._chance(0.1):
                descriptor["hitsAddend"] = choose(("0", "2", 3, "x"))
            if self._chance(0.05):
                descriptor["isNegativeHits"] = True
            descriptors.append(descriptor)
        body: Any = {
            "domain": choose(("shop",) * 10 + ("none", "")),
            "descriptors": descriptors,
        }
        if self._chance(0.1):
            body["hitsAddend"] = choose((0, 2, -1, "2"))
        if self._chance(0.05):
            body = choose((None, [], {}, {"domain": 1}, {"domain": "shop", "unknown": 1}))
        return Request("Envoy JSON", target="/json", body=self._json(body))

    def _auth(self) -> Request:
        choose = self.random.choice
        address = choose(
            (*_ADDRESSES[:-1], "10.0.0.1, 127.0.0.1", "1.2.3.4, 10.0.0.2", "10.0.0.3", "10.0.0.4")
        )
        path = choose(
            (*_PATHS, "/search/a?cost=0", "/x/..%2fsearch/cats", "//api//items", "/a/../b")
        )
        gateways: dict[str, tuple[str, Headers]] = {
            "nginx": ("/v1/auth?deny_status=403", (("Host", "limen"),)),
            "Caddy": ("/v1/auth", (("Host", HOST), ("Accept", choose(("*/*", "text/html", ""))))),
            "Traefik": ("/v1/auth", (("Host", "limen.test:8001"), ("X-Forwarded-Port", "8000"),
                                     ("X-Forwarded-Proto", "http"), ("X-Forwarded-Server", "edge"),
                                     ("Accept", "text/plain"), ("Accept-Encoding", "gzip"))),
        }  # fmt: skip
        name = choose(sorted(gateways))
        target, first = gateways[name]
        headers = [
            ("X-Forwarded-Method", choose(("GET", "GET", "POST", "get"))),
            ("X-Forwarded-Uri", path),
            ("X-Forwarded-Host", choose(("shop.test", "SHOP.test:80", "a, b"))),
            ("X-Forwarded-For", address),
        ]
        if self._chance(0.6):
            headers.append(("X-User-Id", str(self.random.randrange(8))))
        if self._chance(0.2):
            payloads = (
                "eyJwbGFuIjoicHJvIn0",
                "eyJwbGFuIjoiZnJlZSJ9",
                "x.eyJwbGFuIjoxfQ.x",
                "!",
                "e30",
            )
            headers.append(("X-Jwt-Payload", choose(payloads)))
        if self._chance(0.1):
            more = (
                ("X-Original-URI", path), ("X-Original-URI", "/x"), ("X-Original-Method", "PUT"),
                ("X-Original-URL", f"http://shop.test{path}"), ("X-User-Id", "a,b"),
            )  # fmt: skip
            headers.append(choose(more))
        if self._chance(0.03):
            headers[0] = ("X-Forwarded-Method", choose(("\u00e9", "", "A B")))
        if self._chance(0.05):
            headers[3] = ("X-Forwarded-For", choose(("unknown", "", "10.0.0.1,", ",")))
        if self._chance(0.08):
            headers.remove(choose(headers))
        if self._chance(0.08):
            headers.append(choose(headers))
        if self._chance(0.08):
            queries = ("cost=2", "cost=0", "cost=x", "deny_status=200", "cost=1&cost=1", "x=1", "",
                       "deny_status=599&cost=3", "cost=99999999999")  # fmt: skip
            target = f"/v1/auth?{choose(queries)}"
        method = choose(("GET", "GET", "GET", "HEAD", "POST"))
        body = choose((b"", b"x", None)) if method == "POST" else None
        return Request(
            f"auth, {name}", method=method, target=target, headers=(*first, *headers), body=body
        )

    def _auth_prefix(self) -> Request:
        choose = self.random.choice
        path = choose((*_PATHS, "", "//api//items", "/%61pi/items", "/a/..%2fb", "/x?cost=0"))
        headers = [("Host", choose(("shop.test", "shop.test:8000", "SHOP.test")))]
        headers.append(("X-Forwarded-For", choose(_ADDRESSES[:-1])))
        if self._chance(0.5):
            headers.append(("X-User-Id", str(self.random.randrange(8))))
        if self._chance(0.1):
            headers.append(("Sec-Fetch-Site", choose(("cross-site", "same-origin", "none"))))
        if self._chance(0.1):
            headers.append(choose(headers[1:]))
        if self._chance(0.1):
            headers.append(("X-Forwarded-Uri", "/ignored"))
        method = choose(("GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))
        headers += [("Content-Length", "0")] if method in ("POST", "PUT", "PATCH") else []
        target = f"/v1/auth/{path.removeprefix('/')}" if path else "/v1/auth/"
        return Request("auth, Envoy", method=method, target=target, headers=tuple(headers))

    def _wrong_method(self) -> Request:
        targets = (
            "/v1/check",
            "/v1/refund",
            "/v1/settle",
            "/v1/usage",
            "/v1/slots",
            "/json",
            "/healthz",
        )
        method = self.random.choice(("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"))
        if self._chance(0.3):
            method = self.random.choice(("QUERY", "PROPFIND", "LINK", "SEARCH", "CONNECT"))
        target = self.random.choice(targets)
        method = "POST" if target in ("/v1/usage", "/healthz") else method
        body = b"{}" if method in ("POST", "PUT", "PATCH") else None
        return Request("wrong method", method=method, target=target, body=body)

    def _nowhere(self) -> Request:
        method = self.random.choice(("GET", "POST", "HEAD"))
        body = b"{}" if method == "POST" else None
        target = self.random.choice(_PATHS_TO_NOWHERE)
        return Request("unknown path", method=method, target=target, body=body)

    def _spelling(self) -> Request:
        target = self.random.choice(_SPELLINGS)
        return Request("target spelling", target=target, body=self._json(self._question()))

    def _health(self) -> Request:
        target = self.random.choice(("/healthz", "/readyz", "/healthcheck", "/healthz?x"))
        return Request("health", method=self.random.choice(("GET", "HEAD")), target=target)


_BODY = b'{"attributes":{"user":"m","path":"/other"}}'
_LENGTH = b"Content-Length: %d\r\n" % len(_BODY)
_HOST = b"Host: limen.test\r\n"


def _post(
    lines: bytes, body: bytes = _BODY, first: bytes = b"POST /v1/check HTTP/1.1\r\n"
) -> bytes:
    return first + lines + b"\r\n" + body


def _chunks(body: bytes) -> bytes:
    return _post(_HOST + b"Transfer-Encoding: chunked\r\n", body)


_WHOLE = b"2b\r\n" + _BODY + b"\r\n0\r\n"
_HEADS: dict[str, bytes] = {
    "missing Host": _LENGTH,
    "repeated Host": _HOST * 2 + _LENGTH,
    "empty Host": b"Host:\r\n" + _LENGTH,
    "obs-fold": _HOST + b"X-Fold: a\r\n b\r\n" + _LENGTH,
    "folded first header": b" x\r\n" + _HOST + _LENGTH,
    "space before colon": b"Host : limen.test\r\n" + _LENGTH,
    "space before colon of Content-Length": _HOST + b"Content-Length : 43\r\n",
    "header without colon": _HOST + b"nonsense\r\n" + _LENGTH,
    "empty header name": _HOST + b": x\r\n" + _LENGTH,
    "NUL in value": _HOST + b"X-A: a\x00b\r\n" + _LENGTH,
    "NUL in name": _HOST + b"X-\x00A: b\r\n" + _LENGTH,
    "control character in value": _HOST + b"X-A: a\x01b\r\n" + _LENGTH,
    "DEL in value": _HOST + b"X-A: a\x7fb\r\n" + _LENGTH,
    "bytes above 127 in value": _HOST + b"X-A: \xff\xfe\r\n" + _LENGTH,
    "bytes above 127 in name": _HOST + b"X-\xe9: b\r\n" + _LENGTH,
    "bare CR in value": _HOST + b"X-A: a\rb\r\n" + _LENGTH,
    "bare LF in value": _HOST + b"X-A: a\nb: c\r\n" + _LENGTH,
    "parenthesis in name": _HOST + b"X(A): b\r\n" + _LENGTH,
    "101 headers": _HOST + b"X-A: b\r\n" * 100 + _LENGTH,
    "100 headers": _HOST + b"X-A: b\r\n" * 98 + _LENGTH,
    "head too large": _HOST + b"X-A: " + b"b" * 17_000 + b"\r\n" + _LENGTH,
    "head below the limit": _HOST + b"X-A: " + b"b" * 16_000 + b"\r\n" + _LENGTH,
    "both lengths": _HOST + _LENGTH + b"Transfer-Encoding: chunked\r\n",
    "gzip, chunked": _HOST + b"Transfer-Encoding: gzip, chunked\r\n",
    "chunked, identity": _HOST + b"Transfer-Encoding: chunked, identity\r\n",
    "xchunked": _HOST + b"Transfer-Encoding: xchunked\r\n",
    "empty Transfer-Encoding": _HOST + b"Transfer-Encoding:\r\n" + _LENGTH,
    "identity": _HOST + b"Transfer-Encoding: identity\r\n" + _LENGTH,
    "same length twice": _HOST + _LENGTH * 2,
    "two lengths": _HOST + _LENGTH + b"Content-Length: 5\r\n",
    "list of lengths": _HOST + b"Content-Length: 43, 43\r\n",
    "signed length": _HOST + b"Content-Length: +43\r\n",
    "negative length": _HOST + b"Content-Length: -1\r\n",
    "hexadecimal length": _HOST + b"Content-Length: 0x2b\r\n",
    "empty length": _HOST + b"Content-Length:\r\n",
    "huge length": _HOST + b"Content-Length: " + b"9" * 30 + b"\r\n",
    "large length": _HOST + b"Content-Length: 99999999\r\n",
    "length with zeros": _HOST + b"Content-Length: 0000043\r\n",
    "length with spaces": _HOST + b"Content-Length:   43  \r\n",
    "length with a tab": _HOST + b"Content-Length:\t43\t\r\n",
    "WebSocket upgrade with a body":
        _HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + _LENGTH,
    "unknown expectation": _HOST + b"Expect: 200-ok\r\n" + _LENGTH,
    "repeated Authorization": _HOST + b"Authorization: Bearer x\r\n" * 2 + _LENGTH,
    "proxy connection": _HOST + b"Proxy-Connection: close\r\n" + _LENGTH,
    "both connection options": _HOST + b"Connection: keep-alive, close\r\n" + _LENGTH,
}  # fmt: skip
_HOSTS = (
    b"a b", b"a/b", b"[::1", b"[1.2]:80", b"x:80a", b"x:", b"x:99999", b"user@x", b"a,b", b"%zz",
    b"%41",
    b"[::1]:8080", b"\xe9", b"x?y", b"x#y", b"[]", b"::1", b"x\\y",
)  # fmt: skip
_BODIES: dict[str, bytes] = {
    "chunk size": b"zz\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "negative chunk": b"-1\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "empty chunk size": b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "huge chunk": b"f" * 20 + b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk with 0x": b"0x2b\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk too long": b"2a\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk ends with LF": b"2b\n" + _BODY + b"\n0\n\n",
    "chunk data ends with LF": b"2b\r\n" + _BODY + b"\n0\r\n\r\n",
    "chunk extension": b"2b;a=b\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "quoted chunk extension": b'2b;a="b\r\n' + _BODY + b"\r\n0\r\n\r\n",
    "long chunk extension": b"2b;" + b"a" * 20_000 + b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "space behind chunk size": b"2b \r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk size in capitals": b"2B\r\n" + _BODY + b"\r\n000\r\n\r\n",
    "trailer": _WHOLE + b"X-Trailer: a\r\n\r\n",
    "trailer with a token": _WHOLE + b"Authorization: Bearer x\r\n\r\n",
    "trailer with a length": _WHOLE + b"Content-Length: 5\r\n\r\n",
    "invalid trailer": _WHOLE + b"nonsense\r\n\r\n",
    "large trailer": _WHOLE + b"X-A: " + b"b" * 20_000 + b"\r\n\r\n",
}
_FIRST_LINES: dict[str, bytes] = {
    "HTTP/1.2": b"POST /v1/check HTTP/1.2\r\n",
    "HTTP/2.0": b"POST /v1/check HTTP/2.0\r\n",
    "HTTP/0.9": b"POST /v1/check HTTP/0.9\r\n",
    "HTTP/1.10": b"POST /v1/check HTTP/1.10\r\n",
    "HTTP/11": b"POST /v1/check HTTP/11\r\n",
    "http/1.1": b"POST /v1/check http/1.1\r\n",
    "HTTPS/1.1": b"POST /v1/check HTTPS/1.1\r\n",
    "no version": b"POST /v1/check\r\n",
    "space behind version": b"POST /v1/check HTTP/1.1 \r\n",
    "two spaces": b"POST  /v1/check HTTP/1.1\r\n",
    "two spaces before version": b"POST /v1/check  HTTP/1.1\r\n",
    "tab": b"POST\t/v1/check\tHTTP/1.1\r\n",
    "lower-case method": b"post /v1/check HTTP/1.1\r\n",
    "unknown method": b"FOO /v1/check HTTP/1.1\r\n",
    "bytes above 127 in target": b"POST /v1/\xe9 HTTP/1.1\r\n",
    "NUL in target": b"POST /v1/\x00check HTTP/1.1\r\n",
    "space in target": b"POST /v1/check x HTTP/1.1\r\n",
    "long target": b"POST /v1/" + b"x" * 20_000 + b" HTTP/1.1\r\n",
    "empty target": b"POST  HTTP/1.1\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\n",
    "authority": b"CONNECT limen.test:80 HTTP/1.1\r\n",
    "first line ends with LF": b"POST /v1/check HTTP/1.1\n",
    "empty lines before": b"\r\n\r\nPOST /v1/check HTTP/1.1\r\n",
    "empty LF lines before": b"\n\nPOST /v1/check HTTP/1.1\r\n",
    "space before": b" POST /v1/check HTTP/1.1\r\n",
    "HTTP/1.0 keep-alive": b"POST /v1/check HTTP/1.0\r\nConnection: keep-alive\r\n",
}
MALFORMED: tuple[tuple[str, bytes], ...] = (
    *[(name, _post(lines)) for name, lines in _HEADS.items()],
    *[(f"Host {host!r}", _post(b"Host: " + host + b"\r\n" + _LENGTH)) for host in _HOSTS],
    *[(name, _chunks(body)) for name, body in _BODIES.items()],
    *[(name, _post(_HOST + _LENGTH, first=line)) for name, line in _FIRST_LINES.items()],
    ("all lines end with LF", _post(_HOST + _LENGTH).replace(b"\r\n", b"\n")),
    ("missing Host in HTTP/1.0", _post(_LENGTH, first=b"POST /v1/check HTTP/1.0\r\n")),
    ("no length", _post(_HOST, b"")),
    ("bytes behind the body", _post(_HOST + _LENGTH, _BODY + b"garbage\r\n\r\n")),
    ("TLS", bytes.fromhex("16030100c5010000c10303") + b"\x00" * 180),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9),
    ("incomplete head", b"POST /v1/check HTTP/1.1\r\nHost: limen"),
    ("incomplete body", _post(_HOST + b"Content-Length: 99\r\n")),
    ("incomplete chunk", _chunks(b"2b\r\n" + _BODY[:9])),
    ("random bytes", bytes(range(256))),
)

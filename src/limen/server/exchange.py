"""One exchange over HTTP, as ASGI has it: what was asked, and how it is answered. Knows no limits.

What cannot be answered is `Rejected`: a status and a sentence, as `application/problem+json`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from limen import wire
from limen.http.problem import Problem, phrase

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
PROBLEM = (b"content-type", b"application/problem+json")
# What is true now may be otherwise a moment later, and for somebody else.
NO_STORE = (b"cache-control", b"no-store")
RETRY_SOON = (b"retry-after", b"1")
HEAD = (
    b"x-request-id: %b\r\ncontent-type: %b\r\ncache-control: no-store\r\n%bcontent-length: %d\r\n"
)
"""The headers of an answer as they are sent: the id, the kind, others, and the length."""
Tell = Callable[[int, bytes, bytes], object]
"""Sends an answer: the status, the headers as they are sent, and the body."""
GIVEN_ID = re.compile(rb"[\x21-\x7e]{1,64}")
"""What a client may call its request."""
_MALFORMED = re.compile(r"JSON is malformed: (.*)")
_PLACE = re.compile(r"(.*?) - at (`key` in )?`\$(.*)`", re.DOTALL)
_OBJECT = re.compile(r"(?:\[(\d+)\]\.)?(attributes|actual)")
_MEMBERS: dict[str, Any] = {"attributes": wire.Attributes, "actual": wire.Costs}
_LONGEST_NAME = 100
_logger = logging.getLogger("limen.server")


class Rejected(Exception):
    """Say that a request is not answered, and why. Nothing was charged or changed."""

    def __init__(self, status: int, detail: str, headers: Headers | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: Headers = headers or []

    def body(self, id_: str) -> bytes:
        """Return the problem document."""
        return Problem(
            title=phrase(self.status),
            status=self.status,
            detail=self.detail,
            instance=f"urn:limen:{id_}",
        ).encode()


class Reply(NamedTuple):
    """What a question is answered."""

    body: bytes
    headers: Headers
    status: int = 200

    def sent(self, id_: str) -> tuple[int, bytes, bytes]:
        """Return the status, the headers as they are sent, and the body."""
        lines = [name + b": " + value + b"\r\n" for name, value in self.headers]
        kind = JSON if self.status == 200 else PROBLEM
        head = HEAD % (id_.encode(), kind[1], b"".join(lines), len(self.body))
        return self.status, head, self.body


class Gone(Exception):
    """Say that the client went away in the middle of its request."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name, which is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def single_header(scope: Scope, name: bytes) -> bytes | None:
    """Return the header of a name, in lower case; None without one.

    Raises `Rejected` if it is repeated: proxies disagree which value counts.
    """
    values: list[bytes] = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Rejected(400, f"the header {name.decode()} is repeated; send it once")
    return values[0] if values else None


async def read_body(scope: Scope, receive: Receive, longest: int) -> bytes:
    """Return the body of a request, or raise `Rejected` when it is longer than it may be."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > longest:
            _too_long(longest)
        return body
    # Who says beforehand how much it will be is spared the sending.
    said = header(scope, b"content-length")
    if said is not None and said.isdigit() and int(said) > longest:
        _too_long(longest)
    chunks, length = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        chunk = message.get("body", b"")
        length += len(chunk)
        if length > longest:
            _too_long(longest)
        chunks.append(chunk)
    return b"".join(chunks)


def mistake(id_: str) -> Reply:
    """Log what has just gone wrong here; return what is said of it."""
    _logger.exception("a mistake in the service", extra={"request": id_})
    rejected = Rejected(500, "the service made a mistake, and has logged it under this id")
    return Reply(rejected.body(id_), [], 500)


def wrong_method(scope: Scope, *allowed: str) -> Rejected:
    """Return what is said to who asks a path for what it does not do."""
    methods = ", ".join(allowed)
    return Rejected(
        405,
        f"{scope['path'][:200]} takes {methods}, not {scope['method']}",
        [(b"allow", methods.encode())],
    )


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return what a body says, or raise `Rejected`: 400 for no JSON, 422 for the wrong JSON."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Rejected(422, _in_plain_words(str(error), body)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not body.strip():
            raise Rejected(400, "the body is empty, expected JSON") from None
        found = _MALFORMED.search(str(error))
        reason = found[1] if found else "it ends too early, or is not UTF-8"
        raise Rejected(400, f"the body is not JSON: {reason}") from None


def _too_long(longest: int) -> NoReturn:
    # The rest of the body is on its way, and nobody will read it.
    close = [(b"connection", b"close")]
    raise Rejected(413, f"the body is longer than {longest:,} bytes", close)


def _in_plain_words(message: str, body: bytes) -> str:
    """Return what was wrong with a value, and where: `cost: expected int >= 0`."""
    found = _PLACE.fullmatch(message)
    what, is_name, path = found.groups() if found else (message, None, "")
    # An unknown field can have any name, also one that reads like a path.
    what, path = what.replace("`", ""), path.lstrip(".")[:_LONGEST_NAME]
    if what.startswith("Object contains unknown field"):
        name = what.removeprefix("Object contains unknown field ")
        what = f"unknown field {name[:_LONGEST_NAME]!r}"
    elif what.startswith("Object missing required field"):
        what = f"the field {what.removeprefix('Object missing required field ')!r} is missing"
    else:
        what = f"{what[:1].lower()}{what[1:]}"
    if is_name:
        what = f"a name in it: {what}"
    elif path.endswith("[...]"):
        path = path.removesuffix("[...]")
        members = _members(path, body)
        if len(members) > wire.MAX_ATTRIBUTES:
            # msgspec checks the number of members last. Counted first here, so that the search for
            # the wrong member is short.
            what = f"expected object of length <= {wire.MAX_ATTRIBUTES}"
        else:
            path += _wrong_member(path, members)
    return f"{path}: {what}" if path else what


def _members(path: str, body: bytes) -> dict[str, Any]:
    """Return the object at `attributes`, `actual`, `[3].attributes`; empty if there is none."""
    match = _OBJECT.fullmatch(path)
    if match is None:
        return {}
    number, field = match.groups()
    try:
        # The first decoder stopped at the wrong member; the rest of the body can be anything.
        value: Any = msgspec.json.decode(body)
        members = (value[int(number)] if number else value)[field]
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}
    return members if isinstance(members, dict) else {}


def _wrong_member(path: str, members: dict[str, Any]) -> str:
    """Return the name of the first invalid member, with a dot. Its value may be a secret."""
    for name, member in members.items():
        try:
            msgspec.convert({name: member}, _MEMBERS[path.rpartition(".")[2]])
        except msgspec.ValidationError:
            return f".{name[:_LONGEST_NAME]}"
    return ""

"""Errors, request ids and JSON bodies, shared by the data plane and the control plane."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import MutableMapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from limen import wire
from limen.server.http import NO_STORE as NO_STORE
from limen.server.http import Headers, Response
from limen.server.http import Rejected as Rejected

Scope = MutableMapping[str, Any]
T = TypeVar("T")

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
RETRY_SOON = (b"retry-after", b"1")
_GIVEN_ID = re.compile(rb"[\x21-\x7e]{1,64}")
"""A request id that a client may choose."""
_MALFORMED = re.compile(r"JSON is malformed: (.*)")
_PLACE = re.compile(r"(.*?) - at (`key` in )?`\$(.*)`", re.DOTALL)
_OBJECT = re.compile(r"(?:\[(\d+)\]\.)?(attributes|actual)")
_MEMBERS: dict[str, Any] = {"attributes": wire.Attributes, "actual": wire.Costs}
_LONGEST_NAME = 100
_logger = logging.getLogger("limen.server")


class RequestIds:
    """Makes the ids of requests: the client's own, or one that is unique to this process."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._numbers = itertools.count(1)

    def id_of(self, given: bytes | None) -> str:
        """Return the id of a request; `given` is its header `X-Request-Id`."""
        if given is not None and _GIVEN_ID.fullmatch(given):
            return given.decode("ascii")
        return f"{self._instance}-{next(self._numbers):x}"


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first header of a name, which is in lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None


def single_header(headers: Headers, name: bytes) -> bytes | None:
    """Return the header of a name, in lower case; None without one.

    Raises `Rejected` if it is repeated: proxies disagree which value counts.
    """
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        raise repeated_header(name.decode())
    return values[0] if values else None


def repeated_header(name: str) -> Rejected:
    """Return the error for a header that must be sent once."""
    return Rejected(400, f"the header {name} is repeated; send it once")


async def read_body(request: Request, longest: int) -> bytes:
    """Return the body of a request to the control plane, or raise `Rejected`."""
    # A client that announces a body that is too long is spared the sending.
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > longest:
        raise body_too_long(longest)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > longest:
                raise body_too_long(longest)
    except ClientDisconnect:
        detail = "the connection was closed before the end of the body"
        raise Rejected(400, detail) from None
    return bytes(body)


def internal_error(id_: str) -> Response:
    """Log the exception that is being handled, and return the response to its request."""
    _logger.exception("a mistake in the service", extra={"request": id_})
    rejected = Rejected(500, "the service made a mistake, and has logged it under this id")
    return rejected.response(id_)


def wrong_method(path: str, method: str, *allowed: str) -> Rejected:
    """Return the error for a method that a path does not have."""
    methods = ", ".join(allowed)
    return Rejected(
        405, f"{path[:200]} takes {methods}, not {method}", [(b"allow", methods.encode())]
    )


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


def body_too_long(longest: int) -> Rejected:
    """Return the error for a body that is longer than it may be."""
    return Rejected(413, f"the body is longer than {longest:,} bytes")


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

"""Refusals, as problem documents (RFC 9457), as pages and as text: why, and until when. Pure.

No key is in them: it may be somebody's API key, and documents get logged.

A client asks for one of the forms by `Accept`. It is read as RFC 9110, 12.5.1 has it, with more
patience: what cannot be understood is not counted. There is no 406: a client that takes none of the
forms is refused as a program is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from http import HTTPStatus
from typing import Literal

import msgspec
from msgspec import Struct

from limen.http.address import OPTIONAL_WHITESPACE
from limen.http.answer import Answer, Quota
from limen.http.headers import ascii_name, headers, listed, retry_after_s, unique
from limen.http.styles import RETRY_AFTER, HeaderStyle
from limen.model import Concurrency, Limit, grammar

CONTENT_TYPE = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

_WORDS = {"ip": "address", "api_key": "API key"}
_UNITS_S = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))
# As RFC 9110 has them, and Python since 3.13: the same words whatever limen runs on.
_RENAMED = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
_encoder = msgspec.json.Encoder()

Form = Literal["application/problem+json", "text/html", "text/plain"]

# Of forms that are liked equally the first is chosen: programs say less of what they like.
_ASKED_BY: dict[Form, tuple[str, ...]] = {
    # Who takes any other JSON can read this one, and would not want a page.
    "application/problem+json": (
        "application/problem+json",
        "application/json",
        "application/*",
        "*/*",
    ),
    "text/html": ("text/html", "text/*", "*/*"),
    "text/plain": ("text/plain", "text/*", "*/*"),
}
"""What asks for a form, the most specific first: that alone counts."""
# Whoever is refused chooses this header, and must not make it costly. Browsers send 150 characters.
_MAX_ACCEPT, _MAX_RANGES = 1_000, 32
_WEIGHT = re.compile(r"[0-9]{1,3}\.?[0-9]{0,9}|\.[0-9]{1,9}")

# The browser has the colours for dark and for light; nothing is loaded, and nothing runs.
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 1.125rem/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; \
padding: 0 1rem; overflow-wrap: anywhere }}
h1 {{ font-size: 1.5rem }}
small {{ opacity: 0.7 }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{detail}</p>
{reference}</body>
</html>"""


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document. What is not said is left out."""

    type: str = "about:blank"
    """Which kind it is, as a URI. `about:blank` says no more than the status."""
    title: str
    """The kind in words, the same every time: `"Quota Exceeded"`."""
    status: int
    """The status of the response: 429."""
    detail: str = ""
    """This case in words: `"100 requests a minute are allowed; come back in 12 s."`"""
    instance: str = ""
    """What names this case, such as `"urn:uuid:..."` with the id of the request."""
    violated: tuple[str, ...] | None = msgspec.field(default=None, name="violated-policies")
    """The policies that refuse, as `RateLimit-Policy` calls them."""
    retry_after: int | None = msgspec.field(default=None, name="retry-after")
    """What `Retry-After` says, for pages that may not read headers of another origin."""

    def encode(self) -> bytes:
        """Return the body of a response, in `application/problem+json`."""
        return _encoder.encode(self)


class Refusal(Struct, frozen=True):
    """A whole response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    detail: str = ""
    """Why, in a sentence: what the body says, too."""


def refusal(
    answer: Answer,
    styles: Iterable[HeaderStyle] = ("draft-11",),
    *,
    now: float | None = None,
    instance: str = "",
    status: int | None = None,
    accept: str | None = None,
) -> Refusal:
    """Return the response to a request that is refused.

    Without a `status`: 429 for a quota that is used up; 403 for a rule that refuses without
    counting, since coming back is no way out of it; 503 where the store is away and the limit is
    closed meanwhile.

    `accept` is what the request says in `Accept`, empty when it has none: by that the body is a
    problem document, a page or text. None is for programs: always a problem document.
    """
    status = status or status_of(answer)
    if answer.blocked_by:
        problem = _blocked(answer, status, instance)
    elif answer.binding is None:
        problem = _away(answer, status, instance)
    else:
        problem = _exceeded(answer, answer.binding, status, instance)
    return _response(problem, headers(answer, styles, now), accept)


def status_of(answer: Answer) -> int:
    """Return the status of a refusal, where nobody wants another."""
    if answer.blocked_by:
        return 403
    return 503 if answer.binding is None else 429


def shedding(retry_after: float = 1.0, *, instance: str = "", accept: str | None = None) -> Refusal:
    """Return the response of a server that has more to do than it can: 503, whoever asks.

    `retry_after` is in seconds; `accept` chooses the body, as in `refusal`.
    """
    wait = retry_after_s(retry_after)
    problem = Problem(
        type=REDUCED_CAPACITY,
        title="Temporary Reduced Capacity",
        status=503,
        detail=f"The server has too much to do at the moment; come back in {_wait(wait)}.",
        instance=instance,
        violated=(),
        retry_after=wait,
    )
    return _response(problem, [(RETRY_AFTER, str(wait))], accept)


def _response(problem: Problem, more: list[tuple[str, str]], accept: str | None) -> Refusal:
    # No cache may keep it: the next to ask may be somebody else, and later.
    own = [("Cache-Control", "no-store")]
    if accept is not None:
        own.append(("Vary", "Accept"))
    form = form_of(accept or "")
    kind: list[tuple[str, str]] = [("Content-Type", form)]
    body = problem.encode()
    if form != CONTENT_TYPE:
        is_page = form == "text/html"
        text = page(problem.title, problem.detail, problem.instance) if is_page else problem.detail
        kind = [("Content-Type", f"{form}; charset=utf-8"), ("Content-Language", "en")]
        body = f"{text}\n".encode()
    return Refusal(problem.status, [*kind, *own, *more], body, problem.detail)


def _exceeded(answer: Answer, binding: Quota, status: int, instance: str) -> Problem:
    quotas = answer.quotas
    names = unique(quota.name for quota in quotas)
    refusing = [at for at in listed(quotas) if not quotas[at].allowed and quotas[at].is_counted]
    return Problem(
        type=QUOTA_EXCEEDED,
        title="Quota Exceeded",
        status=status,
        detail=f"{_allowed(binding)}; {_way_out(binding, _seconds(answer))}.",
        instance=instance,
        violated=tuple([names[at] for at in refusing]),
        retry_after=_seconds(answer),
    )


def _away(answer: Answer, status: int, instance: str) -> Problem:
    seconds = _seconds(answer)
    when = "" if seconds is None else f"; come back in {_wait(seconds)}"
    return Problem(
        type=REDUCED_CAPACITY,
        title="Temporary Reduced Capacity",
        status=status,
        detail=f"Requests cannot be counted now, and none is let through uncounted{when}.",
        instance=instance,
        violated=(),
        retry_after=seconds,
    )


def _blocked(answer: Answer, status: int, instance: str) -> Problem:
    if answer.lacks:
        detail = f"This request has to say what it is counted by: {_and(answer.lacks)}."
    else:
        seconds = _seconds(answer)
        until = "" if seconds is None else f" for another {_wait(seconds)}"
        detail = f"Requests like this are blocked{until}."
    return Problem(
        title=phrase(status),
        status=status,
        detail=detail,
        instance=instance,
        violated=tuple(map(ascii_name, answer.blocked_by)),
        retry_after=_seconds(answer),
    )


def phrase(status: int) -> str:
    """Return the words of a status, which are the title where the type says no more."""
    try:
        return _RENAMED.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def _seconds(answer: Answer) -> int | None:
    return None if answer.retry_after is None else retry_after_s(answer.retry_after)


def _allowed(quota: Quota) -> str:
    """Say what is allowed: `100 requests a minute are allowed for this user`."""
    limit = quota.limit
    count = limit.quota
    thing = "request" if quota.cost == 1 else "unit"
    things, are = (thing, "is") if count == 1 else (f"{thing}s", "are")
    whom = f" for this {_and(quota.per)}" if quota.per else ""
    if isinstance(limit, Concurrency):
        return f"{count:,} {things} at a time {are} allowed{whom}"
    said = f"{count:,} {things} {_every(limit)} {are} allowed{whom}"
    if limit.capacity != limit.quota:
        said += f", {limit.capacity:,} at once"
    if limit.min_interval_us:
        said += f", {grammar.duration(limit.min_interval_us)} apart"
    return said


def _way_out(quota: Quota, seconds: int | None) -> str:
    if seconds is None:
        if quota.cost > quota.limit.capacity:
            return f"this one counts {quota.cost:,}, which never fits"
        return "waiting does not help"
    wait = _wait(seconds)
    if isinstance(quota.limit, Concurrency):
        return f"come back when one of them is done, or in {wait}"
    return f"come back in {wait}"


def _every(limit: Limit) -> str:
    if not limit.period_us:
        return f"a {limit.period}"
    words = grammar.duration(limit.period_us)
    number, _, unit = words.partition(" ")
    if number == "1" and unit:
        return f"an {unit}" if unit == "hour" else f"a {unit}"
    return f"every {words}"


def _wait(seconds: int) -> str:
    """Say a wait in one unit, rounded up: who waits so long has waited long enough."""
    for unit_s, unit in _UNITS_S:
        if seconds > 2 * unit_s:
            return f"{-(-seconds // unit_s):,} {unit}"
    return f"{seconds} s"


def _and(names: tuple[str, ...]) -> str:
    return " and ".join([_WORDS.get(name, name.replace("_", " ")) for name in names])


def form_of(accept: str) -> Form:
    """Return the form that `Accept` likes best; an empty one has no wish.

    Several headers of that name are joined by commas.
    """
    return _form_of(accept[:_MAX_ACCEPT])


def page(title: str, detail: str, reference: str = "") -> str:
    """Return a page that says what happened. The reference, if any, is for who asks for help."""
    small = f"<p><small>{escape(reference)}</small></p>\n" if reference else ""
    return _PAGE.format(title=escape(title), detail=escape(detail), reference=small)


@lru_cache(maxsize=256)
def _form_of(accept: str) -> Form:
    weights = _weights(accept)

    def liking(form: Form) -> float:
        return next((weights[name] for name in _ASKED_BY[form] if name in weights), 0.0)

    return max(_ASKED_BY, key=liking)


def _weights(accept: str) -> dict[str, float]:
    """Return how much each range of media types is liked, from 0 to 1."""
    found: dict[str, float] = {}
    for item in accept.lower().split(",", _MAX_RANGES)[:_MAX_RANGES]:
        name, *parameters = [part.strip(OPTIONAL_WHITESPACE) for part in item.split(";")]
        weight = _weight(parameters)
        if weight is None:
            continue
        if name == "*":
            name = "*/*"
        elif name.endswith("+json") and name != "application/problem+json":
            name = "application/json"
        found[name] = max(weight, found.get(name, 0.0))
    return found


def _weight(parameters: list[str]) -> float | None:
    """Return the `q` among the parameters of a range; None when it is none."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.rstrip(OPTIONAL_WHITESPACE) == "q":
            value = value.strip(OPTIONAL_WHITESPACE)
            return min(float(value), 1.0) if _WEIGHT.fullmatch(value) else None
    return 1.0

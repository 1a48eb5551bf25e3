"""A refusal has the form its client asks for, and no form says more than another."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen import Limiter
from limen.engine import Engine
from limen.http import Answer, Quota, Refusal, answer_of, answer_of_verdict, refusal, shedding
from limen.http.problem import form_of, page
from limen.model import Limit
from limen.rules import parse_text
from limen.testing import ManualClock

PROBLEM, HTML, TEXT = "application/problem+json", "text/html", "text/plain"
CHROME = (
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;"
    "q=0.8,application/signed-exchange;v=b3;q=0.7"
)
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
JAVA = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        # Who says nothing, or likes everything alike, is a program.
        ("", PROBLEM),
        ("*/*", PROBLEM),
        ("*", PROBLEM),
        ("*/*;q=0.1", PROBLEM),
        ("text/html, */*", PROBLEM),
        ("application/json, text/plain, */*", PROBLEM),  # axios
        ("text/html, application/problem+json", PROBLEM),
        # Browsers.
        (CHROME, HTML),
        (FIREFOX, HTML),
        (JAVA, HTML),
        ("text/html", HTML),
        ("TEXT/HTML", HTML),
        ("text/html;level=1", HTML),
        ("text/html, text/plain, */*;q=0.01", HTML),  # lynx
        ("text/*", HTML),
        ("text/*, text/html;q=0", TEXT),
        # Text.
        ("text/plain", TEXT),
        ("text/plain; charset=utf-8", TEXT),
        ("text/plain, text/html;q=0.9, */*;q=0.8", TEXT),
        ("text/html;q=0.5, text/plain;q=0.500, */*;q=0.4", HTML),
        ("text/html;q=0.5,text/plain;q=0.501", TEXT),
        # Any JSON is read by who reads this one.
        ("application/json", PROBLEM),
        ("application/json, text/html;q=0.9", PROBLEM),
        ("application/vnd.api+json, text/html;q=0.9", PROBLEM),
        ("application/json;q=0.5, text/html;q=0.9", HTML),
        ("application/*, text/html;q=0.9", PROBLEM),
        # The most specific range counts, wherever it stands.
        ("*/*, application/problem+json;q=0.1", HTML),
        ("application/problem+json;q=0, */*", HTML),
        ("application/problem+json;q=0, text/html;q=0, */*", TEXT),
        ("application/problem+json, application/json;q=0", PROBLEM),
        ("text/plain;q=0.2, text/*;q=0.9, */*;q=0.8, text/html;q=0.1", PROBLEM),
        # Never a 406.
        ("image/png", PROBLEM),
        ("*/*;q=0", PROBLEM),
        ("text/html;q=0", PROBLEM),
        # What cannot be understood is not counted.
        ("text/html;q=high, text/plain;q=0.1", TEXT),
        ("text/html;q=, text/plain;q=0.1", TEXT),
        ("text/html;q=-1, text/plain;q=0.1", TEXT),
        ("text/html;q=٣, text/plain;q=0.1", TEXT),
        ("text/html;q=nan, text/plain;q=0.1", TEXT),
        ("text/plain;q=0.9, text/html;q=7", HTML),
        ("text/plain;q=7, text/html", HTML),
        ("text/plain ; Q = 0.9 ,\ttext/html\t;\tq=0.8", TEXT),
        (";;;,,,==q;q=1", PROBLEM),
        ("text/html, text/html;q=0.1, */*;q=0.5", HTML),
    ],
)
def test_the_form_is_what_is_liked_best(accept: str, form: str) -> None:
    assert form_of(accept) == form


@given(st.text(max_size=60) | st.text('texhmlapicon/*+j;q=01.5, "\\', max_size=80))
@example("\x00")
@example("q" * 100_000)
def test_no_header_makes_it_fail(accept: str) -> None:
    assert form_of(accept) in (PROBLEM, HTML, TEXT)


def test_of_a_long_header_only_the_beginning_is_read() -> None:
    """Who is refused must not make that costly."""
    assert form_of("a/b," * 31 + "text/html") == HTML
    assert form_of("a/b," * 32 + "text/html") == PROBLEM
    assert form_of("a" * 990 + ",text/html") == HTML
    assert form_of("a" * 1_000 + ",text/html") == PROBLEM


class Page(HTMLParser):
    """Reads a page, and sees that each element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        assert not {"src", "href", "onload", "action"} & {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data


def read(body: bytes) -> Page:
    found = Page()
    found.feed(body.decode())
    found.close()
    assert not found.open
    return found


def refused(accept: str | None, instance: str = "", status: int | None = None) -> Refusal:
    limiter = Limiter(clock=ManualClock())
    limiter.check(SECRET, "1/hour")
    answer = answer_of(limiter.check(SECRET, "1/hour"))
    return refusal(answer, accept=accept, instance=instance, status=status)


def test_a_program_gets_a_problem_document() -> None:
    asked, unasked = refused("*/*"), refused(None)
    assert asked.body == unasked.body
    assert msgspec.json.decode(asked.body)["retry-after"] == 3_600
    assert unasked.headers[:2] == [("Content-Type", PROBLEM), ("Cache-Control", "no-store")]
    assert asked.headers == [*unasked.headers[:2], ("Vary", "Accept"), *unasked.headers[2:]]
    assert "Vary" not in dict(unasked.headers)
    assert refused("").headers == asked.headers


def test_a_person_gets_a_page() -> None:
    told = refused(CHROME, "urn:limen:7")
    assert told.headers[:4] == [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Language", "en"),
        ("Cache-Control", "no-store"),
        ("Vary", "Accept"),
    ]
    assert (told.status, dict(told.headers)["Retry-After"]) == (429, "3600")
    found = read(told.body)
    assert found.text["title"] == found.text["h1"] == "Quota Exceeded"
    assert found.text["p"] == "1 request an hour is allowed; come back in 60 minutes."
    assert found.text["small"] == "urn:limen:7"
    assert not {"script", "link", "img", "iframe", "form"} & {*found.tags}
    # Readable on a telephone, and in the dark; without asking anybody for anything.
    page = told.body.decode()
    assert '<html lang="en">' in page
    assert 'name="color-scheme" content="light dark"' in page
    assert 'name="viewport"' in page
    assert "url(" not in page
    assert "http" not in page
    assert len(page) < 1_000
    assert "small" not in read(refused(CHROME).body).tags


def test_a_terminal_gets_a_sentence() -> None:
    told = refused("text/plain", "urn:limen:7")
    assert told.headers[:2] == [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Language", "en"),
    ]
    assert told.body == b"1 request an hour is allowed; come back in 60 minutes.\n"


@pytest.mark.parametrize("accept", [None, "", "text/html", "text/plain"])
def test_shedding_has_the_same_forms(accept: str | None) -> None:
    told = shedding(2.5, accept=accept, instance="urn:limen:7")
    assert told.status == 503
    sent = dict(told.headers)
    assert sent["Retry-After"] == "3"
    assert sent["Cache-Control"] == "no-store"
    assert sent.get("Vary") == (None if accept is None else "Accept")
    assert sent["Content-Type"].partition(";")[0] == (accept or PROBLEM)
    sentence = "The server has too much to do at the moment; come back in 3 s."
    assert sentence in told.body.decode()
    if accept == "text/html":
        assert read(told.body).text["h1"] == "Temporary Reduced Capacity"


RULES = """\
rules:
  - {name: per-user, key: [user, api_key], limits: 1/day}
  - {name: evil, match: {path: /evil}, mode: block}
  - {name: named, match: {path: /named}, key: [tenant], missing: deny, limits: 1/day}
"""


@pytest.mark.parametrize("accept", ["*/*", "text/html", "text/plain"])
@pytest.mark.parametrize("path", [SECRET, "/evil", "/named"])
def test_no_form_tells_a_value(accept: str, path: str) -> None:
    engine = Engine(parse_text(RULES), Limiter())
    request = {"user": SECRET, "api_key": SECRET, "path": path}
    while (verdict := engine.decide(request)).allowed:
        pass
    told = refusal(answer_of_verdict(verdict), accept=accept)
    assert dict(told.headers)["Content-Type"].startswith(accept if accept != "*/*" else PROBLEM)
    assert SECRET not in str(told)
    assert path not in str(told)
    document = msgspec.json.decode(refusal(answer_of_verdict(verdict)).body)
    if accept == "text/plain":
        assert told.body.decode() == f"{document['detail']}\n"
    if accept == "text/html":
        assert read(told.body).text["p"] == document["detail"]


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
@example("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;'{title}")
def test_a_page_is_escaped_whatever_it_says(title: str, detail: str, reference: str) -> None:
    found = read(page(title, detail, reference).encode())
    usual = read(page("t", "d", "r" if reference else "").encode())
    assert found.tags == usual.tags
    for tag, said in (("h1", title), ("p", detail), ("small", reference)):
        if said.strip() and "\r" not in said and "\x00" not in said:
            assert found.text[tag] == said


def test_odd_names_of_attributes_are_escaped() -> None:
    quota = Quota("n", Limit(1, 60), False, 0, 9.0, 9.0, per=("<b>user</b>", "größe"))
    told = refusal(Answer(False, (quota,), 9.0), accept="text/html")
    assert read(told.body).text["p"] == (
        "1 request a minute is allowed for this <b>user</b> and größe; come back in 9 s."
    )
    told = refusal(Answer(False, (quota,), 9.0), accept="text/plain")
    assert "größe" in told.body.decode("utf-8")

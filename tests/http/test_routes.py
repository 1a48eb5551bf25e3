"""However a path is spelt, it is the same endpoint."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.errors import ConfigurationError
from limen.http import Routes, normal_path

ROUTES = Routes(
    [
        "/",
        "/login",
        "/users",
        "/users/me",
        "/users/{id}",
        "/users/{user_id:int}/posts/{post}",
        "/users/me/posts/{post}",
        "/files/{path:path}",
        "/files/readme",
        "/files/{name}/raw",
        "/a/b/d",
        "/a/{x}/c",
        "/a/{x}/{y}/e",
        "/caf%C3%A9/{id}",
    ]
)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/", "/"),
        ("", "/"),
        ("?x=1", "/"),
        ("/login", "/login"),
        ("/users/17", "/users/{id}"),
        ("/users/18", "/users/{id}"),
        ("/users/me", "/users/me"),
        ("/users/mee", "/users/{id}"),
        ("/users/17/posts/3", "/users/{user_id:int}/posts/{post}"),
        ("/users/me/posts/3", "/users/me/posts/{post}"),
        ("/users/17/posts", None),
        ("/nowhere", None),
        # Most specific first, also where the more specific way ends in nothing.
        ("/a/b/d", "/a/b/d"),
        ("/a/b/c", "/a/{x}/c"),
        ("/a/b/d/e", "/a/{x}/{y}/e"),
        ("/files/readme", "/files/readme"),
        ("/files/x/raw", "/files/{name}/raw"),
        ("/files/x/y/raw", "/files/{path:path}"),
        ("/files", "/files/{path:path}"),
        ("/files/", "/files/{path:path}"),
        # Slashes.
        ("/users/", "/users"),
        ("/users/17/", "/users/{id}"),
        ("//users///17//", "/users/{id}"),
        ("/login//", "/login"),
        # Dot segments.
        ("/a/../login", "/login"),
        ("/a/b/../../login", "/login"),
        ("/./login/.", "/login"),
        ("/../../login", "/login"),
        ("/users/17/..", "/users"),
        ("/login/...", None),
        ("/users/..17", "/users/{id}"),
        ("/users/.well-known", "/users/{id}"),
        # Percent-encoding, once.
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("/%256cogin", None),
        ("/users/%31%37", "/users/{id}"),
        ("/users%2F17", "/users/{id}"),
        ("/users%2f17", "/users/{id}"),
        ("%2Flogin", "/login"),
        ("/a/%2e%2e/login", "/login"),
        ("/a/%2E./login", "/login"),
        ("/a%2F..%2Flogin", "/login"),
        ("/users/a%2Fb", "/users/{id}"),
        ("/users/%2e%2e%2f%2e%2e", "/"),
        ("/users/%252e%252e", "/users/{id}"),
        ("/caf%C3%A9/1", "/caf%C3%A9/{id}"),
        ("/café/1", "/caf%C3%A9/{id}"),
        ("/users/%zz", "/users/{id}"),
        ("/users/%", "/users/{id}"),
        ("/users/%FF%FE", "/users/{id}"),
        ("/users/%00", "/users/{id}"),
        # What is not the path.
        ("/login?next=/users/17", "/login"),
        ("/login#top", "/login"),
        ("/users/17?a=%2F", "/users/{id}"),
        ("http://example.com/login", "/login"),
        ("https://example.com", "/"),
        ("https://example.com?x", "/"),
        ("*", None),
        ("login", None),
        ("example.com:443", None),
        # The case counts.
        ("/Login", None),
        ("/USERS/17", None),
    ],
)
def test_a_path_has_its_template(path: str, template: str | None) -> None:
    assert ROUTES.template_of(path) == template


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/users/17", "/users/{id}"),
        ("/%6cogin", None),
        ("/users/%2e%2e", "/users/{id}"),
        ("/café/1", "/caf%C3%A9/{id}"),
        ("/users/what?", "/users/{id}"),
        ("/users//17/", "/users/{id}"),
        ("/a/../login", "/login"),
        ("", "/"),
    ],
)
def test_what_is_decoded_is_not_decoded_again(path: str, template: str | None) -> None:
    assert ROUTES.template_of(path, decoded=True) == template


def test_what_others_take_for_part_of_a_segment_does_not_escape() -> None:
    routes = Routes(["/users/{id}", "/files/{path:path}"])
    assert routes.template_of("/users/a%2Fb") == "/users/{id}"
    assert routes.template_of("/users/%2e%2e") == "/users/{id}"
    assert routes.template_of("/files/../other") == "/files/{path:path}"
    assert routes.template_of("/files/../other", decoded=True) == "/files/{path:path}"


def test_a_template_is_decoded_once_too() -> None:
    routes = Routes(["/%2541"])
    assert routes.template_of("/%2541") == routes.template_of("/%41", decoded=True) == "/%2541"
    assert routes.template_of("/%41") is None


def test_case_may_be_ignored() -> None:
    routes = Routes(["/Login", "/users/{id}"], case_sensitive=False)
    assert routes.template_of("/lOGIN") == "/Login"
    assert routes.template_of("/LOGIN/") == "/Login"
    assert routes.template_of("/%4Cogin") == "/Login"
    assert routes.template_of("/USERS/Me") == "/users/{id}"


def test_of_two_templates_of_one_form_the_first_names_both() -> None:
    routes = Routes(
        ["/users/{id}", "/users/{name}/", "/users/{id}", "/x/", "/x", "/f/{a:path}", "/f/{b:path}"]
    )
    assert routes.template_of("/users/17") == "/users/{id}"
    assert routes.template_of("/x") == routes.template_of("/x/") == "/x/"
    assert routes.template_of("/f/1/2") == "/f/{a:path}"


def test_a_catch_all_at_the_root_takes_what_is_left() -> None:
    routes = Routes(["/{path:path}", "/users/{id}"])
    assert routes.template_of("/users/17") == "/users/{id}"
    assert routes.template_of("/users/17/18") == "/{path:path}"
    assert routes.template_of("/") == "/{path:path}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("users", "begins with '/', got 'users'"),
        (7, "begins with '/', got 7"),
        ("", "begins with '/'"),
        ("/users/{id", "a whole segment, such as {id} or {path:path}, got '{id'"),
        ("/users/id}", "a whole segment"),
        ("/users/v{id}", "a whole segment"),
        ("/users/{a}{b}", "a whole segment"),
        ("/users/{}", "a whole segment"),
        ("/users/{id:regex}", "a whole segment"),
        ("/{path:path}/raw", "must come last"),
        ("/a/../b", "no dot segments"),
        ("/a/%2e%2e/b", "no dot segments"),
        ("/a%2Fb", "encoded slashes"),
        ("/a?b=c", "no dot segments, query"),
        ("/" + "a" * 1_000, "at most 1,000 characters"),
        ("/a" * 65, "64 segments"),
    ],
)
def test_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Routes([template])


def test_too_many_templates_and_a_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 10,000 templates, got 10,001"):
        Routes([f"/{number}" for number in range(10_001)])
    with pytest.raises(ConfigurationError, match="must be a list"):
        Routes("/users")


SEGMENTS = st.text(
    st.characters(exclude_characters="/", codec="utf-8"), min_size=1, max_size=8
).filter(lambda text: text not in (".", ".."))


@given(st.lists(SEGMENTS, min_size=1, max_size=5), st.data())
def test_no_spelling_of_a_path_is_another_path(segments: list[str], data: st.DataObject) -> None:
    plain = "/" + "/".join(segments)
    assert normal_path(plain, decoded=True) == plain
    spelt = ""
    for segment in segments:
        spelt += data.draw(
            st.sampled_from(["/", "//", "/./", "/x/../", "%2F", "/%2e/", "/x/%2E%2e/"])
        )
        for char in segment:
            must = char in "%?#" or not char.isascii()
            encode = must or data.draw(st.booleans())
            spelt += "".join(f"%{byte:02x}" for byte in char.encode()) if encode else char
    spelt += data.draw(st.sampled_from(["", "/", "?q=/../", "#f", "/.", "/x/..", "%2f"]))
    assert normal_path(spelt) == plain
    assert normal_path(quote(plain)) == plain
    routes = Routes(["/known/{id}", "/a/{rest:path}"])
    assert routes.template_of(spelt) == routes.template_of(plain, decoded=True)


@given(st.lists(SEGMENTS, min_size=1, max_size=3))
def test_every_value_of_a_parameter_is_one_endpoint(segments: list[str]) -> None:
    routes = Routes(["/users/{id}", "/f/{path:path}"])
    for segment in segments:
        assert routes.template_of("/users/" + quote(segment, safe="")) == "/users/{id}"
    path = "/".join(quote(segment, safe="") for segment in segments)
    assert routes.template_of("/f/" + path) == "/f/{path:path}"


@given(st.text(max_size=40) | st.text("/.%2eEfF?#*:", max_size=40))
def test_any_text_has_one_normal_form(path: str) -> None:
    once = normal_path(path, decoded=True)
    assert normal_path(once, decoded=True) == once
    normal_path(path)
    ROUTES.template_of(path)


def test_a_lookup_among_a_thousand_templates_takes_microseconds() -> None:
    templates = [f"/v{n % 3}/things{n % 40}/{{id}}/parts{n}/{{part}}" for n in range(1_000)]
    paths = [f"/v{n % 3}/things{n % 40}/{n}/parts{n}/x" for n in range(1_000)]
    routes = Routes(templates)
    assert [routes.template_of(path) for path in paths] == templates
    best = min(timed(routes, paths) for _ in range(5))
    assert best / len(paths) < 30e-6


def test_a_path_is_not_made_slow_by_its_length() -> None:
    # Every way through this tree is open until its last segment.
    routes = Routes(
        ["/" + "/".join(["{x}" if n >> at & 1 else "a" for at in range(9)]) for n in range(512)]
    )
    for path in ("/a" * 8, "/a" * 10, "/a" * 30_000, "/.." * 20_000, "/%2e%2e%2f" * 6_000):
        assert routes.template_of(path) is None
        assert min(timed(routes, [path]) for _ in range(5)) < 0.05


def timed(routes: Routes, paths: list[str]) -> float:
    start = time.thread_time()  # the work, not the wait for a core
    for path in paths:
        routes.template_of(path)
    return time.thread_time() - start

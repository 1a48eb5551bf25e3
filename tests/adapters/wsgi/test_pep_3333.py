"""What servers and applications may expect of a WSGI middleware, called as a server calls it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import httpx2
import pytest

from limen import Concurrency, ConfigurationError, Limiter
from limen.adapters import RateLimit
from limen.adapters.manner import manner_of
from limen.adapters.wsgi import RateLimitMiddleware, WsgiRequest
from limen.testing import ManualClock

SLOT = RateLimit(Concurrency(1, lease=30))


class Server:
    """Calls an application, and writes down what it is told."""

    def __init__(self, app: Any, **environ: Any) -> None:
        self.environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7", **environ}
        setup_testing_defaults(self.environ)
        self.started: list[tuple[Any, ...]] = []
        self.written = b""
        self.body = app(self.environ, self.start)

    def start(self, *told: Any) -> Callable[[bytes], None]:
        self.started.append(told)
        return self.write

    def write(self, data: bytes) -> None:
        self.written += data

    @property
    def header(self) -> dict[str, str]:
        return dict(self.started[-1][1])

    def send(self) -> bytes:
        try:
            return self.written + b"".join(self.body)
        finally:
            self.close()

    def close(self) -> None:
        if hasattr(self.body, "close"):
            self.body.close()


class Body:
    """What an application may return: only to be iterated and closed."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.taken = 0
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.taken += 1
            yield chunk

    def close(self) -> None:
        self.closed += 1


def returning(body: Any) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return body

    return app


def is_free(limiter: Limiter) -> bool:
    slot = limiter.slot("ip=192.0.2.7", Concurrency(1, lease=30))
    decision = slot.acquire()
    slot.release()
    return decision.allowed


def test_both_sides_keep_to_the_protocol() -> None:
    class Silent(WSGIRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    checked = validator(
        RateLimitMiddleware(validator(returning([b"hello"])), Limiter(), "2/hour", SLOT)
    )
    with make_server("127.0.0.1", 0, checked, handler_class=Silent) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            found = [httpx2.request(method, url) for method in ("GET", "HEAD", "HEAD", "GET")]
            assert [answer.status_code for answer in found] == [200, 200, 429, 429]
            assert [len(answer.content) > 0 for answer in found] == [True, False, False, True]
        finally:
            server.shutdown()
            thread.join(20)


def test_takes_one_chunk_at_a_time_and_lets_go_when_it_is_closed() -> None:
    limiter, body = Limiter(), Body(b"one", b"two", b"three")
    server = Server(RateLimitMiddleware(returning(body), limiter, SLOT))
    chunks = iter(server.body)
    assert body.taken == 0
    assert next(chunks) == b"one"
    assert body.taken == 1
    assert not is_free(limiter)
    server.close()
    assert body.closed == 1
    assert is_free(limiter)


def test_lets_go_at_the_end_also_of_a_server_that_does_not_close() -> None:
    limiter = Limiter()
    server = Server(RateLimitMiddleware(returning(Body(b"one", b"two")), limiter, SLOT))
    assert list(server.body) == [b"one", b"two"]
    assert is_free(limiter)


def test_lets_go_also_when_the_application_fails_to_close() -> None:
    class Broken(Body):
        def close(self) -> None:
            raise RuntimeError("on purpose")

    limiter = Limiter()
    server = Server(RateLimitMiddleware(returning(Broken(b"x")), limiter, SLOT))
    with pytest.raises(RuntimeError, match="on purpose"):
        server.send()
    assert is_free(limiter)


@pytest.mark.parametrize("body", [None, 42])
def test_lets_go_when_an_application_returns_nonsense(body: Any) -> None:
    limiter = Limiter()
    with pytest.raises(TypeError):
        Server(RateLimitMiddleware(returning(body), limiter, SLOT))
    assert is_free(limiter)


def test_passes_on_what_a_server_sends_best_as_it_is() -> None:
    body = [b"hello"]
    assert Server(RateLimitMiddleware(returning(body), Limiter(), "1/hour")).body is body
    with open(__file__, "rb") as source:  # noqa: PTH123  # what a server is given
        file = FileWrapper(source)
        app = RateLimitMiddleware(returning(file), Limiter(), "1/hour")
        assert Server(app, **{"wsgi.file_wrapper": FileWrapper}).body is file
    # Not so a generator, which may still say what it costs.
    assert Server(RateLimitMiddleware(returning(Body()), Limiter(), "1/hour")).body is not body


def test_an_application_may_start_with_its_first_chunk() -> None:
    def late(environ: Any, start_response: Any) -> Iterable[bytes]:
        yield b""
        start_response("200 OK", [])
        yield b"late"

    server = Server(RateLimitMiddleware(late, Limiter(clock=ManualClock()), "2/hour"))
    assert server.started == []
    assert server.send() == b"late"
    assert server.header["RateLimit"] == '"2/hour";r=1;t=3600'


def test_what_is_written_counts_as_sent() -> None:
    def writes(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"12345")
        return [b"678"]

    limiter = Limiter()
    limit = RateLimit("100/hour", settle=lambda response: response.bytes_sent)
    assert Server(RateLimitMiddleware(writes, limiter, limit)).send() == b"12345678"
    assert limiter.peek("ip=192.0.2.7", "100/hour").remaining == 92


def test_an_application_may_start_anew_after_an_error() -> None:
    def fails(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("X-Own", "first")])
        try:
            raise RuntimeError("on purpose")
        except RuntimeError:
            start_response("500 Internal Server Error", [("X-Own", "second")], sys.exc_info())
        return [b"sorry"]

    seen: list[int] = []

    def looks(response: Any) -> bool:
        seen.append(response.status)
        return True

    limit = RateLimit("9/hour", deduct_when=looks)
    server = Server(RateLimitMiddleware(fails, Limiter(clock=ManualClock()), limit))
    assert server.send() == b"sorry"
    (first, second) = server.started
    assert len(first) == 2
    assert second[2][0] is RuntimeError
    assert second[1] == [
        ("X-Own", "second"),
        ("RateLimit-Policy", '"9/hour";q=9;w=3600'),
        ("RateLimit", '"9/hour";r=8;t=3600'),
    ]
    assert seen == [200, 500]


def test_the_headers_of_the_application_are_left_alone() -> None:
    own = [("RateLimit", '"own";r=1'), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", own)
        return []

    server = Server(RateLimitMiddleware(app, Limiter(clock=ManualClock()), "2/hour"))
    assert server.started[-1][1] == [
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("RateLimit-Policy", '"2/hour";q=2;w=3600'),
        ("RateLimit", '"2/hour";r=1;t=3600'),
    ]
    assert len(own) == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"PATH_INFO": "/\xff\xfe/%"},
        {"PATH_INFO": "/\u20ac", "SCRIPT_NAME": None},
        {"PATH_INFO": None, "REQUEST_METHOD": ""},
        {"REMOTE_USER": 42, "HTTP_ACCEPT": None},
        {"HTTP_X_FORWARDED_FOR": b"192.0.2.1", "CONTENT_TYPE": 0},
        {"REMOTE_ADDR": "192.0.2.7", "HTTP_ACCEPT": "text/html;q=x,,;=" * 500},
    ],
    ids=str,
)
def test_an_odd_environ_never_crashes(odd: dict[str, Any]) -> None:
    limits = ("1/hour", RateLimit("9/hour", key=("ip", "route")))
    app = RateLimitMiddleware(returning([b""]), Limiter(), *limits, routes=["/{rest:path}"])
    for status in ("200", "429"):
        server = Server(app, **odd)
        server.send()
        assert server.started[-1][0].startswith(status)


def test_an_environ_with_nothing_in_it_can_be_read() -> None:
    request = WsgiRequest({}, manner_of({}))
    assert (request.method, request.path, request.peer, request.user) == ("GET", "/", None, None)
    assert request.header("content-type") == request.header("x-any") == ()
    assert request.attributes() == {"method": "GET", "path": "/"}


def test_the_whole_path_is_where_the_application_is_mounted_and_the_rest() -> None:
    environ = {"SCRIPT_NAME": "/shop", "PATH_INFO": "/caf\xc3\xa9", "CONTENT_TYPE": "text/plain"}
    request = WsgiRequest(environ, manner_of({}))
    assert request.path == "/shop/café"
    assert request.header("content-type") == ("text/plain",)


def test_a_second_call_with_the_same_environ_is_another_request() -> None:
    limited = RateLimitMiddleware(returning([b"page"]), Limiter(), "5/minute", SLOT)
    first = Server(limited)
    first.send()
    again = dict(first.environ)
    told: list[Any] = []
    limited(again, lambda *start: told.append(start) or (lambda data: None))  # type: ignore[func-returns-value]
    assert dict(told[0][1])["RateLimit"].startswith('"5/minute";r=3;')


def test_an_application_that_raises_is_a_500_for_deduct_when() -> None:
    def fail(environ: Any, start: Any) -> Any:
        raise ZeroDivisionError

    limit = RateLimit("1/hour", deduct_when=lambda response: response.status_code == 401)
    limited = RateLimitMiddleware(fail, Limiter(), limit)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            Server(limited)


def test_who_has_no_address_is_an_error_that_says_what_to_do() -> None:
    app = RateLimitMiddleware(returning([b""]), Limiter(), "1/hour")
    with pytest.raises(ConfigurationError, match="let the proxy in front say it"):
        Server(app, REMOTE_ADDR="")

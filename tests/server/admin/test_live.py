"""A stream tells what happens, once, in one line each; and it ends when it should."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from redis import Redis

from limen.connect import target_of
from limen.observe import recent
from limen.observe.board import Board
from limen.observe.recent import DecisionRecord
from limen.server.admin import PREFIX, live
from limen.server.admin.live import (
    MAX_BEHIND,
    MAX_STREAMS,
    MAX_TOKEN_STREAMS,
    Live,
    LiveAlert,
    LiveDecision,
    LiveEnd,
    LiveHello,
    LiveStats,
)
from tests import servers
from tests.server.admin.driving import ADMIN, RULES, Driven, driven, settings_of
from tests.server.product import product
from tests.server.raw import Raw, request
from tests.waiting import wait_until_async

MODELS: dict[str, type[msgspec.Struct]] = {
    "hello": LiveHello,
    "stats": LiveStats,
    "decision": LiveDecision,
    "alert": LiveAlert,
    "end": LiveEnd,
}
STRANGE = 'user:\r\n\ndata: {}\n\nevent: end\x00\x1b[31m\u2028"}Ω'
PATIENCE_S = 15.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TURN_S", 0.05)


class Listener:
    """One stream, and what came by it."""

    def __init__(self, service: Driven, query: str, token: str) -> None:
        self._app = service.app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": f"{PREFIX}/live",
            "raw_path": f"{PREFIX}/live".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 1),
        }
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.is_over = False
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = asyncio.Event()
        self._was_asked = False
        self.task = asyncio.create_task(self._app(self._scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._was_asked:
            self._was_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            found = [(name.decode(), value.decode()) for name, value in message["headers"]]
            self.headers = dict(found)
            assert len(self.headers) == len(found)
            return
        await self.reads.wait()
        self.text += message["body"].decode()
        self.is_over = not message.get("more_body", False)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """All events so far, each held against its description."""
        assert "\r" not in self.text
        found = []
        for number, block in enumerate(self._blocks("id: "), 1):
            assert block[0] == f"id: {number}"
            name, data = block[1].removeprefix("event: "), block[2].removeprefix("data: ")
            assert len(block) == 3
            message = msgspec.json.decode(data, type=MODELS[name])
            assert json.loads(msgspec.json.encode(message)) == json.loads(data)
            found.append((name, json.loads(data)))
        return found

    def _blocks(self, start: str) -> Iterator[list[str]]:
        for block in self.text.split("\n\n"):
            if block.startswith(start):
                yield block.split("\n")

    def named(self, name: str) -> list[Any]:
        return [data for each, data in self.events if each == name]

    async def until(self, holds: Callable[[], object]) -> None:
        await wait_until_async(holds, PATIENCE_S, details=lambda: self.text)

    async def leave(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, PATIENCE_S)


@asynccontextmanager
async def listening(
    service: Driven, query: str = "", token: str = ADMIN
) -> AsyncIterator[Listener]:
    """Open a stream, which has said hello; close it."""
    listener = Listener(service, query, token)
    try:
        await listener.until(lambda: listener.text or listener.task.done())
        yield listener
    finally:
        listener.reads.set()
        await listener.leave()


async def check(service: Driven, *users: str, path: str = "/search/x") -> None:
    asked = [{"attributes": {"user": user, "path": path}} for user in users]
    answer = await service._ask(
        *("POST", "/v1/check", json.dumps(asked).encode()),
        {"authorization": f"Bearer {ADMIN}"},
    )
    assert answer.status == 200


def run(service: Driven, work: Coroutine[Any, Any, None]) -> None:
    service.run(asyncio.wait_for(work, 60))


def test_a_stream_says_hello_and_then_how_things_are(service: Driven) -> None:
    async def work() -> None:
        async with listening(service) as one:
            assert (one.status, one.headers["content-type"]) == (200, "text/event-stream")
            assert one.headers["cache-control"] == "no-store"
            assert one.headers["x-accel-buffering"] == "no"
            assert one.headers["x-request-id"]
            assert one.text.startswith("retry: 2000\n\nid: 1\nevent: hello\n")
            [hello] = one.named("hello")
            assert hello["instance"] == service.service.id
            assert hello["events"] == ["stats", "decision", "alert"]
            await check(service, *["42"] * 5)
            await service.service.insight.turn()
            await one.until(lambda: one.named("stats") and one.named("stats")[-1]["rules"])
            await one.until(lambda: len(one.named("stats")) >= 3)
            told = one.named("stats")[-1]
            assert (told["shared"], told["instances"], told["store"]) == (False, 1, [])
            assert told["a_second"]["denied"] > 0
            assert [each["rule"] for each in told["rules"]] == ["search-per-user", "per-user"]
            assert not one.is_over

    run(service, work())


def test_a_decision_is_told_once_and_only_when_it_is_new(service: Driven) -> None:
    async def work() -> None:
        await check(service, *["before"] * 5)
        async with listening(service, "events=decision") as one:
            await check(service, *["42"] * 5)
            await one.until(lambda: len(one.named("decision")) >= 2)
            await service.service.insight.turn()
            await check(service, *["7"] * 5)
            await one.until(lambda: len(one.named("decision")) >= 4)
            await asyncio.sleep(0.2)
            told = one.named("decision")
        assert [each["key"] for each in told if not each["allowed"]] == [
            *("user=42", "user=42", "user=7", "user=7")
        ]
        assert [each["at"] for each in told] == sorted(each["at"] for each in told)
        assert {name for name, _ in one.events} == {"hello", "decision"}

    run(service, work())


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("key=user%3D7", {"user=7"}),
        ("rule=search-per-user&allowed=false", {"user=7", "user=42"}),
        ("rule=per-user&allowed=false", set()),
        ("allowed=true", set()),
    ],
)
def test_a_stream_tells_the_decisions_that_were_asked_for(
    service: Driven, query: str, keys: set[str]
) -> None:
    async def work() -> None:
        async with listening(service, query) as one, listening(service) as all_:
            await check(service, *["7", "42"] * 5)
            await all_.until(lambda: len(all_.named("decision")) >= 4)
            turns = len(one.named("stats"))
            await one.until(lambda: len(one.named("stats")) >= turns + 2)
            told = [each for each in one.named("decision") if not each["allowed"]]
            assert {each["key"] for each in told} == keys

    run(service, work())


def test_numbers_of_a_rule_that_was_asked_for_are_told_alone(service: Driven) -> None:
    async def work() -> None:
        async with listening(service, "events=stats&rule=per-user") as one:
            await check(service, *["42"] * 5)
            await service.service.insight.turn()
            await one.until(lambda: one.named("stats") and one.named("stats")[-1]["rules"])
            assert [each["rule"] for each in one.named("stats")[-1]["rules"]] == ["per-user"]

    run(service, work())


def test_of_too_many_decisions_the_newest_are_told_and_the_others_counted(
    service: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_DECISIONS", 5)

    async def work() -> None:
        async with listening(service, "events=decision&allowed=false") as one:
            # In one turn of the loop, so that they are found in one look.
            for user in range(12):
                await check(service, *[str(user)] * 4)
            await one.until(
                lambda: sum(1 + each["left_out"] for each in one.named("decision")) >= 12
            )
            told = one.named("decision")
            assert sum(1 + each["left_out"] for each in told) == 12
            assert told[-1]["key"] == "user=11"

    run(service, work())


def test_an_alert_is_told_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    with driven(settings_of(tmp_path, **{"alerts.least": "5"}), RULES) as service:
        judge, views = service.service.insight.alerts._alone, service.service.insight.view

        async def work() -> None:
            async with listening(service, "events=alert&rule=search-per-user") as one:
                await check(service, *["42"] * 9)
                await service.service.insight.turn()
                await one.until(lambda: len(one.named("alert")) >= 2)
                assert {each["change"] for each in one.named("alert")} == {"began"}
                async with listening(service, "events=stats,alert") as late:
                    assert len(late.named("hello")[0]["alerts"]) == 2
                    await late.until(lambda: late.named("stats"))
                    assert late.named("stats")[0]["alerts"] == 2
                    empty = (await views.picture(10, 0.0)).whole
                    judge.judge(empty, time.time() + 1)
                    judge.judge(empty, time.time() + 60)
                    await one.until(lambda: len(one.named("alert")) >= 4)
                    await late.until(lambda: len(late.named("alert")) >= 2)
                began, ended = one.named("alert")[:2], one.named("alert")[2:]
                assert {each["change"] for each in ended} == {"ended"}
                ids = [{each["alert"]["id"] for each in some} for some in (began, ended)]
                assert ids[0] == ids[1]
                assert all(each["alert"]["ended"] for each in ended)
                async with listening(service, "events=alert") as later:
                    await asyncio.sleep(0.2)
                    assert (later.named("hello")[0]["alerts"], later.named("alert")) == ([], [])

        run(service, work())


def test_whatever_a_key_holds_an_event_is_one_line(service: Driven) -> None:
    async def work() -> None:
        async with listening(service) as one:
            asked = [{"key": STRANGE, "limits": "1/day"}] * 3
            headers = {"authorization": f"Bearer {ADMIN}"}
            await service._ask("POST", "/v1/check", json.dumps(asked).encode(), headers)
            await one.until(lambda: len(one.named("decision")) >= 2)
            assert {each["key"] for each in one.named("decision")} == {STRANGE}
            assert not one.is_over

    run(service, work())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("events=stat", "events: there is no event 'stat' (did you mean 'stats'?)"),
        ("events=", "events: there is no event ''; there are stats, decision, alert"),
        ("events=stats,", "events: there is no event ''"),
        ("allowed=1", "allowed: "),
        ("since=7", "unknown parameter 'since' in the query"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(calm: Driven, query: str, said: str) -> None:
    answer = calm.ask("GET", f"/live?{query}")
    assert (answer.status, said in answer.detail) == (422, True), answer


def test_one_token_has_a_few_streams_and_leaves_the_others_to_others(service: Driven) -> None:
    _, viewer = service.token("viewer")

    async def work() -> None:
        listeners = [Listener(service, "events=alert", viewer) for _ in range(MAX_STREAMS)]
        await listeners[0].until(lambda: all(each.text for each in listeners))
        refused = [each for each in listeners if each.status == 429]
        assert len(refused) == MAX_STREAMS - MAX_TOKEN_STREAMS
        assert "this token has 16 live streams, the most that one token may have" in refused[0].text
        async with listening(service) as one:
            assert one.status == 200
        for each in listeners:
            await each.leave()
        async with listening(service, token=viewer) as one:
            assert one.status == 200

    run(service, work())


def test_only_so_many_may_listen_and_who_leaves_makes_room(service: Driven) -> None:
    viewers = [service.token("viewer")[1] for _ in range(MAX_STREAMS // MAX_TOKEN_STREAMS)]

    async def work() -> None:
        tokens = [token for token in viewers for _ in range(MAX_TOKEN_STREAMS)]
        listeners = [Listener(service, "events=alert", token) for token in tokens]
        for each in listeners:
            await each.until(lambda each=each: each.text)  # type: ignore[misc]  # bound at once
        async with listening(service) as one:
            await one.until(lambda: one.task.done())
            assert (one.status, one.headers["retry-after"]) == (503, "5")
            assert "32 streams are open already" in one.text
        await listeners[0].leave()
        async with listening(service) as one:
            assert one.status == 200
        for each in listeners[1:]:
            await each.leave()

    run(service, work())


def test_all_who_listen_share_one_look(service: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, view = [], service.service.insight.view
    picture = view.picture

    async def counted(window_s: int, now: float) -> Any:
        looks.append(window_s)
        return await picture(window_s, now)

    async def work() -> None:
        monkeypatch.setattr(view, "picture", counted)
        listeners = [Listener(service, "", ADMIN) for _ in range(MAX_TOKEN_STREAMS)]
        for each in listeners:
            await each.until(lambda each=each: len(each.named("stats")) >= 3)  # type: ignore[misc]
        most = max(len(each.named("stats")) for each in listeners)
        # One before the first turn, and those of the tick, which looks for itself.
        assert len(looks) <= most + 5
        for each in listeners:
            await each.leave()
        monkeypatch.setattr(service.service.insight, "turn", lambda: asyncio.sleep(0))
        looks.clear()
        await asyncio.sleep(0.3)
        assert looks == []

    run(service, work())


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_token_that_holds_no_more_ends_its_stream_and_no_other(
    service: Driven, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    token, secret = service.token("viewer")
    access = service.service.access

    async def work() -> None:
        async with listening(service) as other, listening(service, token=secret) as one:
            await one.until(lambda: one.named("stats"))
            if how == "revoked":
                await service.service.books.revoke_token(token.id, "tests")
                await access.refresh(service.service.books)
            else:
                [digest] = [each for each, of in access._known.items() if of.name == "a viewer"]
                expired = structs.replace(access._known[digest], expires=time.time() - 1)
                monkeypatch.setitem(access._known, digest, expired)
            await one.until(lambda: one.is_over)
            assert one.named("end") == [{"reason": "the token does not hold any more"}]
            turns = len(other.named("stats"))
            await other.until(lambda: len(other.named("stats")) > turns)

    run(service, work())


def test_a_stream_ends_after_its_time(service: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_AGE_S", 0.2)

    async def work() -> None:
        async with listening(service) as one:
            await one.until(lambda: one.is_over)
            assert one.named("end") == [{"reason": "an hour is over"}]

    run(service, work())


def test_a_stream_without_events_shows_that_it_lives(
    service: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SILENCE_S", 0.2)

    async def work() -> None:
        async with listening(service, "events=alert") as one:
            await one.until(lambda: one.text.count(": still here\n\n") >= 2)
            assert [name for name, _ in one.events] == ["hello"]

    run(service, work())


def test_who_does_not_read_holds_up_nobody_and_is_let_go(service: Driven) -> None:
    async def work() -> None:
        async with listening(service) as other, listening(service) as one:
            await one.until(lambda: one.named("stats"))
            one.reads.clear()
            turns = len(other.named("stats"))
            await other.until(lambda: len(other.named("stats")) > turns + MAX_BEHIND + 5)
            before = len(one.text)
            one.reads.set()
            await one.until(lambda: one.is_over)
            assert one.named("end") == [{"reason": "too slow to follow"}]
            assert one.text[before:].count("event: stats") <= 1

    run(service, work())


def test_when_the_service_stops_streams_end_and_none_begins(service: Driven) -> None:
    streams: Live = service.app.state.live

    async def work() -> None:
        async with listening(service, "events=alert") as one:
            streams.end()
            await one.until(lambda: one.is_over)
            assert one.named("end") == [{"reason": "the service ends"}]
        async with listening(service) as late:
            await late.until(lambda: late.task.done())
            assert (late.status, late.headers["retry-after"]) == (503, "5")

    run(service, work())


def test_decisions_of_all_processes_are_told_each_once(tmp_path: Path) -> None:
    with servers.process(servers.binaries()["valkey"]) as redis:
        with Redis(port=redis.port) as client:
            client.config_set("requirepass", "canary-redis")
        url = f"redis://:canary-redis@127.0.0.1:{redis.port}"
        with driven(settings_of(tmp_path, **{"store.url": url}), RULES) as service:
            board = Board(target_of(url, asynchronous=True), "limen", "another")

            async def work() -> None:
                await board.write([], [_theirs("old")])
                async with listening(service) as one:
                    await check(service, *["42"] * 5)
                    await service.service.insight.turn()
                    await board.write([], [_theirs("new"), b"no decision"])
                    await one.until(lambda: len(one.named("decision")) >= 3)
                    await asyncio.sleep(0.3)
                    told = one.named("decision")
                    assert len(told) == len({each["at"] for each in told}) == 3
                    assert [each["id"] for each in told if each["instance"] == "another"] == ["new"]
                    stats = one.named("stats")[-1]
                    assert stats["shared"] is True
                    assert [each["state"] for each in stats["store"]] == ["closed"]
                    redis.kill()
                    await one.until(lambda: not one.named("stats")[-1]["shared"])
                    assert len(one.named("decision")) == 3
                    # Neither the password of the store nor a token.
                    assert "canary" not in one.text
                board.close()

            run(service, work())


def _theirs(id_: str) -> bytes:
    return recent.encode(
        DecisionRecord(
            *(time.time(), id_, False, "search-per-user", "3/minute", "user=42", 0, 1.0, 1),
            *("over 3/minute", "2", "store", "", "another", "check"),
        )
    )


def test_the_description_tells_what_a_stream_holds(calm: Driven) -> None:
    described = calm.ask("GET", "//openapi.json", role=None).json
    told = described["paths"][f"{PREFIX}/live"]["get"]
    assert list(told["responses"]["200"]["content"]) == ["text/event-stream"]
    assert set(told["responses"]) == {"200", "401", "403", "422", "429", "503"}
    assert [each["name"] for each in told["parameters"]] == ["events", "rule", "key", "allowed"]
    for model in MODELS.values():
        fields = described["components"]["schemas"][model.__name__]["properties"]
        assert set(fields) == set(model.__struct_fields__)


def test_a_service_with_an_open_stream_ends_at_once(tmp_path: Path) -> None:
    with product(tmp_path, auth__admin_token=ADMIN) as served, Raw(served.admin_port) as raw:
        raw.send(request(f"{PREFIX}/live", f"Authorization: Bearer {ADMIN}"))
        head = raw._until(b"event: stats")
        assert b"200 OK" in head
        assert b"connection: close" in head
        began = time.monotonic()
        served.signal(signal.SIGTERM)
        rest = raw._until(b"0\r\n\r\n")
        assert b'{"reason":"the service ends"}' in rest
        assert raw.ends()
        assert served.code() == 0
        # Without an end of the stream it would be the 30 s that answers have to finish.
        assert time.monotonic() - began < 20
        assert not any("cut off" in line for line in served.complained)

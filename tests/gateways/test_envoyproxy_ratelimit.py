"""Envoy as it is set up for envoyproxy/ratelimit, with limen in that service's place.

What is expected is what that service documents: windows that are aligned to the epoch, and
`X-RateLimit-*` that Envoy writes from its answers: the limit that is nearest, then each limit with
its window; what is left; and the seconds to the end of the window.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateways import gateways, limens
from tests.gateways.app import Answer, ask
from tests.gateways.door import Door
from tests.gateways.limens import Limen
from tests.gateways.places import new_address

FOLDER = gateways.SHIPPED / "envoyproxy-ratelimit"
HOUR, DAY = 3_600, 86_400


class Envoy:
    """One Envoy, whose descriptors do not change, before one limen or the other."""

    def __init__(self, door: Door, imported: Limen, own: Limen) -> None:
        self._door = door
        self._imported = imported
        self._own = own
        self.port = 0

    def before_imported(self) -> Envoy:
        """Ask the limen with the imported rules."""
        self._door.lead_to(self._imported.grpc_port)
        return self

    def before_own(self) -> Envoy:
        """Ask the limen with rules that are written for it."""
        self._door.lead_to(self._own.grpc_port)
        return self

    def ask(self, path: str = "/", *headers: tuple[str, str], of: str) -> Answer:
        return ask(self.port, path, *headers, of=of)

    def message(self, kind: str, number: str) -> Answer:
        headers = (("X-Message-Type", kind), ("X-To-Number", number))
        return self.ask("/messages", *headers, of=new_address())


@pytest.fixture(scope="module")
def started(
    app_port: int, make_door: Callable[[], Door], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Envoy]:
    folder = tmp_path_factory.mktemp("envoyproxy-ratelimit")
    with ExitStack() as stack:
        rules = folder / "imported.yaml"
        imports(rules)
        imported, own = stack.enter_context(
            limens.running(
                Limen(folder / "imported", rules), Limen(folder / "own", FOLDER / "own.yaml")
            )
        )
        envoy = Envoy(make_door(), imported, own).before_imported()
        ports = {"8081": envoy._door.port, "9000": app_port}
        files = (FOLDER / "envoy.yaml",)
        wait = stack.enter_context(gateways.started(gateways.ENVOY, files, str, ports))
        envoy.port = wait()
        yield envoy


def imports(rules: Path) -> None:
    """Import the configuration as a user does."""
    command = [sys.executable, "-m", "limen", "rules", "import-envoy", "config"]
    subprocess.run([*command, "--output", str(rules)], cwd=FOLDER, check=True, capture_output=True)


@pytest.fixture
def imported(started: Envoy) -> Envoy:
    return started.before_imported()


@pytest.fixture
def own(started: Envoy) -> Envoy:
    return started.before_own()


def in_one_window(window: int, requests: Callable[[], list[Answer]]) -> list[Answer]:
    """Return the answers to requests that all came in one window, which is most often the first."""
    while True:
        first = time.time() // window
        answers = requests()
        if time.time() // window == first:
            return answers


def shown(answer: Answer) -> tuple[int, str | None, str | None]:
    """Return the status, and of `X-RateLimit-*` what does not change with time."""
    headers = answer.headers
    return (
        answer.status,
        headers.get("x-ratelimit-limit"),
        headers.get("x-ratelimit-remaining"),
    )


def until_the_end(window: int) -> int:
    """Return the whole seconds to the end of a window, as envoyproxy/ratelimit computes them."""
    return window - int(time.time()) % window


def test_lets_through_and_refuses_as_that_service_does(imported: Envoy) -> None:
    def requests() -> list[Answer]:
        client = new_address()
        return [imported.ask(of=client) for _ in range(12)]

    answers = in_one_window(HOUR, requests)
    allowed = [(200, "10, 10;w=3600", str(9 - number)) for number in range(10)]
    assert [shown(answer) for answer in answers] == [*allowed, *[(429, "10, 10;w=3600", "0")] * 2]
    refused = answers[-1]
    assert refused.headers["x-envoy-ratelimited"] == "true"
    assert int(refused.headers["retry-after"]) <= HOUR, "which that service does not say"


def test_the_window_ends_when_that_of_the_service_does(imported: Envoy) -> None:
    before = until_the_end(HOUR)
    answer = imported.ask(of=new_address())
    after = until_the_end(HOUR)
    assert int(answer.headers["x-ratelimit-reset"]) in (before, after)
    assert f"t={answer.headers['x-ratelimit-reset']}" in answer.headers["ratelimit"]


def test_of_several_descriptors_the_nearest_is_shown_first(imported: Envoy) -> None:
    numbers = iter(range(1_000))

    def requests() -> list[Answer]:
        number = f"+1555{next(numbers)}"
        return [imported.message("marketing", number) for _ in range(6)]

    answers = in_one_window(DAY, requests)
    both = "5, 5;w=86400, 100;w=86400"
    assert [shown(answer) for answer in answers[:5]] == [
        (200, both, str(4 - number)) for number in range(5)
    ]
    assert answers[5].status == 429
    assert answers[5].headers["x-ratelimit-remaining"] == "0"


def test_a_descriptor_without_a_limit_of_its_own_is_left_out(imported: Envoy) -> None:
    answer = imported.message("receipt", "+1666")
    assert shown(answer) == (200, "100, 100;w=86400", "99")


def test_a_limit_of_nothing_refuses_everybody(imported: Envoy) -> None:
    answer = imported.ask("/users", ("X-User", "banned"), of=new_address())
    assert answer.status == 429
    assert answer.headers["x-envoy-ratelimited"] == "true"
    assert "retry-after" not in answer.headers


def test_a_value_of_its_own_goes_before_the_key_alone(imported: Envoy) -> None:
    user = ("X-User", "busy")

    def requests() -> list[Answer]:
        return [imported.ask("/users", user, of=new_address()) for _ in range(4)]

    answers = in_one_window(DAY, requests)
    assert [shown(answer) for answer in answers] == [
        (200, "3, 3;w=86400", "2"),
        (200, "3, 3;w=86400", "1"),
        (200, "3, 3;w=86400", "0"),
        (429, "3, 3;w=86400", "0"),
    ]


def test_who_is_unlimited_sees_no_limit(imported: Envoy) -> None:
    for _ in range(5):
        answer = imported.ask("/users", ("X-User", "anybody"), of=new_address())
        assert shown(answer) == (200, None, None)


def test_a_window_of_half_a_minute(own: Envoy) -> None:
    client = new_address()
    answers = [own.ask(of=client) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    refused = answers[-1]
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["ratelimit-policy"] == '"per-address#1";q=3;w=30'
    # Envoy has no word for the window, and leaves it out.
    assert shown(refused) == (429, "3", "0")
    assert refused.headers["x-ratelimit-reset"] == refused.headers["retry-after"]


def test_a_window_that_rolls(own: Envoy) -> None:
    """Hammer for more than two windows: in no second, wherever it begins, more than five pass."""
    sent: list[float] = []
    received: list[float] = []
    begin = time.monotonic()
    while time.monotonic() < begin + 2.2:
        before = time.monotonic()
        answer = own.message("marketing", "+1777")
        if answer.status == 200:
            sent.append(before)
            received.append(time.monotonic())
        else:
            assert shown(answer)[1:] == ("5, 5;w=1", "0")
    assert 6 <= len(sent) <= 15
    gaps = [last - first for first, last in zip(sent, received[5:], strict=False)]
    assert min(gaps) >= 1.0

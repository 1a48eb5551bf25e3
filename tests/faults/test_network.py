"""A network that loses what it carries, without a word: real hosts, real silence."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from limen import Limit, Limiter
from tests import servers
from tests.faults.callers import FORMS, PATIENT_S, Form, Stalls, opened, wait_for_the_store
from tests.faults.figures import say
from tests.faults.network import Network, hosts
from tests.faults.rig import DEADLINE_S, FIRST_P99_S, LIMIT, P99_S, WORKERS, rig
from tests.waiting import FULL, generous

BACK_S = generous(1.0)
"""After how many seconds of a healed network the store decides again; with slack in CI."""
ONCE = Limit(5, 3_600)
OPEN = {"--bind": "*", "--protected-mode": "no"}
"""A server that listens to all hosts."""


@dataclass
class Place:
    """An application on one host, its store on another."""

    network: Network
    server: servers.Server

    @property
    def url(self) -> str:
        return f"redis://{self.network.address('store')}:{self.server.port}"


Cut = Callable[[Network], None]


def lose_replies(network: Network) -> None:
    network.lose("store", "app")


def lose_requests(network: Network) -> None:
    network.lose("app", "store")


def part(network: Network) -> None:
    network.part({"app"}, {"store"})


def unplug(network: Network) -> None:
    network.unplug("store")


CUTS: tuple[Cut, ...] = (lose_replies, unplug, lose_requests, part)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with hosts("app", "store") as made:
        yield made


@pytest.fixture
def place(network: Network) -> Iterator[Place]:
    """The test itself is on the application's host."""
    options = [word for pair in OPEN.items() for word in pair]
    with network.inside("store"), servers.process(servers.binaries()["valkey"], *options) as server:
        try:
            with network.inside("app"):
                yield Place(network, server)
        finally:
            network.heal()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, place: Place) -> Iterator[Form]:
    with opened(request.param, place.url, deadline=DEADLINE_S) as made:
        yield made


class TestNetwork:
    def reaches(self, network: Network, source: str, target: str) -> bool:
        """Say whether what `source` sends arrives; it needs no answer."""
        with network.inside(target):
            ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with network.inside(source):
            mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with ear, mouth:
            ear.bind((network.address(target), 0))
            ear.settimeout(0.1)
            mouth.sendto(b"hello", ear.getsockname())
            try:
                return ear.recv(10) == b"hello"
            except TimeoutError:
                return False

    def test_loses_one_way_only(self, network: Network) -> None:
        assert self.reaches(network, "app", "store")
        network.lose("app", "store")
        assert not self.reaches(network, "app", "store")
        assert self.reaches(network, "store", "app")
        network.heal()
        assert self.reaches(network, "app", "store")

    def test_parts_groups_and_nobody_else(self) -> None:
        with hosts("a", "b", "c", "d") as network:
            network.part({"a", "b"}, {"c"})
            pairs = {(one, two) for one in "abcd" for two in "abcd" if one != two}
            lost = {pair for pair in pairs if not self.reaches(network, *pair)}
            assert lost == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
            network.heal()
            network.unplug("d")
            assert not self.reaches(network, "a", "d")
            network.heal()
            assert all(self.reaches(network, *pair) for pair in pairs)

    def test_is_gone_afterwards_with_its_processes(self) -> None:
        with suppress(LookupError), hosts("a") as network:
            process = network.run("a", ["sleep", "60"])
            raise LookupError
        assert process.returncode is not None
        with pytest.raises(FileNotFoundError), network.inside("a"):
            pass

    def test_has_nothing_to_do_with_the_machines_own(self, network: Network) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as ours,
            network.inside("app"),
            pytest.raises(ConnectionRefusedError),
        ):
            socket.create_connection(ours.getsockname(), 1)


class TestSilence:
    @pytest.mark.parametrize("cut", CUTS if FULL else CUTS[:2])
    def test_charges_once_at_most_and_is_waited_for_only_at_first(
        self, place: Place, form: Form, cut: Cut
    ) -> None:
        asked: dict[str, str] = {}
        took: list[float] = []

        def ask() -> None:
            key = f"request {len(asked)}"
            start = time.monotonic()
            decision = form.do(form.limiter.check, key, ONCE)
            took.append(time.monotonic() - start)
            asked[key] = decision.source

        ask()
        with Stalls() as stalls:
            began = time.monotonic()
            cut(place.network)
            for _ in range(30):
                ask()
            stall = stalls.worst(began, time.monotonic())
        assert set(list(asked.values())[1:]) == {"local"}
        assert max(took[1:11]) <= FIRST_P99_S + stall
        assert max(sorted(took[11:])[:-1]) <= P99_S + stall
        place.network.heal()
        back = wait_for_the_store(form)
        assert back <= BACK_S
        ask()
        time.sleep(0.2)  # what was admitted meanwhile is charged now, behind the callers
        with Limiter(place.url, deadline=PATIENT_S) as direct:
            charged = {key: ONCE.quota - direct.peek(key, ONCE).remaining for key in asked}
        assert max(charged.values()) == 1
        assert [charged[key] for key, source in asked.items() if source == "store"] == [1, 1]
        say(f"{cut.__name__}, {form.name}", back=back, charged=sum(charged.values()), asked=32)

    def test_of_a_link_that_was_down_while_nobody_asked_is_not_noticed(
        self, place: Place, form: Form
    ) -> None:
        place.network.unplug("store")
        time.sleep(0.3)
        place.network.heal()
        time.sleep(0.1)
        assert form.do(form.limiter.check, "k", ONCE).source == "store"

    def test_of_a_server_that_was_changed_for_another_ends_at_once(
        self, place: Place, form: Form
    ) -> None:
        # The connection is open on our side, and on the other nobody knows it.
        place.network.unplug("store")
        with place.network.inside("store"):
            place.server.kill()
            place.server.restart()
        place.network.heal()
        with Stalls() as stalls:
            start = time.monotonic()
            form.do(form.limiter.check, "k", ONCE)
            ended = time.monotonic()
        assert ended - start <= FIRST_P99_S + stalls.worst(start, ended)
        assert wait_for_the_store(form) <= BACK_S


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_four_workers_keep_their_bounds(place: Place, cut: Cut) -> None:
    with rig(place.url) as load:
        load.seconds(1)
        began = time.monotonic()
        cut(place.network)
        load.seconds(10)
        place.network.heal()
        healed = time.monotonic()
        load.seconds(11)
        history = load.stop()
    admitted, back = history.most_admitted("hot"), history.back_on_store(healed)
    first, then = history.p99(began, began + 1), history.p99(began + 1, healed)
    figures = {"p99_first": first, "p99_after": then, "p99_back": history.p99(healed + 1, math.inf)}
    say(
        f"{cut.__name__}, four workers",
        admitted=admitted,
        bound=2 * LIMIT.quota,
        **figures,
        back=back,
        opened=history.opened(),
    )
    assert not history.errors()
    assert history.degraded(began, healed), "nothing was wrong"
    assert admitted <= 2 * LIMIT.quota
    assert first <= FIRST_P99_S
    assert then <= P99_S
    assert back <= BACK_S
    assert history.opened() >= WORKERS

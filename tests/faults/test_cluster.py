"""A cluster under load, while its nodes die, freeze, come back too late, and hand their slots on.

One key on each master is asked for, by four processes. What a fault does to one of them must not
be seen in the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from limen import Limit, Limiter
from tests import servers
from tests.faults.callers import FORMS, Form, Looped, Threaded, opened
from tests.faults.figures import say
from tests.faults.network import Network, hosts
from tests.faults.rig import DEADLINE_S, LIMIT, WORKERS, Asked, History, Rig, rig
from tests.shared.load import WIDE
from tests.shared.test_cluster import key_on, key_on_each, slot_of
from tests.waiting import FULL, generous, wait_until

NODE_TIMEOUT_S = 2.0
PERIOD_S = 10.0
# Beside another test process, 50 ms can pass without any fault.
DEADLINE = DEADLINE_S if FULL else 0.25
# What a worker may have under way when its server falls silent: until its breaker opens, and
# the probes.
IN_FLIGHT = 10


@pytest.fixture
def cluster() -> Iterator[servers.Cluster]:
    """Three masters, and a replica for each; for one test, which may break it."""
    with servers.cluster(servers.binaries()["valkey"], replicas=3) as started:
        yield started


@pytest.fixture(scope="module")
def lasting() -> Iterator[servers.Cluster]:
    """Three masters that nobody breaks."""
    with servers.cluster(servers.binaries()["valkey"]) as started:
        yield started


def url_of(cluster: servers.Cluster) -> str:
    return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in cluster.nodes)


def wait_for_new_owner(cluster: servers.Cluster, key: str, old_port: int) -> float:
    """Return when all nodes that are awake knew that somebody else owns the key's slot."""
    slot = slot_of(key)
    wait_until(lambda: cluster.owner_port(slot) != old_port, 30)
    wait_until(cluster.agreed, 30)
    return time.monotonic()


def stopped(load: Rig) -> History:
    """Return the history up to now; while the workers pack it, their last requests have to wait."""
    now = time.monotonic()
    history = load.stop()
    history.asked = [each for each in history.asked if each.error or each.at < now - 0.1]
    return history


def degraded(history: History, keys: Sequence[str], since: float = 0.0) -> list[Asked]:
    """Return what the store did not decide, though the machine did not stand still."""
    found = history.degraded(keys=keys, since=since)
    return [each for each in found if not history.is_frozen(each)]


def back_after(history: History, since: float) -> float:
    """Return after how many seconds the store decides all; if not, the machine stood still."""
    moving = [
        each for each in history.asked if each.source == "store" or not history.is_frozen(each)
    ]
    return History(moving).back_on_store(since)


def most_from_store(history: History, key: str, since: float = 0.0) -> int:
    """Return how many the store admitted in the worst window, whoever stood in besides."""
    times = [
        asked.at
        for asked in history.asked
        if asked.key == key and asked.allowed and asked.source == "store" and asked.at >= since
    ]
    first = most = 0
    times.sort()
    for last, at in enumerate(times):
        while at - times[first] >= PERIOD_S:
            first += 1
        most = max(most, last - first + 1)
    return most


class Shards:
    """The key of the shard that a test breaks, and those of the others."""

    def __init__(self, cluster: servers.Cluster) -> None:
        self.broken, *self.healthy = key_on_each(cluster)
        # Most of the load is on the broken one: a breaker for all of them would open.
        self.keys = [*[self.broken] * 3, *self.healthy]

    def check(self, history: History, bound: int = 2 * LIMIT.quota) -> None:
        """Hold what must hold whatever happened to the broken shard."""
        assert not history.errors()
        assert not degraded(history, self.healthy)
        for key in self.healthy:
            # More only if the machine stood still.
            stood_in = len(history.degraded(keys=[key]))
            assert history.most_admitted(key) <= LIMIT.quota + stood_in
        assert history.degraded(keys=[self.broken])
        assert history.most_admitted(self.broken) <= bound

    def say(self, name: str, history: History, since: float, **figures: float) -> None:
        """Print what was seen. `since` is when the fault began."""
        say(
            name,
            admitted=history.most_admitted(self.broken),
            bound=2 * LIMIT.quota,
            admitted_elsewhere=max(history.most_admitted(key) for key in self.healthy),
            degraded=len(history.degraded(keys=[self.broken])),
            degraded_elsewhere=len(degraded(history, self.healthy)),
            p99_first_ms=round(1_000 * history.p99(since, since + 1), 2),
            p99_after_ms=round(1_000 * history.p99(since + 1, float("inf")), 2),
            back_s=round(back_after(history, since), 2),
            opened=history.opened(),
            **figures,
        )


class TestAMasterThatIsLost:
    @pytest.mark.slow
    def test_only_its_own_keys_fall_back_until_its_replica_takes_over(
        self, cluster: servers.Cluster
    ) -> None:
        shards = Shards(cluster)
        with rig(url_of(cluster), keys=shards.keys, deadline=DEADLINE) as load:
            load.seconds(PERIOD_S / 2 if FULL else 0.5)
            killed_at = time.monotonic()
            cluster.nodes[0].kill()
            promoted_at = wait_for_new_owner(cluster, shards.broken, cluster.ports[0])
            load.seconds(PERIOD_S if FULL else 1.5)
            history = stopped(load)
        promoted_s = round(promoted_at - killed_at, 2)
        shards.say("cluster: master killed", history, killed_at, promoted_s=promoted_s)
        shards.check(history)
        assert back_after(history, killed_at) <= generous(NODE_TIMEOUT_S + 3 + 1)
        assert back_after(history, promoted_at) <= generous(1)

    @pytest.mark.slow
    def test_the_rest_goes_on_when_its_replica_is_lost_too(self, cluster: servers.Cluster) -> None:
        shards = Shards(cluster)
        with rig(url_of(cluster), keys=shards.keys, deadline=DEADLINE) as load:
            load.seconds(2)
            killed_at = time.monotonic()
            cluster.nodes[0].kill()
            cluster.nodes[3].kill()
            load.seconds(60)
            history = stopped(load)
        shards.say("cluster: shard gone", history, killed_at)
        shards.check(history)
        late = [asked for asked in history.asked if asked.at > killed_at + 1]
        assert {asked.source for asked in late if asked.key == shards.broken} == {"local"}
        assert history.p99(killed_at + 1, float("inf")) <= generous(DEADLINE / 2)
        # Once and for good: a breaker that nothing closes does not open again.
        assert history.opened() == WORKERS

    @pytest.mark.slow
    def test_one_that_was_frozen_and_goes_on_counts_for_nobody(
        self, cluster: servers.Cluster
    ) -> None:
        shards = Shards(cluster)
        with rig(url_of(cluster), keys=shards.keys, deadline=DEADLINE) as load:
            load.seconds(5)
            paused_at = time.monotonic()
            cluster.nodes[0].pause()
            promoted_at = wait_for_new_owner(cluster, shards.broken, cluster.ports[0])
            load.seconds(max(NODE_TIMEOUT_S + 2 - (time.monotonic() - paused_at), 1))
            resumed_at = time.monotonic()
            cluster.nodes[0].resume()
            load.seconds(PERIOD_S + 2)
            history = stopped(load)
        from_store = most_from_store(history, shards.broken)
        shards.say(
            "cluster: master frozen, resumed as a stale one",
            history,
            paused_at,
            promoted_s=round(promoted_at - paused_at, 2),
            from_store=from_store,
        )
        shards.check(history)
        assert back_after(history, promoted_at) <= generous(1)
        assert not degraded(history, shards.keys, since=resumed_at + 0.1)
        # Old and new master together.
        assert from_store <= LIMIT.quota + WORKERS * IN_FLIGHT

    @pytest.mark.slow
    def test_a_second_failover_right_after_the_first_may_take_as_long_as_it_likes(
        self, cluster: servers.Cluster
    ) -> None:
        shards = Shards(cluster)
        first, second = cluster.nodes[0], cluster.nodes[3]
        with rig(url_of(cluster), keys=shards.keys, deadline=DEADLINE) as load:
            load.seconds(2)
            started_at = time.monotonic()
            first.pause()
            wait_for_new_owner(cluster, shards.broken, first.port)
            first.resume()
            wait_until(lambda: role_of(cluster, first) == "slave")
            # As one that is not in sync yet: it may not take over, however long nobody does.
            cluster.client(first.port).config_set("cluster-replica-no-failover", "yes")
            second.pause()
            paused_at = time.monotonic()
            load.seconds(started_at + 110 - paused_at)
            resumed_at = time.monotonic()
            second.resume()
            load.seconds(PERIOD_S)
            history = stopped(load)
        back_s = back_after(history, resumed_at)
        shards.say(
            "cluster: second failover right after the first",
            history,
            started_at,
            back_after_resume_s=round(back_s, 2),
        )
        shards.check(history)
        late = [asked for asked in history.asked if paused_at + 1 < asked.at < resumed_at]
        assert {asked.source for asked in late if asked.key == shards.broken} == {"local"}
        # A master that slept through its own end takes no writes for up to two seconds.
        assert back_s <= generous(1 + 2)


def role_of(cluster: servers.Cluster, node: servers.Server) -> str:
    return str(cluster.client(node.port).info("replication")["role"])


class TestSlotsThatMove:
    @pytest.mark.slow
    def test_nobody_notices_that_400_slots_move(self, lasting: servers.Cluster) -> None:
        key, *others = key_on_each(lasting)
        first = min(slot_of(key), 5_000)
        source, target = lasting.ports[0], lasting.ports[1]
        with rig(url_of(lasting), keys=[key, *others], limit=WIDE, deadline=DEADLINE) as load:
            load.seconds(1)
            started_at = time.monotonic()
            lasting.move_slots(range(first, first + 400), target)
            lasting.move_slots(range(first, first + 400), source)
            moved_at = time.monotonic()
            load.seconds(1)
            history = load.stop()  # all of it: each is counted
        with Limiter(url_of(lasting), deadline=5) as limiter:
            counted = {
                each: WIDE.quota - limiter.peek(each, WIDE).remaining for each in [key, *others]
            }
        asked = {
            each: sum(1 for asked in history.asked if asked.key == each) for each in [key, *others]
        }
        say(
            "cluster: 2 x 400 slots moved under load",
            asked=len(history.asked),
            counted=sum(counted.values()),
            degraded=len(history.degraded()),
            errors=len(history.errors()),
            p99_ms=round(1_000 * history.p99(started_at, moved_at), 2),
            opened=history.opened(),
        )
        assert not history.errors()
        assert not history.degraded()
        assert history.opened() == 0
        assert counted == asked

    @pytest.mark.slow
    def test_a_storm_of_redirections_makes_few_look_up_the_shape(
        self, lasting: servers.Cluster
    ) -> None:
        source, target = lasting.ports[0], lasting.ports[1]
        keys = keys_in_slots_of(lasting, source, 100)
        slots = [slot_of(key) for key in keys]
        with rig(
            url_of(lasting), keys=keys, rate=200, limit=WIDE, deadline=max(DEADLINE, 0.25)
        ) as load:
            load.seconds(1)
            for port in lasting.ports:
                lasting.client(port).config_resetstat()
            started_at = time.monotonic()
            for there in (target, source, target, source):
                lasting.move_slots(slots, there)
            took_s = time.monotonic() - started_at
            load.seconds(0.5)
            looked = sum(calls(lasting, port) for port in lasting.ports)
            redirected = sum(redirections(lasting, port) for port in lasting.ports)
            history = stopped(load)
        allowed = WORKERS * ((took_s + 0.5) / 0.25 + 1)
        say(
            "cluster: MOVED storm",
            redirected=redirected,
            in_s=round(took_s, 2),
            looked_up=looked,
            bound=int(allowed),
            degraded=len(history.degraded()),
            opened=history.opened(),
        )
        assert not history.errors()
        assert not history.degraded()
        assert history.opened() == 0
        assert 0 < looked <= allowed
        assert redirected >= 100


def keys_in_slots_of(cluster: servers.Cluster, port: int, count: int) -> list[str]:
    """Return keys in as many slots of one node."""
    found: dict[int, str] = {}
    # In the beginning, the first node owns the first third.
    for number in range(100_000):
        slot = slot_of(f"storm{number}")
        if slot < servers.SLOTS // 3:
            found.setdefault(slot, f"storm{number}")
        if len(found) == count:
            break
    assert all(cluster.owner_port(slot) == port for slot in list(found)[:3])
    return list(found.values())


def calls(cluster: servers.Cluster, port: int) -> int:
    """Return how often the node was asked for the shape since its figures were reset."""
    seen = cluster.client(port).info("commandstats")
    return int(seen.get("cmdstat_cluster|slots", {}).get("calls", 0))


def redirections(cluster: servers.Cluster, port: int) -> int:
    seen = cluster.client(port).info("errorstats")
    return int(seen.get("errorstat_MOVED", {}).get("count", 0))


class TestFaultsOfOneSlot:
    """The server that tells of them is well, and all else on it goes on."""

    @pytest.mark.slow
    def test_a_slot_that_nobody_serves_is_alone_with_it(self, lasting: servers.Cluster) -> None:
        lost = key_on(lasting, lasting.ports[0], "lost")
        others = key_on_each(lasting)
        owner = lasting.client(lasting.ports[0])
        with rig(url_of(lasting), keys=[*[lost] * 3, *others], deadline=DEADLINE) as load:
            load.seconds(0.5)
            # The others do not hear of it, and go on sending everybody there: CLUSTERDOWN.
            owner.cluster("DELSLOTS", slot_of(lost))
            load.seconds(5)
            owner.cluster("ADDSLOTS", slot_of(lost))
            history = stopped(load)
        wait_until(lasting.agreed)
        lost_to = history.degraded()
        say(
            "cluster: a slot without a server",
            admitted=history.most_admitted(lost),
            bound=2 * LIMIT.quota,
            told=told_by_servers(history),
            degraded=len(lost_to),
            degraded_elsewhere=len(history.degraded(keys=others)),
            opened=history.opened(),
        )
        assert not history.errors()
        assert {(asked.key, asked.fault) for asked in lost_to} == {(lost, "cluster")}
        assert history.most_admitted(lost) <= 2 * LIMIT.quota
        assert told_by_servers(history) >= 50
        assert history.opened() == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("form", FORMS)
    def test_states_that_are_half_way_are_alone_with_it(
        self, lasting: servers.Cluster, form: str
    ) -> None:
        key = key_on(lasting, lasting.ports[2], f"half-way of {form}")
        others = key_on_each(lasting)
        two = (WIDE, Limit(10, 60, name="new"))
        with opened(form, url_of(lasting), deadline=0.1) as made:
            made.do(made.limiter.check, key, WIDE)
            lasting.begin_move(slot_of(key), lasting.ports[1])
            try:
                for _ in range(10):
                    lost = made.do(made.limiter.check, key, *two)
                    # Who asks until its time is over has none left for the last answer.
                    assert lost.fault in ("cluster", "timeout")
                    for other in others:
                        assert made.do(made.limiter.check, other, WIDE).source == "store"
            finally:
                lasting.move_slot(slot_of(key), lasting.ports[1])
                lasting.move_slot(slot_of(key), lasting.ports[2])
            assert [shard.opened for shard in made.limiter.shards] == [0] * 3

    @pytest.mark.slow
    @pytest.mark.parametrize("form", FORMS)
    def test_a_node_that_is_asked_for_several_slots_at_once_is_not_left_alone(
        self, lasting: servers.Cluster, form: str
    ) -> None:
        mine = key_on(lasting, lasting.ports[0], "mine")
        keys = [mine, *key_on_each(lasting)] * 5
        # As if it were no cluster: what waits at the same time goes into one call.
        with closing(at_node(form, lasting.ports[0])) as made:
            for _ in range(10):
                made.at_once([partial(made.limiter.check, key, WIDE) for key in keys])
            assert made.do(made.limiter.check, mine, WIDE).source == "store"
            [shard] = made.limiter.shards
            assert shard.opened == 0
            # Threads send one decision in a call: it is redirected, which is no fault of the node.
            assert shard.faults.keys() == (set() if form == "threads" else {"cluster"})


def told_by_servers(history: History) -> int:
    """Return how often a server itself said that it does not serve a slot."""
    shards = [shard for vitals in history.after for shard in vitals.shards]
    return sum(shard.faults.get("cluster", 0) for shard in shards)


def at_node(form: str, port: int) -> Form:
    url = f"redis://127.0.0.1:{port}"
    return Threaded(url, deadline=5) if form == "threads" else Looped(url, deadline=5)


class TestAPartition:
    @pytest.mark.slow
    def test_both_sides_stay_within_the_bound_and_meet_at_the_new_master(self) -> None:
        resource_tracker.ensure_running()  # it outlives the hosts, and so belongs on none
        names = ["cut", "two", "three", "replica1", "replica2", "replica3"]
        with (
            hosts("admin", "here", "there", *names) as network,
            network.inside("admin"),
            spread(network, names) as cluster,
            placed(network, "here", "there"),
        ):
            shards = Shards(cluster)
            with rig(url_of(cluster), keys=shards.keys) as load:
                load.seconds(5)
                parted_at = time.monotonic()
                # Those who are `there` go on talking to the master that is cut off.
                network.part({"cut", "there"}, {"here", *names[1:]})
                wait_until(lambda: role_of(cluster, cluster.nodes[3]) == "master", 30)
                promoted_at = time.monotonic()
                load.seconds(max(parted_at + PERIOD_S - time.monotonic(), 1))
                healed_at = time.monotonic()
                network.heal()
                wait_until(lambda: role_of(cluster, cluster.nodes[0]) == "slave")
                wait_until(cluster.agreed, 30)
                agreed_at = time.monotonic()
                load.seconds(PERIOD_S)
                history = stopped(load)
        here = [asked for asked in degraded(history, shards.healthy) if asked.worker < 2]
        say(
            "cluster: partition, clients on both sides",
            admitted=history.most_admitted(shards.broken),
            bound=2 * LIMIT.quota,
            from_store=most_from_store(history, shards.broken),
            admitted_elsewhere=max(history.most_admitted(key) for key in shards.healthy),
            degraded=len(history.degraded()),
            degraded_elsewhere_with_the_majority=len(here),
            p99_first_ms=round(1_000 * history.p99(parted_at, parted_at + 1), 2),
            p99_after_ms=round(1_000 * history.p99(parted_at + 1, healed_at), 2),
            promoted_s=round(promoted_at - parted_at, 2),
            agreed_s=round(agreed_at - healed_at, 2),
            back_after_heal_s=round(back_after(history, healed_at), 2),
            back_after_agreement_s=round(back_after(history, agreed_at), 2),
        )
        assert not history.errors()
        assert not here
        for key in {*shards.keys}:
            assert history.most_admitted(key) <= 2 * LIMIT.quota
        assert back_after(history, agreed_at) <= generous(1)


@contextmanager
def spread(network: Network, names: Sequence[str]) -> Iterator[servers.Cluster]:
    """Start a cluster of three masters, with a node on each of these hosts."""
    with ExitStack() as stack:
        nodes = []
        for port, name in enumerate(names, start=12_000):
            options = servers.cluster_options(network.address(name))
            options += ["--bind", "*", "--protected-mode", "no"]
            with network.inside(name):
                started = servers.process(servers.binaries()["valkey"], *options, port=port)
                nodes.append(stack.enter_context(started))
            nodes[-1].host = network.address(name)
        yield stack.enter_context(servers.joined(nodes, masters=3))


@contextmanager
def placed(network: Network, *names: str) -> Iterator[None]:
    """Have workers started on these hosts, equally many on each."""
    places = iter([name for name in names for _ in range(WORKERS // len(names))])
    start = SpawnProcess._Popen

    def start_inside(process: BaseProcess) -> Any:
        with network.inside(next(places)):
            return start(process)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SpawnProcess, "_Popen", staticmethod(start_inside))
        yield

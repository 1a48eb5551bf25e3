"""How requests become calls, and what each reply of a server means for those who wait."""

from __future__ import annotations

import pytest

from limen import Check, Concurrency, Limit
from limen.backends import Correct, Fault, FaultKind, Release, Reset
from limen.backends.redis import across
from limen.backends.redis.batch import MAX_KEYS, Again, Call, Packer, Request, calls_of, greet
from limen.backends.redis.protocol import ServerError, Unfound, fault_of
from limen.backends.redis.route import Router, find_owners, find_primary
from limen.connect import Address, Target
from limen.model import Receipt


class Waiter:
    def __init__(self, slot: int = 0, keys: int = 1, *, asking: bool = False) -> None:
        self.request = Request([f"{n}" for n in range(keys)], b"", 2, slot, asking=asking)


class TestCalls:
    def test_one_for_each_slot(self) -> None:
        waiters = [Waiter(slot) for slot in (1, 2, 1, 3, 2)]
        calls = calls_of(waiters)
        assert [[each.request.slot for each in call.waiters] for call in calls] == [
            [1, 1],
            [2, 2],
            [3],
        ]

    def test_no_more_keys_than_a_call_may_have(self) -> None:
        calls = calls_of([Waiter(keys=200) for _ in range(5)])
        assert [len(call.waiters) for call in calls] == [2, 2, 1]
        assert all(call.keys <= MAX_KEYS for call in calls)

    def test_asking_stands_in_the_same_packet(self) -> None:
        [call] = calls_of([Waiter(asking=True)])
        assert call.asks_first
        assert call.encode().startswith(b"*1\r\n$6\r\nASKING\r\n*")

    def test_who_has_to_be_asked_first_goes_alone(self) -> None:
        assert len(calls_of([Waiter(), Waiter(asking=True), Waiter()])) == 2


@pytest.mark.parametrize(
    ("reply", "again"),
    [
        (ServerError("NOSCRIPT No matching script."), Again(in_full=True)),
        (ServerError("MOVED 7 10.0.0.1:6380"), Again(("10.0.0.1", 6380))),
        (ServerError("MOVED 7 ::1:6380"), Again(("::1", 6380))),
        (ServerError("MOVED 7 :6380"), Again(("", 6380))),
        (ServerError("ASK 7 10.0.0.1:6380"), Again(("10.0.0.1", 6380), asking=True)),
        (ServerError("TRYAGAIN Multiple keys"), Again(pause_s=0.005)),
        (ServerError("READONLY You can't write"), Again(fresh=True)),
        ([0, b"READONLY You can't write against a read only replica"], Again(fresh=True)),
    ],
)
def test_what_was_not_done_is_asked_again(reply: object, again: Again) -> None:
    [(_, answer)] = Call([Waiter()]).answers(reply, "here")
    assert answer == again


def test_each_in_a_batch_is_told_his_own() -> None:
    waiters = [Waiter() for _ in range(3)]
    reply = [b"\1\1", [0, b"WRONGTYPE no"], b"\1\0"]
    told = dict(Call(waiters).answers(reply, "here"))
    assert [told[waiters[0]], told[waiters[2]]] == [b"\1\1", b"\1\0"]
    fault = told[waiters[1]]
    assert isinstance(fault, Fault)
    assert fault.kind == "poisoned"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ServerError("LOADING Redis is loading the dataset in memory"), "loading"),
        (ServerError("OOM command not allowed"), "memory"),
        (ServerError("BUSY Redis is busy running a script"), "busy"),
        (ServerError("CLUSTERDOWN The cluster is down"), "cluster"),
        (ServerError("NOAUTH Authentication required."), "rights"),
        (ServerError("NOPERM this user has no permissions"), "rights"),
        (ServerError("MISCONF Redis is configured to save"), "readonly"),
        (ServerError("ERR Error compiling script"), "script"),
        ([0, b"WRONGTYPE Operation against a key"], "poisoned"),
        ([0, b"OOM command not allowed when used memory > 'maxmemory'."], "memory"),
        ([0, b"ERR The user executing the script can't run this command"], "rights"),
        ([0, b"ERR ACL failure in script: No permissions to access a key"], "rights"),
        ([0, b"ERR user_script:1: something"], "script"),
        (b"HTTP/1.1 200 OK", "protocol"),
        (b"\1 and then something else", "protocol"),
        ([], "protocol"),
        ([b"\1", b"\1"], "protocol"),
        ([0, -1], "protocol"),
        ([0, None], "protocol"),
        ([0, []], "protocol"),
        (b"\1", "protocol"),
        (b"\1\1\1", "protocol"),
        (7, "protocol"),
    ],
)
def test_other_replies_are_faults_with_their_kind(reply: object, kind: FaultKind) -> None:
    [(_, answer)] = Call([Waiter()]).answers(reply, "redis://here")
    assert isinstance(answer, Fault)
    assert answer.kind == kind
    assert answer.message.startswith("redis://here: ")


def test_a_fault_does_not_repeat_what_was_sent() -> None:
    echo = "ERR unknown command 'AUTH', with args beginning with: 'limen' 'hunter2'"
    assert "hunter2" not in str(fault_of(ServerError(echo), "here"))


class TestRedirections:
    def test_who_does_not_know_the_script_is_asked_again_and_not_another(self) -> None:
        request = Request(["k"], b"", 2, 7, ("target", 1), asking=True)
        again = Again(in_full=True).redirect(request)
        assert (again.address, again.asking, again.in_full) == (("target", 1), True, True)

    def test_the_script_goes_along_to_where_it_is_sent_on(self) -> None:
        request = Request(["k"], b"", 2, 7, in_full=True)
        again = Again(("target", 1), asking=True).redirect(request)
        assert (again.address, again.asking, again.in_full) == (("target", 1), True, True)

    def test_a_host_that_is_left_out_is_that_of_who_says_so(self) -> None:
        router = Router(Target("cluster", (("seed", 1),), "here", {}), 0.05)
        request = Request(["k"], b"", 2, 7)
        moved = router.follow(request, Again(("", 6380)), ("10.0.0.9", 6379))
        assert moved.address == ("10.0.0.9", 6380)
        assert router.address(request) == ("10.0.0.9", 6380)

    def test_a_node_is_probed_where_it_decides_be_it_a_single_slot(self) -> None:
        router = Router(Target("cluster", (("seed", 1),), "here", {}), 0.05)
        packer = Packer("limen", clustered=True)
        owners: list[tuple[str, int] | None] = [("big", 1)] * 16_384
        owners[777] = ("small", 2)
        router.learn(owners)
        probe = router.probe(packer, ("small", 2), charge=True)
        assert probe is not None
        assert probe.slot == 777
        router.learn([("big", 1)] * 16_384)
        assert router.probe(packer, ("small", 2), charge=True) is None, (
            "it has nothing left to decide"
        )

    def test_who_is_left_alone_is_asked_last_for_the_shape(self) -> None:
        router = Router(Target("cluster", (("dead", 1), ("well", 2)), "here", {}), 0.05)
        for _ in range(5):
            router.breaker(("dead", 1)).failed(0.0, Fault("timeout", "here: silent"))
        assert {router.candidates()[-1] for _ in range(20)} == {("dead", 1)}

    def test_one_that_looks_up_the_shape_for_too_long_is_taken_for_lost(self) -> None:
        router = Router(Target("cluster", (("seed", 1),), "here", {}), 0.05)
        assert router.should_refresh(0.0)
        assert not router.should_refresh(1.0)
        assert router.should_refresh(3.0)


class TestFaultsAcross:
    def test_the_one_that_may_have_run_counts_for_all(self) -> None:
        # Else what one node has charged would be charged again, as owed.
        packer = Packer("limen", clustered=True)
        checks = tuple([Check(Limit(10, 60), key) for key in ("a", "b", "c")])
        steps = across.decide(packer, packer.prepare(checks, True, ""), "id")
        next(steps)
        silent = Fault("timeout", "here: silent")
        alone = Fault("connection", "here: left alone", unsent=True)
        with pytest.raises(StopIteration) as done:
            steps.send([alone, silent, alone])
        assert done.value.value == silent


def command(*words: str) -> tuple[str, ...]:
    """Stand in for the call that asks: the flow yields its arguments."""
    return words


def asked(address: Address, *words: str) -> tuple[Address, tuple[str, ...]]:
    return address, words


class TestGreeting:
    def test_gives_the_script_to_who_does_not_have_it(self) -> None:
        greeting = greet(command, must_lead=False, is_new=False)
        assert next(greeting)[:2] == ("SCRIPT", "EXISTS")
        assert greeting.send([0])[:2] == ("SCRIPT", "LOAD")
        with pytest.raises(StopIteration):
            greeting.send(b"sha")

    def test_is_short_with_who_has_it_and_with_who_forbids_it(self) -> None:
        for reply in ([1], ServerError("NOPERM not for you")):
            greeting = greet(command, must_lead=False, is_new=False)
            next(greeting)
            with pytest.raises(StopIteration):
                greeting.send(reply)

    def test_refuses_a_replica_where_the_primary_is_wanted(self) -> None:
        greeting = greet(command, must_lead=True, is_new=False)
        assert next(greeting) == ("ROLE",)
        with pytest.raises(ServerError, match="READONLY"):
            greeting.send([b"slave", b"host", 1, b"connected", 2])

    def test_passes_trouble_on(self) -> None:
        greeting = greet(command, must_lead=False, is_new=False)
        next(greeting)
        with pytest.raises(ServerError, match="LOADING"):
            greeting.send(ServerError("LOADING"))

    @pytest.mark.parametrize(
        ("maxmemory", "policy", "is_warned"),
        [
            ("1000000", "allkeys-lru", True),
            ("1000000", "volatile-ttl", True),
            ("1000000", "noeviction", False),
            ("0", "allkeys-lru", False),
        ],
    )
    def test_warns_of_a_new_server_that_forgets_limits_when_it_is_full(
        self, maxmemory: str, policy: str, is_warned: bool
    ) -> None:
        greeting = greet(command, must_lead=False, is_new=True)
        next(greeting)
        assert greeting.send([1]) == ("INFO", "memory")
        info = f"# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"
        with pytest.raises(StopIteration) as done:
            greeting.send(info.encode())
        assert (f"maxmemory-policy {policy}" in done.value.value) is is_warned

    def test_asks_no_further_where_it_may_not_look(self) -> None:
        greeting = greet(command, must_lead=False, is_new=True)
        next(greeting)
        greeting.send([1])
        with pytest.raises(StopIteration) as done:
            greeting.send(ServerError("NOPERM not for you"))
        assert done.value.value == ""


class TestFinding:
    def test_owners_come_from_the_first_who_knows(self) -> None:
        finder = find_owners(asked, [("a", 1), ("b", 2), ("c", 3)])
        assert next(finder) == (("a", 1), ("CLUSTER", "SLOTS"))
        assert finder.send(ConnectionError("refused"))[0] == ("b", 2)
        assert finder.send([])[0] == ("c", 3)
        with pytest.raises(StopIteration) as done:
            finder.send([[0, 0, [b"", 7]], [1, 1, [b"?", 7]], [2, 16_383, [b"host", 8], [b"r", 9]]])
        owners = done.value.value
        assert owners[:3] == [("c", 7), ("c", 7), ("host", 8)]

    def test_when_nobody_knows_the_last_trouble_is_told(self) -> None:
        finder = find_owners(asked, [("a", 1)])
        next(finder)
        with pytest.raises(Unfound) as caught:
            finder.send(ServerError("ERR This instance has cluster support disabled"))
        fault = fault_of(caught.value, "here")
        assert fault.kind == "cluster"
        assert "redis://" in fault.advice

    def test_the_primary_comes_from_the_first_who_knows(self) -> None:
        finder = find_primary(asked, [("a", 1), ("b", 2)], "limen")
        first, question = next(finder)
        assert question == ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limen")
        second, _ = finder.send(None)
        assert {first, second} == {("a", 1), ("b", 2)}
        with pytest.raises(StopIteration) as done:
            finder.send([b"10.0.0.1", b"6379"])
        assert done.value.value == ("10.0.0.1", 6379)


# Allowed or not, what is left, and where the charge lies: a slot has no such place.
ADMITS = bytes.fromhex("01 01 00000004" + "00" * 24 + "0000000000000007")
HOLDS = bytes.fromhex("01 01 00000001" + "00" * 24 + "ff" * 8)
REFUSES = bytes.fromhex("01 00 00000000" + "00" * 24 + "ff" * 8)


class TestAcross:
    """Requests that span slots: what is sent, in which order, when things go wrong."""

    packer = Packer("limen", clustered=True)
    checks = (Check(Limit(5, 60), "a"), Check(Limit(5, 60), "b"))

    def test_changes_are_cut_by_slot(self) -> None:
        receipt = Receipt("1", tuple((check, 7) for check in self.checks))
        for change in (Correct(receipt, 0), Reset(self.checks)):
            step = next(across.change(self.packer, change))
            assert len({request.slot for request in step.requests}) == len(step.requests) == 2
        held = Release(Check(Concurrency(1, lease=1), "a"), "holder")
        assert len(next(across.change(self.packer, held)).requests) == 1

    def test_a_peek_reserves_nothing_and_has_nothing_to_give_back(self) -> None:
        steps = across.decide(self.packer, self.packer.prepare(self.checks, False, ""), "1")
        peeked = next(steps)
        assert not peeked.reserves
        alone = [self.packer.checks([check], False, "") for check in self.checks]
        assert peeked.requests == alone
        with pytest.raises(StopIteration) as done:
            steps.send([ADMITS, REFUSES])
        assert [reading[0] for reading in done.value.value] == [True, False]

    def test_a_slot_is_released_when_another_node_refuses(self) -> None:
        slot = Check(Concurrency(2, lease=30), "a")
        prepared = self.packer.prepare((slot, self.checks[1]), True, "me")
        steps = across.decide(self.packer, prepared, "1")
        next(steps)
        undo = steps.send([HOLDS, REFUSES])
        assert undo.undoes == 1
        assert undo.requests[0] == self.packer.change(Release(slot, "me"))

    def test_after_a_fault_what_was_reserved_is_given_back_behind(self) -> None:
        steps = across.decide(self.packer, self.packer.prepare(self.checks, True, ""), "1")
        reserved = next(steps)
        fault = Fault("timeout", "no answer")
        undo = steps.send([ADMITS, fault])
        assert undo.undoes
        assert undo.behind
        assert [request.slot for request in undo.requests] == [reserved.requests[0].slot]
        with pytest.raises(StopIteration) as done:
            steps.send(())
        assert done.value.value == fault

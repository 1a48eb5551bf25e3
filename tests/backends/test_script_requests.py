"""What a call of the script keeps apart, and what it replies."""

from __future__ import annotations

import pytest

from limen import Check, Concurrency, Limit
from limen.algorithms import STATES
from limen.backends import Correct, Release, Renew, Reset
from limen.backends.redis import script
from limen.model import UNCHARGED, Receipt
from tests import script_forms
from tests.backends.conftest import Store

SECOND_US = 1_000_000


def test_several_checks_are_all_or_nothing(store: Store) -> None:
    strict, loose, shadow = (
        Check(Limit(2, 60), "together"),
        Check(Limit(10, 3_600, algorithm="token_bucket"), "together"),
        Check(Limit(1, 60, algorithm="fixed_window"), "together", enforce=False),
    )
    answers = [store.decide(strict, loose, shadow) for _ in range(3)]
    assert [[reading[0] for reading in answer] for answer in answers] == [
        [True, True, True],
        [True, True, False],
        [False, True, False],
    ]
    [left] = store.decide(loose, charge=False)
    assert left[1] == 8


def test_a_poisoned_key_faults_its_own_request_and_is_kept(store: Store) -> None:
    good, bad = Check(Limit(2, 60), "good"), Check(Limit(2, 60), "bad")
    poisoned = script.pack_checks("limen", [bad], True)[0][0]
    store.client.rpush(poisoned, "not ours")
    replies = store.send(
        script.pack_checks("limen", [good], True),
        script.pack_checks("limen", [bad], True),
        script.pack_checks("limen", [good], True),
    )
    assert [reply[0] for reply in replies] == [1, 0, 1]
    assert b"WRONGTYPE" in replies[1][1]
    assert store.client.lrange(poisoned, 0, -1) == [b"not ours"]


@pytest.mark.parametrize("first", ["good", "bad"])
def test_a_poisoned_key_among_several_leaves_the_others_uncharged(store: Store, first: str) -> None:
    good, bad = Check(Limit(2, 60), f"both:{first}"), Check(Limit(2, 60, name="bad"), "both")
    store.client.delete(poisoned := script.pack_checks("limen", [bad], True)[0][0])
    store.client.rpush(poisoned, "not ours")
    both = [good, bad] if first == "good" else [bad, good]
    faulted, behind = store.send(
        script.pack_checks("limen", both, True), script.pack_checks("limen", [good], True)
    )
    assert faulted[0] == 0
    assert script.readings(behind)[0][1] == 1
    [left] = store.decide(good, charge=False)
    assert left[1] == 1


def test_changes_and_decisions_travel_together(store: Store) -> None:
    one, two = Check(Limit(5, 60), "change"), Check(Limit(5, 60, burst=5), "change")
    slot = Check(Concurrency(2, lease=30), "change")
    stamps = [reading[5] for reading in store.decide(one, two)]
    receipt = Receipt("0" * 16, tuple(zip((one, two), stamps, strict=True)))
    store.decide(slot, holder="me")
    refunded, renewed, released, reset, decided = store.send(
        script.pack_change("limen", Correct(receipt, 0)),
        script.pack_change("limen", Renew(slot, "me")),
        script.pack_change("limen", Release(slot, "me")),
        script.pack_change("limen", Reset((one, two, slot))),
        script.pack_checks("limen", [one, two], True),
    )
    assert [bool(reply[1]) for reply in (refunded, renewed, released, reset)] == [
        True,
        True,
        True,
        False,
    ]
    assert [reading[1] for reading in script.readings(decided)] == [4, 4]


@pytest.mark.parametrize("algorithm", sorted(STATES))
def test_a_key_with_a_text_of_somebody_else_faults_and_is_kept(
    store: Store, algorithm: str
) -> None:
    check = Check(Limit(2, 60, algorithm=algorithm), "foreign")
    [key], packed = script.pack_checks("limen", [check], True)
    store.client.set(key, "not ours")
    [reply] = store.send(([key], packed))
    assert reply[0] == 0
    assert store.client.get(key) == b"not ours"


def test_a_shadow_that_fails_lets_the_others_decide(store: Store) -> None:
    one, shadow = (
        Check(Limit(1, 60), "shadowed"),
        Check(Limit(9, 60, name="shadow", burst=20), "shadowed", enforce=False),
    )
    [key], _ = script.pack_checks("limen", [shadow], True)
    store.client.rpush(key, "not ours")
    unknown = (True, 20, 0, 0, 0, UNCHARGED)
    admitted, said = store.decide(one, shadow)
    assert admitted[:2] == (True, 0)
    assert said == unknown
    assert store.decide(shadow, one)[1][0] is False
    assert store.decide(shadow) == (unknown,)
    assert store.decide(shadow, charge=False) == (unknown,)
    assert store.client.lrange(key, 0, -1) == [b"not ours"]


def test_a_shadow_that_fails_harms_no_request_behind_it(store: Store) -> None:
    one, shadow = (
        Check(Limit(3, 60), "behind"),
        Check(Limit(3, 60, name="shadow"), "behind", enforce=False),
    )
    store.client.rpush(script.pack_checks("limen", [shadow], True)[0][0], "not ours")
    replies = store.send(
        script.pack_checks("limen", [shadow, one], True),
        script.pack_checks("limen", [shadow], True),
        script.pack_checks("limen", [one], True),
    )
    left = [[reading[1] for reading in script.readings(reply)] for reply in replies]
    assert left == [[3, 2], [3], [1]]


def test_reset_forgets(store: Store) -> None:
    check = Check(Limit(1, 60), "reset")
    store.decide(check)
    assert store.change(Reset((check,)))
    assert not store.change(Reset((check,)))
    assert store.decide(check)[0][0]


def test_time_comes_from_the_server(store: Store) -> None:
    run = store.client.register_script(script.text())
    limit = Limit(1, 86_400)
    keys, packed = script.pack_checks("limen", [Check(limit, "clock")], True)
    [admitted], [refused] = (script.readings(run(keys, [packed])) for _ in range(2))
    seconds, micros = store.client.time()
    assert (admitted[0], refused[0]) == (True, False)
    assert 0 <= seconds * SECOND_US + micros - admitted[5] < 10 * SECOND_US
    assert 0 < limit.period_us - refused[2] < 10 * SECOND_US


def test_a_lone_request_is_replied_to_without_a_list(store: Store) -> None:
    keys, packed = script.pack_checks("limen", [Check(Limit(5, 60), "bare")], False)
    lone = store.run(keys, [packed, store.now_us])
    assert store.run([*keys, *keys], [packed, packed, store.now_us]) == [lone, lone]
    assert len(lone) == script.answer_bytes(1)


def test_replies_can_be_numbered_in_the_order_of_the_script(store: Store) -> None:
    run = store.client.register_script(script_forms.numbered())
    one, two = Check(Limit(5, 60), "numbered"), Check(Limit(5, 60, name="bad"), "numbered")
    requests = [script.pack_checks("limen", checks, True) for checks in ([one], [two], [one, two])]
    store.client.rpush(requests[1][0][0], "not ours")
    keys = [key for request_keys, _ in requests for key in request_keys]
    before_us = server_time_us(store)
    replies = run([*keys, "limen:{numbered}"], [packed for _, packed in requests])
    replies += run([*keys, "limen:{numbered}"], [packed for _, packed in requests])
    plain, times_us, numbers = zip(*map(script_forms.split_number, replies), strict=True)
    assert numbers == (1, 2, 3, 4, 5, 6)
    assert before_us < times_us[0] == times_us[2] < times_us[3] < server_time_us(store)
    assert [reply[0] for reply in plain] == [1, 0, 0] * 2
    assert b"WRONGTYPE" in plain[1][1]
    assert len(plain[1]) == 2
    assert [script.readings(reply)[0][1] for reply in plain if reply[0]] == [4, 3]


def server_time_us(store: Store) -> int:
    seconds, micros = store.client.time()
    return int(seconds * SECOND_US + micros)

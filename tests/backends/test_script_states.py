"""Keys of the right type with content that limen did not write: decided as a state, or poisoned."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from limen import Check, Concurrency, Limit
from limen.algorithms import STATES
from limen.algorithms.concurrency import Leases
from limen.backends import Correct, Release, Renew, Reset
from limen.backends.redis import script
from limen.backends.redis.protocol import fault_of
from limen.model import Receipt
from tests.backends.conftest import Store

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
LATEST_US = 2**52
LONGEST_US = 3_650 * DAY_US
MOST_UNITS = 2 * 10**9
ALGORITHMS = [*sorted(STATES), "concurrency"]

Content = bytes | dict[bytes, float]
"""A string, or the members of a sorted set with their scores."""


# What the script accepts as a state, written a second time: the same rules, by the same names.
# Each function returns the state that Python decides with, or None for content that is no state.


def unpacked(form: str, content: Content) -> tuple[int, ...] | None:
    """Return the big-endian unsigned integers of these widths, if the length is right."""
    widths = [int(digit) for digit in form]
    if not isinstance(content, bytes) or len(content) != sum(widths):
        return None
    numbers, place = [], 0
    for width in widths:
        numbers.append(int.from_bytes(content[place : place + width]))
        place += width
    return tuple(numbers)


def window(limit: Limit, content: Content) -> Any:
    if (numbers := unpacked("7747", content)) is None:
        return None
    start_us, end_us, count, offset_us = numbers
    least_us, most_us = (limit.period_us,) * 2 if limit.period_us else (DAY_US, 31 * DAY_US)
    if not least_us <= end_us - start_us <= most_us or not offset_us < end_us <= LATEST_US:
        return None
    if count > MOST_UNITS:
        return None
    return filled(limit, start_us=start_us, end_us=end_us, count=count, offset_us=offset_us)


def windows(limit: Limit, content: Content) -> Any:
    if (numbers := unpacked("7447", content)) is None:
        return None
    start_us, current, previous, offset_us = numbers
    if start_us > LATEST_US or start_us % limit.period_us:
        return None
    if offset_us >= start_us + limit.period_us or max(current, previous) > MOST_UNITS:
        return None
    return filled(limit, start_us=start_us, current=current, previous=previous, offset_us=offset_us)


def bucket(limit: Limit, content: Content) -> Any:
    if (numbers := unpacked("747774", content)) is None:
        return None
    arrival_us, arrival_rem, shift_us, newest_us, offset_us, quota = numbers
    if not offset_us <= newest_us <= LATEST_US or not 0 <= arrival_us - newest_us <= 2**52:
        return None
    if (
        shift_us > 2**51
        or arrival_us + shift_us > 2**53
        or quota > 90_000_000
        or arrival_rem >= quota
    ):
        return None
    state = filled(
        limit,
        arrival_us=arrival_us,
        arrival_rem=arrival_rem,
        shift_us=shift_us,
        newest_us=newest_us,
        offset_us=offset_us,
    )
    state.limit = Limit(quota, limit.period, algorithm=limit.algorithm, burst=1)
    return state


def ring(limit: Limit, content: Content) -> Any:
    if content == b"":
        return STATES[limit.algorithm](limit)  # as if there were no key
    assert isinstance(content, bytes)
    if (numbers := unpacked("777333", content[:30])) is None:
        return None
    oldest_us, newest_us, offset_us, start, count, capacity = numbers
    width = 3 + sum(limit.period_us >= 256**width for width in (3, 4, 5, 6))
    if len(content) != 30 + capacity * width or start >= capacity or not 0 < count <= capacity:
        return None
    if not in_window(limit, oldest_us, newest_us, offset_us):
        return None
    stamps = []
    for index in range(count):
        place = 30 + (start + index) % capacity * width
        low = int.from_bytes(content[place : place + width])
        stamps.append(newest_us - (newest_us - low) % 256**width)
    return exact(limit, stamps, oldest_us, newest_us, offset_us)


def log(limit: Limit, content: Content) -> Any:
    assert isinstance(content, dict)
    order = sorted(content, key=lambda name: (content[name], name))
    offset_us = 0.0
    if order[0] == b"o" and len(order) > 1:
        offset_us = -content[order.pop(0)]
    names = [unpacked("74", name) for name in (order[0], order[-1])]
    if None in names or offset_us % 1 or offset_us < 0:
        return None
    (oldest_us, _), (newest_us, number) = names  # type: ignore[misc]  # none is None
    if (oldest_us, newest_us) != (content[order[0]], content[order[-1]]) or number > 2**31:
        return None
    if not in_window(limit, oldest_us, newest_us, offset_us):
        return None
    stamps = [int.from_bytes(name[:7]) if len(name) == 11 else -1 for name in order]
    if stamps != [content[name] for name in order]:
        stamps = [-1]
    return exact(limit, stamps, oldest_us, newest_us, int(offset_us))


def in_window(limit: Limit, oldest_us: int, newest_us: int, offset_us: float) -> bool:
    return (
        0 <= newest_us - oldest_us < limit.period_us
        and newest_us <= LATEST_US
        and offset_us < newest_us + limit.period_us
    )


def exact(limit: Limit, stamps: list[int], oldest_us: int, newest_us: int, offset_us: int) -> Any:
    if stamps[0] != oldest_us or stamps[-1] != newest_us or stamps != sorted(stamps):
        return ...  # nobody reads every stamp
    state = filled(
        limit, oldest_us=oldest_us, newest_us=newest_us, count=len(stamps), offset_us=offset_us
    )
    mask = getattr(state, "mask", None)
    state.stamps = (
        stamps
        if mask is None
        else array(state.stamps.typecode, [stamp_us & mask for stamp_us in stamps])
    )
    return state


def leases(limit: Concurrency, content: Content) -> Any:
    assert isinstance(content, dict)
    holders = {name: end for name, end in content.items() if name not in (b"\0n", b"\0o")}
    newest_us, offset_us = -content.get(b"\0n", 0.0), -content.get(b"\0o", 0.0)
    if newest_us % 1 or offset_us % 1 or not 0 < newest_us <= LATEST_US:
        return None
    last_us = max(content.values())
    if not 0 <= offset_us <= newest_us or last_us % 1 or not 0 < last_us <= newest_us + LONGEST_US:
        return None
    if any(end_us % 1 for end_us in holders.values()):
        return ...  # nobody reads every lease
    ends_us = {name.decode("latin-1"): int(end_us) for name, end_us in holders.items()}
    return Leases(limit, ends_us, int(newest_us), int(offset_us))


def filled(limit: Limit, **fields: int) -> Any:
    state: Any = STATES[limit.algorithm](limit)
    for name, number in fields.items():
        setattr(state, name, number)
    return state


READERS: dict[str, Callable[[Any, Content], Any]] = {
    "fixed_window": window,
    "sliding_counter": windows,
    "token_bucket": bucket,
    "leaky_bucket": bucket,
    "packed_window": ring,
    "rolling_window": log,
    "concurrency": leases,
}


class Draw:
    """Draws contents: nearly states, states with one mistake, and noise."""

    def __init__(self, store: Store, chance: random.Random, check: Check) -> None:
        self.store, self.chance, self.check = store, chance, check
        [self.key] = script.pack_checks("limen", [check], True)[0]

    def content(self) -> Content:
        real = self.real()
        if isinstance(real, dict):
            return self.changed_set(real)
        return self.changed_string(real)

    def real(self) -> Content:
        """Return a state that limen wrote."""
        chance, store = self.chance, self.store
        store.client.delete(self.key)
        now_us = store.now_us
        for _ in range(chance.randint(1, 12)):
            store.now_us += chance.choice([0, 1, SECOND_US, 7 * SECOND_US, -3 * SECOND_US])
            store.decide(self.check, holder=self.holder())
        store.now_us = now_us + chance.choice([0, 0, 5 * SECOND_US, -5 * SECOND_US])
        if store.client.type(self.key) == b"zset":
            members: Any = store.client.zrange(self.key, 0, -1, withscores=True)
            return dict(members)
        string: Any = store.client.get(self.key)
        return bytes(string)

    def holder(self) -> str:
        return self.chance.choice("abcd") if isinstance(self.check.limit, Concurrency) else ""

    def changed_string(self, real: bytes) -> bytes:
        chance = self.chance
        kind = chance.randrange(6)
        if kind == 0:
            return chance.randbytes(chance.choice([0, 1, 22, 25, 29, 30, 36, 62, 600]))
        if kind == 1:
            return chance.randbytes(len(real))
        if kind == 2:
            return chance.choice([real[:-1], real + b"\0", real[:7], real * 2])
        changed = bytearray(real)
        for _ in range(0 if kind == 3 else chance.randint(1, 3)):
            place = chance.randrange(min(len(real), 40))
            changed[place] = chance.choice([0, 1, 255, chance.randrange(256), changed[place] ^ 1])
        return bytes(changed)

    def changed_set(self, real: dict[bytes, float]) -> dict[bytes, float]:
        chance, changed = self.chance, dict(real)
        far = [0.0, -0.5, 1.5, 1e300, float("inf"), float("-inf"), -5.0, 2.0**52, 2.0**53]
        for _ in range(chance.randrange(3)):
            name = chance.choice(sorted(changed))
            kind = chance.randrange(5)
            if kind == 0:
                changed[name] = chance.choice([*far, changed[name] + 0.25, changed[name] - 1])
            elif kind == 1 and len(changed) > 1:
                del changed[name]
            elif kind == 2:
                stranger = chance.choice([b"", b"x", b"o", b"\0n", b"\0o", chance.randbytes(11)])
                changed[stranger] = chance.choice([*far, float(self.store.now_us)])
            elif kind == 3:
                stamp_us = chance.choice([0, self.store.now_us, 2**56 - 1])
                number = chance.choice([0, 3, 2**32 - 1])
                changed[stamp_us.to_bytes(7) + struct.pack(">I", number)] = float(stamp_us)
        return changed

    def put(self, content: Content) -> bool:
        """Put content at the key; return False if there is none, and so no key."""
        client = self.store.client
        client.delete(self.key)
        if isinstance(content, dict):
            client.zadd(self.key, content)
        else:
            client.set(self.key, content)
        return bool(client.exists(self.key))


LIMITS: dict[str, list[Any]] = {
    **{
        algorithm: [
            Limit(quota, period, algorithm=algorithm) for quota in (3, 100) for period in (10, 9000)
        ]
        for algorithm in STATES
    },
    "concurrency": [Concurrency(2, lease=30), Concurrency(4, lease=5)],
}
LIMITS["fixed_window"] += [Limit(3, "month"), Limit(3, "calendar day")]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_content_is_decided_as_in_python_or_poisoned(store: Store, algorithm: str) -> None:
    chance = random.Random(algorithm)
    good = Check(Limit(10**6, 60, algorithm="fixed_window"), f"good:{algorithm}")
    seen: dict[str, int] = {"state": 0, "poisoned": 0}
    admitted = 0
    for number in range(store.steps // 16):
        store.now_us = 1_790_000_000_000_000 + chance.randrange(10**13)
        check = Check(chance.choice(LIMITS[algorithm]), f"any:{algorithm}:{number % 5}")
        draw = Draw(store, chance, check)
        content = draw.content()
        if not draw.put(content):
            continue
        dump, holder, charge = store.client.dump(draw.key), draw.holder(), chance.random() < 0.8
        state = READERS[algorithm](check.limit, content)
        _, reply, last = store.send(
            script.pack_checks("limen", [good], True),
            script.pack_checks("limen", [check], charge, holder),
            script.pack_checks("limen", [good], True),
        )
        # The checks on either side are decided as ever; each has a new window with every time.
        assert script.readings(last)[0][0]
        if isinstance(reply, list):
            message = reply[1].decode()
            assert fault_of(message, "here").kind == "poisoned", (message, content)
            assert state is None or state is ..., (content, state)
            assert store.client.dump(draw.key) == dump, "the key was not left as it was"
            seen["poisoned"] += 1
            continue
        assert state is not None, (content, script.readings(reply))
        seen["state"] += 1
        [reading] = script.readings(reply)
        if state is not ...:
            what = holder if isinstance(check.limit, Concurrency) else check.cost
            expected = state.decide(check.limit, store.now_us, what, charge)
            assert reading == expected, (content, state)
            # And what was written is what Python keeps.
            left = state.decide(check.limit, store.now_us, what, False)
            assert store.decide(check, charge=False, holder=holder) == (left,), (content, state)
        admitted += reading[0]
    assert min(seen.values()) > store.steps // 160, seen
    assert admitted


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_no_state_that_limen_writes_is_poisoned(store: Store, algorithm: str) -> None:
    """Also after charges, corrections and debts under quotas that differ by orders of magnitude."""
    chance = random.Random(algorithm)
    store.now_us = 1_790_000_000_000_000
    for number in range(store.steps // 40):
        key = f"own:{algorithm}:{number}"
        receipts: list[Receipt] = []
        for _ in range(12):
            store.now_us += chance.choice([0, 1, SECOND_US, DAY_US, -3 * SECOND_US])
            quota = chance.choice([1, 7, 1_000, 1_000_000])
            limit = Limit(quota, chance.choice([1, 30]) * 86_400 * 100, algorithm=algorithm)
            cost = chance.choice([1, quota, max(quota // 2, 1)])
            check = Check(limit, f"{key}:{limit.period}", cost)
            if receipts and chance.random() < 0.5:
                receipt = receipts.pop(chance.randrange(len(receipts)))
                change = Correct(receipt, chance.choice([0, 1, 1_000, 1_000_000]))
                [reply] = store.send(script.pack_change("limen", change))
                assert not isinstance(reply, list), reply
            else:
                [reply] = store.send(script.pack_checks("limen", [check], True))
                assert not isinstance(reply, list), reply
                [reading] = script.readings(reply)
                if reading[0]:
                    receipts.append(
                        Receipt(f"{chance.getrandbits(64):016x}", ((check, reading[5]),))
                    )


def change_of(kind: str, check: Check) -> Any:
    if isinstance(check.limit, Concurrency):
        return Renew(check, "a") if kind == "more" else Release(check, "a")
    return Correct(Receipt("0" * 16, ((check, 5),)), 3 if kind == "more" else 0)


@pytest.mark.parametrize("kind", ["more", "less"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_change_leaves_bad_content_as_it_is(store: Store, algorithm: str, kind: str) -> None:
    check = Check(LIMITS[algorithm][0], f"change:{kind}")
    draw = Draw(store, random.Random(1), check)
    is_set = algorithm in ("rolling_window", "concurrency")
    draw.put({b"a": 1.5, b"x": float("inf")} if is_set else b"not a state")
    dump = store.client.dump(draw.key)
    [reply] = store.send(script.pack_change("limen", change_of(kind, check)))
    assert fault_of(reply[1].decode(), "here").kind == "poisoned", reply
    assert store.client.dump(draw.key) == dump
    assert store.change(Reset((check,))), "it can be deleted"
    assert store.decide(check, holder="a" if algorithm == "concurrency" else "")[0][0]


def test_a_correction_reads_all_states_before_it_writes(store: Store) -> None:
    good = Check(Limit(5, 60, algorithm="fixed_window"), "all", 2)
    bad = Check(Limit(5, 60, algorithm="sliding_counter"), "all", 2)
    [reading] = store.decide(good)
    [key] = script.pack_checks("limen", [bad], True)[0]
    store.client.set(key, b"not a state")
    receipt = Receipt("1" * 16, ((good, reading[5]), (bad, reading[5])))
    [reply] = store.send(script.pack_change("limen", Correct(receipt, 0)))
    assert reply[0] == 0
    [left] = store.decide(good, charge=False)
    assert left[1] == 3, "nothing was given back for half of a receipt"

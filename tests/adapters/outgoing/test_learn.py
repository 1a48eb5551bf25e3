"""What a response says of when to come back."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen import Limiter
from limen.adapters.outgoing.learn import MAX_FIELD, pause_asked
from limen.http import HeaderStyle, answer_of, headers
from limen.testing import ManualClock

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"
assert formatdate(NOW, usegmt=True) == DATE

NAMES = [
    "retry-after",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "date",
    "age",
]


@pytest.mark.parametrize(
    ("status", "told", "seconds"),
    [
        # Retry-After
        (429, {"retry-after": "7"}, 7),
        (503, {"retry-after": "7"}, 7),
        (403, {"retry-after": "7"}, 7),
        (429, {"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30),
        (429, {"retry-after": "Friday, 15-Jan-27 08:00:30 GMT"}, 30),
        (429, {"retry-after": "Fri Jan 15 08:00:30 2027"}, 30),
        (429, {"retry-after": "Mon Feb  1 08:00:00 2027"}, 17 * 86_400),
        (429, {"retry-after": "0"}, None),
        (429, {"retry-after": "Fri, 15 Jan 2027 07:59:00 GMT"}, None),
        (200, {"retry-after": "7"}, None),
        (301, {"retry-after": "7"}, None),
        # The clock of the server, where it tells it
        (429, {"retry-after": DATE, "date": "Fri, 15 Jan 2027 07:59:50 GMT"}, 10),
        (429, {"retry-after": DATE, "date": "yesterday"}, None),
        # RateLimit, since draft-08
        (200, {"ratelimit": '"burst";r=0;t=30'}, 30),
        (429, {"ratelimit": '"burst";r=0;t=30'}, 30),
        (200, {"ratelimit": '"burst";r=1;t=30'}, None),
        (200, {"ratelimit": '"burst";r=0'}, None),
        (200, {"ratelimit": '"burst";r=0;t=0'}, None),
        (200, {"ratelimit": '"burst";r=0;t=-3'}, None),
        (200, {"ratelimit": '"burst";r=0;t=30, "day";r=0;t=600, "hour";r=9;t=900'}, 600),
        (200, {"ratelimit": '"burst";r=0;t=30;pk=:c2Vj:;acme="x;r=1"'}, 30),
        # The draft that comes next
        (200, {"ratelimit": "burst;a=0;w=30"}, 30),
        (200, {"ratelimit": '"burst";a=0;w=30;c=1'}, 30),
        (200, {"ratelimit": '"burst";a=4;w=30'}, None),
        # Policies are told in another field
        (200, {"ratelimit-policy": '"burst";q=0;w=30'}, None),
        # draft-07
        (200, {"ratelimit": "limit=10, remaining=0, reset=5"}, 5),
        (200, {"ratelimit": "limit=10,remaining=3,reset=5"}, None),
        (200, {"ratelimit": "limit=10, remaining=0"}, None),
        # draft-03 to draft-06
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "5"}, 5),
        (200, {"ratelimit-remaining": "2", "ratelimit-reset": "5"}, None),
        (200, {"ratelimit-reset": "5"}, None),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "1800000005"}, 5),
        # X-RateLimit
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "5"}, 5),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000060"}, 60),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000060.5"}, 60.5),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000060500"}, 60.5),
        (200, {"x-ratelimit-remaining": "0.4", "x-ratelimit-reset": "5"}, 5),
        (200, {"x-ratelimit-remaining": "599.0", "x-ratelimit-reset": "5"}, None),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1799999999"}, None),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "6m0s"}, None),
        (200, {"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "5"}, None),
        (200, {"x-rate-limit-remaining": "0", "x-rate-limit-reset": "1800000060"}, 60),
        (
            200,
            {
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": "1800000060",
                "date": "Fri, 15 Jan 2027 07:59:50 GMT",
            },
            70,
        ),
        # Several
        (429, {"retry-after": "3", "ratelimit": '"burst";r=0;t=30'}, 3),
        (429, {"retry-after": "0", "ratelimit": '"burst";r=0;t=30'}, None),
        (429, {"retry-after": "soon", "ratelimit": '"burst";r=0;t=30'}, 30),
        (
            200,
            {
                "ratelimit": '"burst";r=0;t=30',
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": "40",
            },
            40,
        ),
        # From a cache
        (429, {"retry-after": "7", "age": "3"}, None),
        (200, {"ratelimit": '"burst";r=0;t=30', "age": "3"}, None),
        (429, {"retry-after": "7", "age": "0"}, 7),
        (429, {"retry-after": "7", "age": "old"}, 7),
        # Malformed
        (429, {}, None),
        (429, {"retry-after": "2.5"}, None),
        (429, {"retry-after": "-2"}, None),
        (429, {"retry-after": "7, 7"}, None),
        (429, {"retry-after": "\u0667"}, None),
        (429, {"retry-after": "9" * 16}, None),
        (429, {"retry-after": "Fri, 32 Jan 2027 08:00:30 GMT"}, None),
        (429, {"retry-after": "Fri, 15 Jan 2027 08:00:60 GMT"}, None),
        (429, {"retry-after": "Fri, 15 Jan 0000 08:00:00 GMT"}, None),
        (429, {"retry-after": "Fri, 15 Jan 2027 08:00:30 CET"}, None),
        (200, {"ratelimit": '"burst";r=0;t=30,'}, None),
        (200, {"ratelimit": '"burst";r="0";t=30'}, None),
        (200, {"ratelimit": '"burst";r=0;t=2.5'}, None),
        (200, {"ratelimit": "5;r=0;t=30"}, None),
        (200, {"ratelimit": '("burst");r=0;t=30'}, None),
        (200, {"ratelimit": "remaining=0, reset=soon"}, None),
        (200, {"ratelimit": "remaining=0, reset=?1"}, None),
        (200, {"ratelimit": "remaining=?0, reset=5"}, None),
        (200, {"ratelimit": "remaining=0, reset=(5)"}, None),
        (200, {"ratelimit": '"burst";r=?0;t=30'}, None),
        (200, {"ratelimit": '"burst";r=0.0;t=30'}, None),
        (200, {"ratelimit": '"burst";r=0;t=30, "é";r=1;t=5'}, None),
    ],
)
def test_a_response_asks_for_a_pause(
    status: int, told: dict[str, str], seconds: float | None
) -> None:
    assert pause_asked(status, told, NOW) == pytest.approx(seconds)


@given(
    st.sampled_from([200, 301, 403, 429, 503]),
    st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(
            st.text(max_size=80),
            st.from_regex(r"[0-9.]{1,20}"),
            st.from_regex(r'"?[a-z]*"?;[ratw]=-?[0-9]{1,16}(;[rt]=[0-9]+)*'),
            st.from_regex(r"(remaining|reset)=[0-9]+, ?(remaining|reset)=[0-9]+"),
            st.from_regex(r"[A-Z][a-z]{2}, [0-9]{2} Jan [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"),
            st.from_regex(r"[MTWFS][a-z]+day, [0-9]{2}-Jan-[0-9]{2} [0-9]{2}:00:00 GMT"),
        ),
    ),
    st.floats(0, 9e9),
)
@example(429, {"retry-after": "1 Jan 27 0:0 +99999999999999999999"}, NOW)
@example(429, {"retry-after": "1 Jan 1 00:00:00 +2359"}, NOW)
@example(429, {"retry-after": "Fri, 15 Jan 9999 08:00:00 GMT"}, 0.0)
@example(429, {"retry-after": "x" * 100_000, "ratelimit": '"' * 100_000}, NOW)
def test_no_headers_are_too_strange(status: int, told: dict[str, str], now: float) -> None:
    found = pause_asked(status, told, now)
    assert found is None or 0 < found < math.inf


def test_a_field_that_is_too_long_says_nothing() -> None:
    item = '"a";r=0;t=1'
    fits = ",".join([item] * (MAX_FIELD // (len(item) + 1)))
    assert pause_asked(200, {"ratelimit": fits}, NOW) == 1
    assert pause_asked(200, {"ratelimit": f"{fits},{item},{item}"}, NOW) is None


@pytest.mark.parametrize("piece", ['"', '"\\', "a;", "a,", "a=", "%", '%"', ":", " ", "(", "1"])
def test_no_field_takes_long(piece: str) -> None:
    began = time.process_time()
    for _ in range(10):
        pause_asked(200, {"ratelimit": piece * (MAX_FIELD // len(piece))}, NOW)
    # It takes a tenth of that at most. A parser with backtracking would take hours.
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "style", ["draft-11", "draft-07", "draft-03", "x-ratelimit", "x-ratelimit-delta"]
)
@pytest.mark.parametrize("with_retry_after", [True, False])
def test_what_limen_tells_is_understood(style: HeaderStyle, with_retry_after: bool) -> None:
    limiter = Limiter(clock=ManualClock(NOW))
    decisions = [limiter.check("somebody", "2/minute", "100/day") for _ in range(3)]
    told = {
        name.lower(): value
        for name, value in headers(answer_of(decisions[-1]), [style], now=NOW)
        if with_retry_after or name != "Retry-After"
    }
    assert pause_asked(429, told, NOW) == 60

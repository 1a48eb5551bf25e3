"""Keys: no user text can collide, choose a slot, or grow without bound."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from limen import Check, Limit
from limen.keys import MAX_BYTES, MAX_NAMESPACE, marker_key, memory_key, redis_key
from limen.model.text import digest

text = st.text(min_size=1, max_size=80) | st.sampled_from(
    [
        "a",
        "a:b",
        "{a}",
        "a}b",
        "#x",
        "%41",
        "A",
        "pw:60000000:|a",
        "\0",
        "\r\n",
        "é",
        "\ud800",
        "x" * 300,
    ]
)
names = st.none() | text.filter(lambda name: len(name) <= 200)


@st.composite
def checks(draw: st.DrawFn) -> Check:
    period: float | str = draw(st.sampled_from((60, 61)) | st.just("month"))
    limit = Limit(5, period, name=draw(names))
    return Check(limit, draw(text), subject=draw(st.none() | text))


def identity(check: Check) -> tuple[object, ...]:
    return check.limit.identity, check.key


def placed(check: Check) -> tuple[object, ...]:
    subject = check.key if check.subject is None else check.subject
    return check.limit.identity, check.key, subject


@given(checks(), checks())
def test_different_states_have_different_keys(one: Check, two: Check) -> None:
    assert (memory_key(one) == memory_key(two)) == (identity(one) == identity(two))
    assert (redis_key("limen", one) == redis_key("limen", two)) == (placed(one) == placed(two))


@given(checks())
@example(Check(Limit(5, 3_000 * 86_400, name="n" * 200), "{k}" * 90, subject="s" * 9_999))
def test_a_redis_key_is_short_and_its_tag_is_ours(check: Check) -> None:
    key = redis_key("n" * MAX_NAMESPACE, check)
    assert len(marker_key(key, "f" * 16).encode()) <= MAX_BYTES
    assert key.isascii()
    assert key.isprintable()
    tag = re.match(r"n+:\{([^{}]+)\}[^{}]*$", key)
    assert tag is not None


@given(text)
def test_limits_of_one_subject_live_together(subject: str) -> None:
    def tag(check: Check) -> str:
        return redis_key("limen", check).split("{")[1].split("}")[0]

    alone = Check(Limit(5, 60), subject)
    beside = Check(Limit(9, 3_600, name="other"), "another key", subject=subject)
    assert tag(alone) == tag(beside)


def test_a_plain_key_cannot_pose_as_the_digest_of_a_long_one() -> None:
    limit, long = Limit(5, 60), "x" * 500
    for posing in (digest(long), "#" + digest(long)):
        assert memory_key(Check(limit, posing)) != memory_key(Check(limit, long))
        assert redis_key("limen", Check(limit, posing)) != redis_key("limen", Check(limit, long))


def test_a_redis_key_can_be_read_by_people() -> None:
    check = Check(Limit.parse("100/minute"), "user:42")
    assert redis_key("limen", check) == "limen:{user:42}pw:60000000:|"

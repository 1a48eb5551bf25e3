"""What goes wrong with others, and does not here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings

from limen import ConfigurationError, InvalidLimit
from limen.adapters.django import RateLimit, ratelimit

DEAD = "redis://127.0.0.1:1"


def test_a_refusal_is_429_and_not_403() -> None:
    with override_settings(LIMEN={"LIMITS": ["1/day"]}):
        assert [Client().get("/plain/").status_code for _ in range(2)] == [200, 429]


def test_a_refusal_says_when_to_come_back_and_every_response_where_one_stands() -> None:
    with override_settings(LIMEN={"LIMITS": ["1/day"]}):
        first, second = [Client().get("/plain/") for _ in range(2)]
    assert first.headers["RateLimit"] == '"1/day";r=0;t=86400'
    assert second.headers["Retry-After"] == "86400"


@pytest.mark.parametrize("text", ["10/x", "10/minutely", "ten/minute", "10/", "10/minute or so"])
def test_a_rate_that_is_not_understood_is_an_error_and_no_other_rate(text: str) -> None:
    with pytest.raises(InvalidLimit):
        ratelimit(text)


def test_a_month_is_a_month() -> None:
    with override_settings(LIMEN={"LIMITS": ["1/month"]}):
        answer = [Client().get("/plain/") for _ in range(2)][1]
    assert "a month" in answer.json()["detail"]


def test_keys_that_look_alike_when_joined_are_told_apart() -> None:
    limit = RateLimit("1/day", key=("header:X-First", "header:X-Second"))
    sent = [("1", "23"), ("12", "3"), ("1 2", "3"), ("1", "2 3"), ("123", "")]
    with override_settings(LIMEN={"LIMITS": [limit]}):
        found = [
            Client(headers={"X-First": first, "X-Second": second}).get("/plain/").status_code
            for first, second in sent
        ]
    assert found == [200, 200, 200, 200, 403]


@pytest.mark.parametrize(("on_error", "status"), [("open", 200), ("closed", 503), ("local", 200)])
def test_what_happens_without_the_store_is_as_the_setting_says(on_error: str, status: int) -> None:
    limen = {"STORE": DEAD, "LIMITS": ["9/day"], "ON_ERROR": on_error}

    async def by_asgi() -> Any:
        return await AsyncClient().get("/plain/")

    with override_settings(LIMEN=limen):
        assert Client().get("/plain/").status_code == status
        assert asyncio.run(by_asgi()).status_code == status


def test_async_views_are_limited() -> None:
    async def by_asgi() -> list[int]:
        return [(await AsyncClient().get("/async/users/1/")).status_code for _ in range(4)]

    assert asyncio.run(by_asgi()) == [200] * 3 + [429]


def test_one_switch_turns_everything_off() -> None:
    with override_settings(LIMEN={"LIMITS": ["1/day"], "ENABLED": False}):
        assert [Client().get("/users/1/").status_code for _ in range(5)] == [200] * 5


def test_middleware_and_decorator_do_not_count_one_request_twice() -> None:
    with override_settings(LIMEN={"LIMITS": ["3/day"]}):
        answer = Client().get("/users/1/")
    assert answer.headers["RateLimit"] == '"3/day";r=2;t=86400, "3/day#2";r=2;t=86400'


def test_no_default_is_one_count_for_everybody() -> None:
    with override_settings(LIMEN={"LIMITS": ["1/day"]}):
        found = [
            Client(REMOTE_ADDR=f"192.0.2.{number}").get("/plain/").status_code
            for number in (1, 2, 1)
        ]
    assert found == [200, 200, 429]


def test_a_request_without_an_address_shares_no_count_with_others() -> None:
    with (
        override_settings(LIMEN={"LIMITS": ["1/day"]}),
        pytest.raises(ConfigurationError, match="no address to count by"),
    ):
        Client(REMOTE_ADDR="").get("/plain/")

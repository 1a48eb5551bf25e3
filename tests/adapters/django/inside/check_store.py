"""A store on Valkey, where a setting changes and loops come and go. Its address is in `STORE`."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import AsyncClient, Client, override_settings

from tests.waiting import wait_until

OURS = "limen.adapters.django.RateLimitMiddleware"
WITHOUT = [each for each in settings.MIDDLEWARE if each != OURS]


@pytest.fixture
def limen() -> dict[str, Any]:
    name = f"inside-{secrets.token_hex(4)}"  # a count of its own
    return {"STORE": os.environ["STORE"], "NAMESPACE": name, "LIMITS": ["2/day"], "DEADLINE": 5}


@pytest.fixture
def connections() -> Iterator[Callable[[], int]]:
    """Return how many connections the server has, beside this one's."""
    with redis.Redis.from_url(os.environ["STORE"]) as client:
        yield lambda: len(client.client_list()) - 1


def by_wsgi(path: str, times: int) -> list[int]:
    return [Client().get(path).status_code for _ in range(times)]


def by_asgi(path: str, times: int) -> list[int]:
    async def run() -> list[int]:
        found = [(await AsyncClient().get(path)).status_code for _ in range(times)]
        # What was opened on this loop cannot be closed on another.
        with override_settings(LIMEN={}):
            await asyncio.sleep(0.01)
        return found

    return asyncio.run(run())


def test_a_setting_that_changes_lets_go_of_its_connections(
    limen: dict[str, Any], connections: Callable[[], int]
) -> None:
    before = connections()
    with override_settings(LIMEN=limen):
        assert by_wsgi("/plain/", 3) == [200, 200, 429]
        assert connections() > before
    wait_until(lambda: connections() == before)
    with override_settings(LIMEN=limen):
        assert by_asgi("/plain/", 1) == [429]
    gc.collect()


def test_one_count_for_wsgi_and_asgi(limen: dict[str, Any]) -> None:
    with override_settings(LIMEN=limen):
        assert by_wsgi("/plain/", 1) == [200]
        assert by_asgi("/plain/", 2) == [200, 429]


def test_an_async_view_by_wsgi_asks_by_the_threads_of_the_middleware(limen: dict[str, Any]) -> None:
    with override_settings(LIMEN={**limen, "LIMITS": []}):
        assert by_wsgi("/async/users/1/", 4) == [200, 200, 200, 429]


def test_an_async_view_by_wsgi_needs_no_middleware(limen: dict[str, Any]) -> None:
    with override_settings(LIMEN={**limen, "LIMITS": []}, MIDDLEWARE=WITHOUT):
        assert by_wsgi("/async/users/1/", 4) == [200, 200, 200, 429]
    gc.collect()

"""Who leaves word where to tell the answer, and does not wait, is told once, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from limen import AsyncLimiter, Check, Limit
from limen.backends import Fault
from limen.backends.redis.aio import AsyncRedisBackend, _Errand
from limen.backends.redis.batch import Again, Request

CHECKS = (Check(Limit(5, 60), "k"),)


def backend() -> AsyncRedisBackend:
    """Return one whose server lets nobody in."""
    found = AsyncLimiter("redis://127.0.0.1:1", deadline=0.1)._backend
    assert isinstance(found, AsyncRedisBackend)

    async def never(address: Any) -> Any:
        await asyncio.sleep(60)

    found._open = never  # type: ignore[method-assign]
    return found


def prepared(of: AsyncRedisBackend) -> Request:
    request = of.prepare(CHECKS)
    assert request is not None
    return request


def test_who_asks_once_more_is_told_also_when_the_limiter_is_closed() -> None:
    async def story() -> list[Any]:
        store, told = backend(), list[Any]()
        request, later = prepared(store), asyncio.get_running_loop().time() + 60
        errand = _Errand(store, request, later, told.append)
        errand.tell(Again(in_full=True))  # as a server says that does not know the script
        await asyncio.sleep(0)
        assert not told
        await store.close()
        await asyncio.sleep(0.01)
        errand.tell(b"too late")
        return told

    [fault] = asyncio.run(story())
    assert isinstance(fault, Fault)
    assert fault.kind == "connection"


def test_who_stands_in_line_again_when_told_is_told_in_its_own_time() -> None:
    async def story() -> tuple[float, bool]:
        store, loop = backend(), asyncio.get_running_loop()
        request, begin = prepared(store), loop.time()
        again: asyncio.Future[float] = loop.create_future()

        def stand(after_s: float, tell: Callable[[Any], object]) -> None:
            lane = store._lane_to(store._home(), ("127.0.0.1", 1))
            ends = store._home().clock.now() + after_s
            lane.stand(_Errand(store, request, ends, tell))

        patient: list[Any] = []
        stand(5, patient.append)
        stand(0.05, lambda _: stand(0.05, lambda _: again.set_result(loop.time() - begin)))
        took_s = await asyncio.wait_for(again, 10)
        was_early = bool(patient)
        await store.close()
        return took_s, was_early

    took_s, was_early = asyncio.run(story())
    assert 0.09 < took_s < 2
    assert not was_early

"""`AsyncClient`: asks a service, for asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Self

from limen import fork
from limen._internal.batcher import QueuedRequest, TaskBatcher
from limen._internal.deadline import ActiveClock
from limen._internal.http1 import Garbled, Request, Response
from limen._internal.http_connections import AsyncHttpTransport
from limen._internal.per_loop import PerLoop
from limen.backends import Fault
from limen.client import questions
from limen.client.flows import MAX_CALLS, Answer, ClientFlows, Send, fault_of, late
from limen.client.questions import Asked
from limen.client.settings import Settings, validate
from limen.client.slot import AsyncServiceSlot
from limen.flow import run_async
from limen.limiter.keeper import AsyncKeeper
from limen.model import Concurrency, Limit, OnError
from limen.wire import MAX_BATCH, Verdict

_MAX_CHECKS = 2
"""How many calls for decisions are in flight at the same time."""

QueuedCall = QueuedRequest[Request, Response | Fault]


class AsyncClient:
    """Asks a limen service for decisions. Safe to share between tasks, and between loops.

    ```python
    client = AsyncClient("http://localhost:8080")
    verdict = await client.decide({"user": "42", "path": "/search"})
    ```

    The settings and verbs are those of `Client`, and mean the same.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 0.25,
        on_error: OnError = "local",
        instances: int = 1,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = validate(url, token, timeout, on_error, instances, ssl_context)
        self._flows = ClientFlows(self._settings, token, self._ask, self._sender)
        self._loops = PerLoop(
            lambda loop: LoopCalls(loop, self._settings, self._flows), LoopCalls.close
        )
        self._keeper = AsyncKeeper(lambda change: run_async(self._flows.change_held(change)))
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._loops.after_fork()

    async def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request by the rules, and charge it when it is allowed.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return await run_async(self._flows.decide(questions.by_rules(attributes, cost)))

    async def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Verdict:
        """Decide one request of `key` by limits of your own, and charge it when it is allowed.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense.
        """
        asked = questions.by_limits(self._flows.limits, key, limits, cost)
        return await run_async(self._flows.decide(asked))

    async def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `decide` would say, and charge nothing."""
        return await run_async(self._flows.decide(questions.by_rules(attributes, cost, peek=True)))

    async def usage(self, attributes: Mapping[str, str]) -> Verdict:
        """Say where somebody stands; nothing is charged."""
        return await run_async(self._flows.usage(questions.by_rules(attributes, peek=True)))

    async def decide_many(
        self, requests: Iterable[Mapping[str, str]], *, cost: int = 1
    ) -> list[Verdict]:
        """Decide several requests in one call; above 1,000, or half a megabyte, in several.

        Raises `InvalidInput`, which names the request by its number, when one makes no sense.
        """
        asked = questions.by_rules_each(requests, cost)
        return await run_async(self._flows.decide_many(asked))

    async def refund(self, verdict: Verdict | str) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any.

        Takes the verdict or its `receipt`. Once: a second refund changes nothing. False too when
        the service is away.
        """
        return await run_async(self._flows.correct(verdict, None))

    async def settle(self, verdict: Verdict | str, actual: int | Mapping[str, int]) -> bool:
        """Correct what a verdict charged, once, now that the real cost is known.

        A number corrects what was charged at the `cost` of the call; a mapping such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        return await run_async(self._flows.correct(verdict, questions.valid_actual(actual)))

    def slot(self, attributes: Mapping[str, str], cost: int = 1) -> AsyncServiceSlot:
        """Return a slot to hold under the rules; by `async with`, it is held in there.

        Raises `ServiceRefused` on entering when it is refused.
        """
        asked = questions.by_rules(attributes, cost)
        return AsyncServiceSlot(self._flows, self._keeper, asked)

    def hold(
        self, key: str | bytes, concurrency: Concurrency, *limits: Limit | str, cost: int = 1
    ) -> AsyncServiceSlot:
        """Return a slot of `key` to hold, under limits of your own; by `async with` it is held.

        What `slot` is to `decide`, this is to `check`.
        """
        asked = questions.by_limits(self._flows.limits, key, limits, cost, concurrency)
        return AsyncServiceSlot(self._flows, self._keeper, asked)

    async def aclose(self) -> None:
        """Close the connections, of other loops too."""
        await self._loops.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._settings.address}>"

    def _ask(self, asked: Asked) -> Awaitable[Answer]:
        calls = self._loops.get()
        return calls.checks.ask(asked, calls.clock.now() + self._settings.timeout)

    def _sender(self) -> Send:
        calls = self._loops.get()
        ends = calls.clock.now() + self._settings.timeout
        return partial(calls.others.ask, ends=ends)


class LoopCalls:
    """The connections of one event loop, and the requests that wait in it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: Settings, flows: ClientFlows
    ) -> None:
        self.clock: ActiveClock = ActiveClock(settings.timeout)
        """The clock of all deadlines in this loop."""
        self._flows = flows
        self._transport = AsyncHttpTransport(loop, settings.server, _MAX_CHECKS + MAX_CALLS)
        self.checks: TaskBatcher[Asked, Answer] = TaskBatcher(
            loop, self.clock, self._check, late, max_in_flight=_MAX_CHECKS, max_batch=MAX_BATCH
        )
        """Decisions: those that wait at the same moment share a call."""
        self.others: TaskBatcher[Request, Response | Fault] = TaskBatcher(
            loop, self.clock, self._exchange, late, max_in_flight=MAX_CALLS, max_batch=1
        )
        """Calls of the other verbs. They may be many, and do not hold up decisions."""
        self._check_calls: TaskBatcher[Request, Response | Fault] = TaskBatcher(
            loop, self.clock, self._exchange, late, max_in_flight=_MAX_CHECKS, max_batch=1
        )

    def close(self) -> None:
        """Close the connections, and answer the requests that wait."""
        closed = Fault("connection", "the client was closed", unsent=True)
        self.checks.close(closed)
        self._check_calls.close(closed)
        self.others.close(closed)
        self._transport.close()

    async def _check(self, batch: list[QueuedRequest[Asked, Answer]]) -> list[Answer]:
        ends = max([queued.ends for queued in batch])
        asked = [queued.request for queued in batch]
        send: Send = partial(self._check_calls.ask, ends=ends)
        return await run_async(self._flows.check(asked, send))

    async def _exchange(self, batch: list[QueuedCall]) -> list[Response | Fault]:
        [call] = batch
        task = asyncio.current_task()
        assert task is not None
        # The deadline, or the cancellation of the caller, ends the call and its connection.
        call.future.add_done_callback(lambda _: task.cancel())
        try:
            return [await self._transport.exchange(self._flows.encode(call.request))]
        except (OSError, Garbled, RuntimeError, UnicodeError) as error:
            return [fault_of(error)]

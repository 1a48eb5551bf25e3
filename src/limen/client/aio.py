"""`AsyncClient`: asks a service, for asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from limen import fork
from limen.client import questions
from limen.client.aio_line import Home, Ticket
from limen.client.desk import Flow
from limen.client.http1 import Garbled, Response
from limen.client.settings import away_of, validate
from limen.client.slot import AsyncServiceSlot
from limen.model import Concurrency, Limit, OnError
from limen.wire import Verdict

T = TypeVar("T")


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
        self._timeout = self._settings.timeout
        self._desk = self._settings.desk
        self._homes: dict[asyncio.AbstractEventLoop, Home] = {}
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._desk.begin()
        self._homes = {}

    async def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request by the rules, and charge it when it is allowed.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return await self._decide(questions.by_rules(attributes, cost))

    async def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Verdict:
        """Decide one request of `key` by limits of your own, and charge it when it is allowed.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense.
        """
        return await self._decide(self._desk.own(key, limits, cost))

    async def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `decide` would say, and charge nothing."""
        return await self._decide(questions.by_rules(attributes, cost, peek=True))

    async def usage(self, attributes: Mapping[str, str]) -> Verdict:
        """Say where somebody stands; nothing is charged."""
        return await self._run(self._desk.usage(questions.by_rules(attributes, peek=True)))

    async def decide_many(
        self, requests: Iterable[Mapping[str, str]], *, cost: int = 1
    ) -> list[Verdict]:
        """Decide several requests in one call; above 1,000, or half a megabyte, in several.

        Raises `InvalidInput`, which names the request by its number, when one makes no sense.
        """
        asked = questions.by_rules_each(requests, cost)
        return await self._run(self._desk.decide_many(asked))

    async def refund(self, verdict: Verdict | str) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any.

        Takes the verdict or its `receipt`. Once: a second refund changes nothing. False too when
        the service is away.
        """
        return await self._run(self._desk.refund(verdict))

    async def settle(self, verdict: Verdict | str, actual: int | Mapping[str, int]) -> bool:
        """Correct what a verdict charged, once, now that the real cost is known.

        A number corrects what was charged at the `cost` of the call; a mapping such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        return await self._run(self._desk.settle(verdict, actual))

    def slot(self, attributes: Mapping[str, str], cost: int = 1) -> AsyncServiceSlot:
        """Return a slot to hold under the rules; by `async with`, it is held in there.

        Raises `ServiceRefused` on entering when it is refused.
        """
        return AsyncServiceSlot(self._desk, self._run, questions.by_rules(attributes, cost))

    def hold(
        self, key: str | bytes, concurrency: Concurrency, *limits: Limit | str, cost: int = 1
    ) -> AsyncServiceSlot:
        """Return a slot of `key` to hold, under limits of your own; by `async with` it is held.

        What `slot` is to `decide`, this is to `check`.
        """
        asked = self._desk.own_place(key, concurrency, limits, cost)
        return AsyncServiceSlot(self._desk, self._run, asked)

    async def aclose(self) -> None:
        """Close the connections, of other loops too."""
        here = asyncio.get_running_loop()
        homes, self._homes = self._homes, {}
        self._desk.close()
        for loop, home in homes.items():
            if loop is here:
                home.close()
                # The loop closes sockets at its next turn; without one they would be left open.
                await asyncio.sleep(0)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(home.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._settings.address}>"

    async def _decide(self, asked: questions.Asked) -> Verdict:
        if not self._desk.is_asking():
            return self._desk.without(asked)
        home = self._home()
        return self._desk.told(asked, await home.ask(asked, home.loop.time() + self._timeout))

    async def _ask_together(self, home: Home, tickets: list[Ticket], ends: float) -> None:
        await self._carry(self._desk.batch(tickets), home.exchange, home, ends)

    async def _run(self, flow: Flow[T]) -> T:
        home = self._home()
        ends = home.loop.time() + self._timeout
        return await self._carry(flow, home.exchange_alone, home, ends)

    async def _carry(
        self,
        flow: Flow[T],
        exchange: Callable[[bytes, float], Awaitable[Response]],
        home: Home,
        ends: float,
    ) -> T:
        """Carry the requests of a flow to the service, and what comes of them back."""
        try:
            request = next(flow)
            while True:
                began = home.loop.time()
                try:
                    response = await exchange(self._desk.head.encode(request), ends)
                except (OSError, Garbled, RuntimeError) as error:
                    request = flow.throw(away_of(error, ends - began, self._timeout))
                else:
                    request = flow.send(response)
        except StopIteration as done:
            found: T = done.value
            return found

    def _home(self) -> Home:
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        if home is None:
            for ended in [each for each in list(self._homes) if each.is_closed()]:
                self._homes.pop(ended, None)
            settings = self._settings
            home = self._homes[loop] = Home(
                loop, settings.address, settings.context, settings.patience_s, self._ask_together
            )
        return home

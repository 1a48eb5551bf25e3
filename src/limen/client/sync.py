"""`Client`: asks a service, for threads. The asyncio twin is `limen.client.aio`."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Self

from limen import fork
from limen._internal.connection_pool import NotConnected
from limen._internal.deadline import Deadline
from limen._internal.http1 import Garbled, Request, Response
from limen._internal.http_connections import HttpTransport
from limen.backends import Fault
from limen.client import questions
from limen.client.flows import MAX_CALLS, Answer, ClientFlows, Send, fault_of
from limen.client.questions import Asked
from limen.client.settings import validate
from limen.client.slot import ServiceSlot
from limen.flow import run
from limen.limiter.keeper import Keeper
from limen.model import Concurrency, Limit, OnError
from limen.wire import Verdict


class Client:
    """Asks a limen service for decisions. Safe to share between threads.

    ```python
    client = Client("http://localhost:8080")
    verdict = client.decide({"user": "42", "path": "/search"})
    if not verdict:
        print(f"come back in {verdict.retry_after} s")
    ```

    Each decision is a call of its own, over at most 16 connections. `timeout` is the seconds that a
    call may take, with the wait for a connection; when it is over, `on_error` says who decides:
    `local` counts in this process at its share of the limits, of which there are `instances`;
    `open` admits, `closed` refuses. `verdict.degraded` says so.
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
        self._transport = HttpTransport(self._settings.server, MAX_CALLS)
        self._keeper = Keeper(lambda change: run(self._flows.change_held(change)))
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._transport.pool.reset()

    def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request by the rules, and charge it when it is allowed.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return run(self._flows.decide(questions.by_rules(attributes, cost)))

    def check(self, key: str | bytes, *limits: Limit | str, cost: int = 1) -> Verdict:
        """Decide one request of `key` by limits of your own, and charge it when it is allowed.

        Raises `InvalidInput` or `InvalidLimit` for arguments that make no sense.
        """
        asked = questions.by_limits(self._flows.limits, key, limits, cost)
        return run(self._flows.decide(asked))

    def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `decide` would say, and charge nothing."""
        return run(self._flows.decide(questions.by_rules(attributes, cost, peek=True)))

    def usage(self, attributes: Mapping[str, str]) -> Verdict:
        """Say where somebody stands; nothing is charged."""
        return run(self._flows.usage(questions.by_rules(attributes, peek=True)))

    def decide_many(self, requests: Iterable[Mapping[str, str]], *, cost: int = 1) -> list[Verdict]:
        """Decide several requests in one call; above 1,000, or half a megabyte, in several.

        Raises `InvalidInput`, which names the request by its number, when one makes no sense.
        """
        asked = questions.by_rules_each(requests, cost)
        return run(self._flows.decide_many(asked))

    def refund(self, verdict: Verdict | str) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any.

        Takes the verdict or its `receipt`. Once: a second refund changes nothing. False too when
        the service is away.
        """
        return run(self._flows.correct(verdict, None))

    def settle(self, verdict: Verdict | str, actual: int | Mapping[str, int]) -> bool:
        """Correct what a verdict charged, once, now that the real cost is known.

        A number corrects what was charged at the `cost` of the call; a mapping such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        return run(self._flows.correct(verdict, questions.valid_actual(actual)))

    def slot(self, attributes: Mapping[str, str], cost: int = 1) -> ServiceSlot:
        """Return a slot to hold under the rules; used by `with`, it is held in there.

        Raises `ServiceRefused` on entering when it is refused.
        """
        asked = questions.by_rules(attributes, cost)
        return ServiceSlot(self._flows, self._keeper, asked)

    def hold(
        self, key: str | bytes, concurrency: Concurrency, *limits: Limit | str, cost: int = 1
    ) -> ServiceSlot:
        """Return a slot of `key` to hold, under limits of your own; by `with` it is held.

        What `slot` is to `decide`, this is to `check`.
        """
        asked = questions.by_limits(self._flows.limits, key, limits, cost, concurrency)
        return ServiceSlot(self._flows, self._keeper, asked)

    def close(self) -> None:
        """Close the connections, and stop renewing slots."""
        self._keeper.close()
        self._transport.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._settings.address}>"

    def _ask(self, asked: Asked) -> Answer:
        [answer] = run(self._flows.check([asked], self._sender()))
        return answer

    def _sender(self) -> Send:
        deadline = Deadline(self._settings.timeout)

        def send(request: Request) -> Response | Fault:
            try:
                return self._transport.exchange(self._flows.encode(request), deadline)
            except (OSError, Garbled, NotConnected, RuntimeError) as error:
                return fault_of(error)

        return send

"""Both libraries, for threads and for asyncio, driven by the same tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import httpx
import httpx2

import limen.adapters.httpx
import limen.adapters.httpx2
from limen import AsyncClient, AsyncLimiter, Client, Limiter

ALL = ["httpx-threads", "httpx-asyncio", "httpx2-threads", "httpx2-asyncio"]
EACH_LIBRARY_AND_LOOP = ["httpx-threads", "httpx2-asyncio"]
"""For tests that take long: what the libraries share is tried by the others."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Caller:
    """A client of one of the libraries, with a transport of ours."""

    def __init__(self, client: Any, runner: asyncio.Runner | None) -> None:
        self.client = client
        self._runner = runner

    def run(self, answer: Any) -> Any:
        """Return an answer, awaited where it has to be."""
        if self._runner is None:
            return answer

        async def wait(waiting: Awaitable[Any]) -> Any:
            return await waiting

        return self._runner.run(wait(answer))

    def get(self, path: str = "/", **settings: Any) -> Any:
        return self.run(self.client.get(path, **settings))

    def post(self, path: str = "/", **settings: Any) -> Any:
        return self.run(self.client.post(path, **settings))

    def together(self, paths: Iterable[str]) -> list[Any]:
        """Get all of them at once: by threads, or by tasks."""
        wanted = list(paths)
        if self._runner is None:
            with ThreadPoolExecutor(len(wanted)) as pool:
                return list(pool.map(self.client.get, wanted))

        async def gather() -> list[Any]:
            return await asyncio.gather(*map(self.client.get, wanted))

        return self._runner.run(gather())

    def close(self) -> None:
        self.run(self.client.close() if self._runner is None else self.client.aclose())


class Driver:
    """One library, for threads or for asyncio."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.library: ModuleType = httpx2 if name.startswith("httpx2") else httpx
        self.adapter: Any = getattr(limen.adapters, self.library.__name__)
        self.is_async = name.endswith("asyncio")
        self.runner = stack.enter_context(asyncio.Runner()) if self.is_async else None
        self._stack = stack

    def transport(self, *args: Any, **settings: Any) -> Any:
        """Return a transport of ours, above one of the library's if it is not said which."""
        settings.setdefault("wrapped", self.plain())
        return self.ours(*args, **settings)

    @property
    def ours(self) -> Callable[..., Any]:
        name = "AsyncRateLimitTransport" if self.is_async else "RateLimitTransport"
        found: Callable[..., Any] = getattr(self.adapter, name)
        return found

    @property
    def error(self) -> Any:
        return self.adapter.RateLimited

    def plain(self, **settings: Any) -> Any:
        """Return a transport of the library itself."""
        name = "AsyncHTTPTransport" if self.is_async else "HTTPTransport"
        # It would read all certificates of the machine, each time.
        return getattr(self.library, name)(verify=_NO_TLS, **settings)

    def limiter(self, *args: Any, **settings: Any) -> Any:
        limiter = (AsyncLimiter if self.is_async else Limiter)(*args, **settings)
        self._stack.callback(self._close, limiter)
        return limiter

    def service(self, url: str) -> Any:
        """Return a client of a service of limen."""
        client = (AsyncClient if self.is_async else Client)(url, timeout=5)
        self._stack.callback(self._close, client)
        return client

    def call(self, transport: Any, base_url: str = "", **settings: Any) -> Caller:
        """Return a client that uses a transport; it is closed at the end."""
        made = self.library.AsyncClient if self.is_async else self.library.Client
        # Proxies of the machine's own are none of ours.
        client = made(transport=transport, base_url=base_url, trust_env=False, **settings)
        caller = Caller(client, self.runner)
        self._stack.callback(caller.close)
        return caller

    def _close(self, what: Any) -> None:
        if self.runner is None:
            what.close()
        else:
            self.runner.run(what.aclose())


@contextmanager
def driver(name: str) -> Iterator[Driver]:
    with ExitStack() as stack:
        yield Driver(name, stack)

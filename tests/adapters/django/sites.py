"""The project on a real socket: under `manage.py runserver` by WSGI, under uvicorn by ASGI.

Each in a process of its own: Django's settings are one for a process, and none of ours.
"""

from __future__ import annotations

import itertools
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2

from tests.client.services import ROOT, free_port
from tests.servers import HOST
from tests.waiting import wait_until

PROJECT = "tests.adapters.django.project"
_numbers = itertools.count(1)
# All is plain HTTP, and reading certificates takes time for each client.
_UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Site:
    """A project that runs."""

    def __init__(self, kind: str, port: int, stack: ExitStack, log: Any) -> None:
        self.kind = kind
        self.port = port
        self._stack = stack
        self._log = log

    def visitor(self, **headers: str) -> httpx2.Client:
        """Return somebody who has an address, and so a count, of his own."""
        number = next(_numbers)
        transport = httpx2.HTTPTransport(
            local_address=f"127.0.{1 + number // 200}.{number % 200 + 2}"
        )
        client = httpx2.Client(
            base_url=f"http://{HOST}:{self.port}",
            transport=transport,
            trust_env=False,
            timeout=40,
            headers={
                # `runserver` sends a response in pieces, and the last waits for the client's word
                # on the first, unless it is the last of the connection.
                "Connection": "close",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        return self._stack.enter_context(client)

    def log(self) -> str:
        """Return what the server has said so far."""
        self._log.seek(0)
        return str(self._log.read().decode())


@contextmanager
def site(kind: str, limen: dict[str, Any], **environ: str) -> Iterator[Site]:
    """Run the project, as `kind` says, until the end."""
    port = free_port()
    command = {
        "wsgi": [f"{PROJECT}.manage", "runserver", "--noreload", f"{HOST}:{port}"],
        "asgi": ["uvicorn", f"{PROJECT}.asgi:application", "--port", str(port), "--lifespan=off"],
    }[kind]
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *command],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
                "LIMEN_IN_TESTS": json.dumps(limen),
                **environ,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        started = Site(kind, port, stack, log)
        try:
            visitor = started.visitor()

            def is_ready() -> bool:
                assert process.poll() is None, started.log()
                return bool(visitor.get("/plain/"))

            wait_until(is_ready, 60, ignoring=httpx2.TransportError, details=started.log)
            yield started
        finally:
            process.terminate()
            process.wait(20)

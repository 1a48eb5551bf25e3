"""`examples/django_app.py`, started as it says, and called; and what the page on Django shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import httpx2
import pytest

from tests.client.services import ROOT, free_port
from tests.test_docs import blocks_of
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "adapters" / "django.md"
COMMANDS = {
    "wsgi": ["examples/django_app.py", "runserver", "--noreload", "127.0.0.1:{port}"],
    "asgi": ["-m", "uvicorn", "examples.django_app:app", "--port", "{port}"],
}


@contextmanager
def started(kind: str) -> Iterator[httpx2.Client]:
    port = free_port()
    command = [word.format(port=port) for word in COMMANDS[kind]]
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            def is_ready() -> object:
                assert process.poll() is None, "the example ended"
                return client.get("/healthz").status_code

            wait_until(is_ready, 60, ignoring=httpx2.TransportError)
            yield client
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_example_runs(kind: str) -> None:
    with started(kind) as client:
        found = [client.get("/search?q=limen") for _ in range(4)]
        assert [answer.status_code for answer in found] == [200, 200, 200, 429]
        assert found[0].json() == {"found": "limen"}
        assert (
            found[0].headers["ratelimit-policy"] == '"100/minute";q=100;w=60, "3/minute";q=3;w=60'
        )
        assert "RateLimit" in found[0].headers["access-control-expose-headers"]
        assert found[3].json()["violated-policies"] == ["3/minute"]
        tries = ["", "", "open sesame", "", "", "", "open sesame"]
        answers = [client.post("/login", data={"password": word}).status_code for word in tries]
        assert answers == [401, 401, 200, 401, 401, 401, 429]
        assert client.get("/complete?words=31").json() == {"words": 31}
        assert '"1000/day";r=959;' in client.get("/complete").headers["ratelimit"]
        assert [client.get("/healthz").status_code for _ in range(100)] == [200] * 100


def test_the_page_prints_what_it_shows() -> None:
    """In a process of its own: Django's settings are one for a process."""
    blocks = blocks_of(PAGE)
    code = "".join(block.text for block in blocks if block.language == "python")
    shown = "".join(
        after.text
        for before, after in pairwise(blocks)
        if before.language == "python" and after.language == "text"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown

"""The examples that are servers: started as they say, and called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tests.client.services import ROOT, free_port
from tests.waiting import wait_until


@contextmanager
def started(example: str) -> Iterator[httpx2.Client]:
    """Start an example under uvicorn, as its first lines say, and wait until it answers."""
    port = free_port()
    command = ["-m", "uvicorn", f"examples.{example}:app", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *command, "--log-level", "warning"], cwd=ROOT
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            def is_ready() -> object:
                assert process.poll() is None, f"{example} ended"
                headers = {"X-Forwarded-For": "192.0.2.200"}
                return client.get("/nowhere", headers=headers).status_code

            wait_until(is_ready, 60, ignoring=httpx2.TransportError)
            yield client
    finally:
        process.terminate()
        process.wait(20)


def test_fastapi_app() -> None:
    with started("fastapi_app") as client:
        found = [client.get("/search?q=limen") for _ in range(4)]
        assert [answer.status_code for answer in found] == [200, 200, 200, 429]
        assert found[3].json()["violated-policies"] == ["3/minute"]
        assert "Retry-After" in found[3].headers["access-control-expose-headers"]
        tries = ["", "", "open sesame", "", "", "", "open sesame"]
        answers = [client.post(f"/login?password={word}").status_code for word in tries]
        assert answers == [401, 401, 200, 401, 401, 401, 429]
        assert client.get("/complete?words=31").json() == {"words": 31}
        left = client.get("/complete?words=31").headers["ratelimit"]
        assert '"1000/day";r=959;' in left
        # What was settled is the words, not the requests.
        assert int(left.partition('"100/minute";r=')[2].partition(";")[0]) > 80
        assert '"20/hour";r=19;' in client.get("/v1/reports/7").headers["ratelimit"]
        assert "429" in client.get("/openapi.json").json()["paths"]["/search"]["get"]["responses"]


def test_asgi_app() -> None:
    with started("asgi_app") as client:
        answers = [client.get("/") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[0].text == "hello world\n"
        assert answers[0].headers["ratelimit-policy"] == (
            '"5/minute";q=5;w=60, "2 at once";q=2;qu="concurrent-requests", '
            '"1000/minute";q=1000;w=60'
        )

"""A real server that is asked through the script, for the tests of the script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from limen import Check
from limen.backends import Change
from limen.backends.redis import script
from limen.model import Reading
from tests import script_forms, servers

LONG = bool(os.environ.get("LIMEN_FUZZ"))


@dataclass
class Store:
    """A server that is asked through the script, at a time of our choosing."""

    client: redis.Redis
    run: Any
    now_us: int = 1_790_000_000_000_000
    steps: int = 10_000
    """How many steps to compare on it."""

    def send(self, *requests: script.Packed) -> list[Any]:
        keys = [key for request_keys, _ in requests for key in request_keys]
        reply: Any = self.run(keys, [*(packed for _, packed in requests), self.now_us])
        return reply if len(requests) > 1 else [reply]

    def decide(self, *checks: Check, charge: bool = True, holder: str = "") -> tuple[Reading, ...]:
        [reply] = self.send(script.pack_checks("limen", checks, charge, holder))
        assert reply[0] == 1, reply
        return script.readings(reply)

    def change(self, change: Change) -> bool:
        [reply] = self.send(script.pack_change("limen", change))
        assert reply[0] == 1, reply
        return bool(reply[1])


@pytest.fixture(scope="module", params=sorted(servers.binaries()))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with servers.server(servers.binaries()[request.param]) as port:
        client = redis.Redis(port=port)
        found = Store(client, client.register_script(script_forms.timed()))
        if request.param != "valkey" and not LONG:
            # All run the same script; on the newest server every step of it is compared.
            found.steps = 2_000
        yield found
        client.close()

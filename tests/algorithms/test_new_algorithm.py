"""A new algorithm needs two files and one entry in the table, as CONTRIBUTING.md describes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limen.model.algorithm import ALGORITHMS
from tests import servers

SOURCE = Path(__file__).parents[2] / "src" / "limen"
ENTRY = '    "toy_counter": Algorithm("tc", ("string_state", "toy_counter")),\n'
TABLE = "ALGORITHMS: dict[str, Algorithm] = {\n"

PYTHON = '''
"""Toy counter: at most `quota` units until no unit was charged for a whole period."""

from msgspec import Struct

from limen.model import UNCHARGED


class ToyCounterState(Struct):
    limit: object
    count: int = 0
    expires_us: int = 0
    offset_us: int = 0

    def decide(self, limit, now_us, cost, charge):
        # advance
        count = self.count if now_us < self.expires_us else 0

        # decide
        allowed = count + cost <= limit.quota
        retry_us, stamp_us = 0 if allowed else self.expires_us - now_us, UNCHARGED

        # store
        if allowed and charge:
            count = count + cost
            self.limit, self.count, self.expires_us = limit, count, now_us + limit.period_us
            stamp_us = now_us

        # reply
        return allowed, limit.quota - count, retry_us, self.expires_us - now_us, 0, stamp_us

    def refund(self, now_us, cost, stamp_us):
        self.count -= cost
        return cost

    def debit(self, now_us, cost):
        self.count += cost
'''

LUA = """
-- Toy counter. The twin of toy_counter.py: same steps, same names.
--
-- State: a string, ">I4 I7": count, expires_us.
-- TTL: until the period after the last charge ends.

local STATE = ">I4I7"

local function decide(key, kept, limit, now_us, cost, charge)
  -- advance
  local count, expires_us = 0, 0
  if kept then count, expires_us = struct.unpack(STATE, kept) end
  if now_us >= expires_us then count = 0 end

  -- decide
  local allowed = count + cost <= limit.quota
  local retry_us, stamp_us = allowed and 0 or expires_us - now_us, UNCHARGED

  -- store
  if allowed and charge then
    count = count + cost
    expires_us = now_us + limit.period_us
    stamp_us = now_us
    keep(key, struct.pack(STATE, count, expires_us), limit.period_us)
  end

  -- reply
  return allowed and 1 or 0, limit.quota - count, retry_us, expires_us - now_us, 0, stamp_us
end

local function corrections()
  local function change(key, kept, limit, now_us, cost)
    local count, expires_us = struct.unpack(STATE, kept)
    keep(key, struct.pack(STATE, count + cost, expires_us), expires_us - now_us)
    return cost
  end

  local function refund(key, kept, limit, now_us, cost)
    return -change(key, kept, limit, now_us, -cost)
  end

  local function left_us(kept, limit, now_us)
    local _, expires_us = struct.unpack(STATE, kept)
    return expires_us - now_us
  end

  return {refund = refund, debit = change, left_us = left_us}
end

return {load = load, decide = decide, corrections = corrections}
"""

USE = """
import sys

from limen import Limiter
from limen.rules import parse
from limen.rules.spec import json_schema

[rule] = parse({"rules": [{"name": "a", "limits": "3/minute", "algorithm": "toy_counter"}]}).rules
[limit] = rule.allowances.own.limits
assert limit.algorithm == "toy_counter"
assert limit.identity.startswith("tc:")
assert '"toy_counter"' in str(json_schema()).replace("'", '"')
for store in ("memory://", sys.argv[1]):
    with Limiter(store, deadline=20) as limiter:
        decisions = [limiter.check("key", limit) for _ in range(4)]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert not any(decision.degraded for decision in decisions)
        assert 59 < decisions[3].retry_after <= 60
        assert limiter.refund(decisions[0])
        assert limiter.peek("key", limit).remaining == 1
        assert limiter.settle(decisions[1], 2)
        assert limiter.peek("key", limit).remaining == 0
        other = limiter.check("key", limit, "5/minute token_bucket")
        assert not other.allowed
print("done")
"""


def test_two_files_and_one_entry_make_an_algorithm(tmp_path: Path) -> None:
    package = tmp_path / "limen"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    (package / "algorithms" / "toy_counter.py").write_text(PYTHON, encoding="utf-8")
    (package / "algorithms" / "toy_counter.lua").write_text(LUA.lstrip(), encoding="utf-8")
    table = package / "model" / "algorithm.py"
    text = table.read_text("utf-8")
    assert text.count(TABLE) == 1
    # First in the table, so that the codes of all others in the script change.
    table.write_text(text.replace(TABLE, TABLE + ENTRY), encoding="utf-8")
    with servers.server(servers.binaries()["valkey"]) as port:
        ran = subprocess.run(
            [sys.executable, "-c", USE, f"redis://127.0.0.1:{port}"],
            env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_is_documented(name: str) -> None:
    page = SOURCE.parents[1] / "docs" / "choosing-an-algorithm.md"
    assert f"`{name}`" in page.read_text("utf-8")


def test_codes_of_algorithms_differ() -> None:
    # "ff" is a fixed window from the first request, "co" are slots.
    codes = [*(algorithm.code for algorithm in ALGORITHMS.values()), "ff", "co"]
    assert len(set(codes)) == len(codes)

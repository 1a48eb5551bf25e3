"""The description is true: schemathesis asks all that it says, and all that it does not, as each
role. No answer is a 5xx, none has a status or a form that is not described.

`LIMEN_FUZZ=1` asks longer, and differently each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limen.rules.stores.tokens import Role
from limen.server.admin import PREFIX
from tests.server.admin.serving import serving, tokens

ROLES: tuple[Role, ...] = ("check", "viewer", "editor", "admin")
LONG = bool(os.environ.get("LIMEN_FUZZ"))
# Who may do everything sees every boundary of every path; the others are asked in fewer ways.
PHASES = () if LONG else ("--phases", "examples,fuzzing")
# What a schema allows may still make no sense, such as a limit of "x": that is a 422.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 422]
"""


class Served:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.tokens = tokens(url, folder / "data", *ROLES)
        self._folder = folder

    def fuzz(self, *options: str, examples: int = 4) -> None:
        """Let schemathesis ask; the test fails with what it found."""
        config = self._folder / "schemathesis.toml"
        config.write_text(CONFIG)
        hard = (
            ("--max-examples", "150") if LONG else ("--max-examples", str(examples), "--seed", "1")
        )
        told = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"),
                *(f"{self.url}/openapi.json", "--checks", "all", "--workers", "2"),
                *("--generation-database", "none", "--warnings", "off", *hard, *options),
                # A stream has no end to wait for: test_live.py holds it to the description.
                *("--exclude-path", f"{PREFIX}/live"),
            ],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout[-20_000:] + told.stderr[-2_000:]
        assert "Traceback" not in (self._folder / "log").read_text()


@pytest.fixture(scope="module", params=["token"])
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzzed")
    flags = {"auth.checks": request.param}
    with serving(folder / "data", folder / "log", **flags) as url:
        yield Served(url, folder)


@pytest.mark.timeout(1_800 if LONG else 120)
@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_answered_as_described(served: Served, role: Role) -> None:
    header = ("--header", f"Authorization: Bearer {served.tokens[role]}")
    if role == "admin":
        served.fuzz(*header)
    else:
        served.fuzz(*header, *PHASES, examples=2)


@pytest.mark.timeout(600 if LONG else 120)
@pytest.mark.parametrize("served", ["open"], indirect=True)
def test_open_checks_are_answered_as_described(served: Served) -> None:
    served.fuzz("--include-path-regex", "^/(v1|healthz|readyz)", *PHASES)


def test_no_secret_is_in_the_log(served: Served) -> None:
    log = (served._folder / "log").read_text()
    assert not any(secret in log for secret in served.tokens.values())

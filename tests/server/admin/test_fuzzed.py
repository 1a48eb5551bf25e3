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
from tests.server.admin.serving import Serving, serving, tokens

ROLES: tuple[Role, ...] = ("check", "viewer", "editor", "admin")
LONG = bool(os.environ.get("LIMEN_FUZZ"))
# Who may do everything sees every boundary of every path; the others are asked in fewer ways.
PHASES = () if LONG else ("--phases", "examples,fuzzing")
# What a schema allows may still make no sense, such as a limit of "x": that is a 422.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 422]
"""


DATA_PLANE = r"^/(v1/|json$)"
"""The paths of the data plane, as a regular expression."""


class Served:
    def __init__(self, service: Serving, folder: Path) -> None:
        self.service = service
        self.tokens = tokens(service.url, folder / "data", *ROLES)
        self._folder = folder

    @property
    def log(self) -> str:
        return (self._folder / "err").read_text()

    def fuzz_control_plane(self, *options: str, examples: int = 4) -> None:
        # A stream has no end to wait for: test_live.py holds it to the description.
        without = ("--exclude-path-regex", DATA_PLANE, "--exclude-path", f"{PREFIX}/live")
        self._fuzz(self.service.url, *without, *options, examples=examples)

    def fuzz_data_plane(self, *options: str, examples: int = 4) -> None:
        """Ask the data plane; it answers `/healthz` and `/readyz` as well."""
        only = ("--include-path-regex", rf"{DATA_PLANE}|^/(healthz|readyz)$")
        self._fuzz(self.service.data_url, *only, *options, examples=examples)

    def _fuzz(self, url: str, *options: str, examples: int) -> None:
        """Let schemathesis ask the plane at `url`; the test fails with what it found."""
        config = self._folder / "schemathesis.toml"
        config.write_text(CONFIG)
        hard = (
            ("--max-examples", "150") if LONG else ("--max-examples", str(examples), "--seed", "1")
        )
        told = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"),
                *(f"{self.service.url}/openapi.json", "--url", url, "--checks", "all"),
                # One thread: in Python 3.11, ast.parse in two threads can raise SystemError.
                *("--workers", "1", "--generation-database", "none", "--warnings", "off"),
                *(*hard, *options),
            ],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout[-20_000:] + told.stderr[-2_000:]
        assert "Traceback" not in self.log


@pytest.fixture(scope="module", params=["token"])
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with serving(folder, folder / "data", auth__checks=request.param) as service:
        yield Served(service, folder)


@pytest.mark.timeout(1_800 if LONG else 120)
@pytest.mark.parametrize(
    "role",
    [
        "admin",
        "editor",
        pytest.param("viewer", marks=pytest.mark.slow),
        pytest.param("check", marks=pytest.mark.slow),
    ],
)
def test_each_role_is_answered_as_described(served: Served, role: Role) -> None:
    header = ("--header", f"Authorization: Bearer {served.tokens[role]}")
    served.fuzz_control_plane(*header, *PHASES, examples=2)
    served.fuzz_data_plane(*header, *PHASES, examples=2)


@pytest.mark.slow
@pytest.mark.timeout(1_800 if LONG else 120)
def test_requests_that_follow_from_each_other_are_answered_as_described(served: Served) -> None:
    header = ("--header", f"Authorization: Bearer {served.tokens['admin']}")
    served.fuzz_control_plane(*header)
    served.fuzz_data_plane(*header)


@pytest.mark.timeout(600 if LONG else 120)
@pytest.mark.parametrize("served", ["open"], indirect=True)
def test_open_checks_are_answered_as_described(served: Served) -> None:
    served.fuzz_data_plane(*PHASES)


def test_no_secret_is_in_the_log(served: Served) -> None:
    assert not any(secret in served.log for secret in served.tokens.values())

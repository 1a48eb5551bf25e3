"""The start message of `limen serve`: the addresses of both planes, and notes about risks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limen import __version__
from limen.cli.serve import _print_start
from limen.server.process.main import Started
from limen.server.settings import load
from limen.server.worker.data_dir import Prepared

DATA = "http://127.0.0.1:8080"
ADMIN = "http://127.0.0.1:8082"
UNENCRYPTED = "tokens travel unencrypted"


def printed(
    capsys: pytest.CaptureFixture[str], admin: str | None = ADMIN, **flags: Any
) -> dict[str, str]:
    """Return the rows of the start message by their names; the first line is under ""."""
    settings = load({name.replace("__", "."): value for name, value in flags.items()}, {})
    prepared = Prepared(Path(".limen/admin-token"), is_first=True)
    _print_start(settings, Started(DATA, admin, "127.0.0.1:8081", prepared))
    first, *rows = capsys.readouterr().out.splitlines()
    return {"": first} | {row[2:14].strip(): row[15:] for row in rows}


def test_both_planes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys)
    assert rows[""] == f"limen {__version__} serves at {DATA}"
    assert rows["dashboard"] == f"{ADMIN}/"
    assert rows["API"] == f"{ADMIN}/docs"
    assert rows["metrics"] == f"{ADMIN}/metrics"
    assert rows["try it"].startswith(f"curl {DATA}/v1/check ")
    assert rows["gRPC"].startswith("127.0.0.1:8081")
    assert rows["admin token"] == "in .limen/admin-token"
    assert "note" not in rows


def test_control_plane_that_is_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, None, admin__bind="")
    assert rows[""].endswith(f"serves at {DATA}")
    assert rows["dashboard"].startswith("off")
    assert not {"API", "metrics"} & set(rows)
    assert "admin token" in rows


@pytest.mark.parametrize("name", ["bind", "grpc__bind", "admin__bind"])
def test_unencrypted_tokens_are_noted_for_each_listener(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    flags: dict[str, Any] = {name: "0.0.0.0:9999"}
    assert printed(capsys, **flags)["note"].startswith(UNENCRYPTED)


def test_open_decisions_are_noted_for_the_data_plane_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    tls: dict[str, Any] = {
        "tls__certificate": str(tmp_path / "tls.crt"),
        "tls__key": str(tmp_path / "tls.key"),
    }
    opened = printed(capsys, bind=":9999", auth__checks="open", **tls)
    assert opened["note"].startswith("any client that can connect may use up quotas")
    assert "note" not in printed(capsys, admin__bind=":9999", auth__checks="open", **tls)

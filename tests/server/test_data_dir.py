"""A first start without a token is refused where other machines reach a listener that needs one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from limen.errors import ConfigurationError
from limen.server.settings import load
from limen.server.worker.data_dir import Place


@pytest.mark.parametrize(
    ("flags", "exposed"),
    [
        ({"bind": ":1"}, ":1"),
        ({"grpc.bind": ":2"}, ":2"),
        ({"admin.bind": ":3"}, ":3"),
        ({"admin.bind": ":3", "auth.checks": "open"}, ":3"),
        ({"bind": ":1", "admin.bind": ":3", "auth.checks": "open"}, ":3"),
        ({}, None),
        ({"admin.bind": ""}, None),
        ({"bind": ":1", "grpc.bind": ":2", "auth.checks": "open"}, None),
        ({"bind": ":1", "admin.bind": ":3", "auth.admin_token": "x" * 16}, None),
    ],
)
def test_exposed_listener_requires_a_token(
    tmp_path: Path, flags: dict[str, str], exposed: str | None
) -> None:
    place = Place(load({"data_dir": str(tmp_path), **flags}, {}))
    if exposed is None:
        asyncio.run(place.prepare())
        return
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(place.prepare())
    assert str(caught.value).startswith(f"{exposed} can be reached from other machines")

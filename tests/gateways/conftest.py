"""What the tests share: limen, the application, and every gateway twice, started side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.gateways import gateways, limens
from tests.gateways.app import app
from tests.gateways.door import Door, hall
from tests.gateways.gateways import GUARDED, KINDS, SHIPPED, TOKEN, UNSURE, Gateway, Kind
from tests.gateways.limens import Limen
from tests.gateways.places import new_port
from tests.servers import HOST


@pytest.fixture(scope="package")
def app_port() -> Iterator[int]:
    with app() as port:
        yield port


@pytest.fixture(scope="package")
def make_door() -> Iterator[Callable[[], Door]]:
    with hall() as make:
        yield make


@pytest.fixture(scope="package")
def running(
    app_port: int, make_door: Callable[[], Door], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Gateway]]:
    """Every gateway, by its name."""
    rules = SHIPPED / "rules.yaml"
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("limens")
        nowhere = f"redis://{HOST}:{new_port()}"
        token = {"auth__checks": "token", "auth__check_token": TOKEN}
        unguarded, guarded, *storeless = stack.enter_context(
            limens.running(
                Limen(folder / "open", rules),
                Limen(folder / "token", rules, **token),
                Limen(folder / "open-without-store", rules, store__url=nowhere),
                Limen(folder / "token-without-store", rules, store__url=nowhere, **token),
            )
        )
        found = [
            _gateway(
                kind, fails_open, limen, {UNSURE: without_store, GUARDED: guarded}, make_door()
            )
            for kind in KINDS
            for fails_open, limen, without_store in (
                (True, unguarded, storeless[0]),
                (False, guarded, storeless[1]),
            )
        ]
        waiting = [stack.enter_context(_started(gateway, app_port)) for gateway in found]
        for gateway, wait in zip(found, waiting, strict=True):
            gateway.port = wait()
        yield {str(gateway): gateway for gateway in found}


def _gateway(
    kind: Kind, fails_open: bool, limen: Limen, others: dict[str, Limen], door: Door
) -> Gateway:
    def port(of: Limen) -> int:
        return of.grpc_port if kind.is_grpc else of.port

    door.lead_to(port(limen))
    ports = {name: port(other) for name, other in others.items()}
    return Gateway(kind, fails_open, door, port(limen), ports)


def _started(gateway: Gateway, app_port: int) -> AbstractContextManager[Callable[[], int]]:
    def change(text: str) -> str:
        if gateway.fails_open:
            return text
        return gateways.show_token(gateways.fail_closed(text))

    files = tuple(SHIPPED / name for name in gateway.kind.files)
    limen = {"8080": gateway.door.port, "8081": gateway.door.port}
    return gateways.started(gateway.kind.command, files, change, {**limen, "9000": app_port})


@pytest.fixture(params=[f"{kind.name}-{how}" for kind in KINDS for how in ("open", "closed")])
def gateway(request: pytest.FixtureRequest, running: dict[str, Gateway]) -> Gateway:
    return running[request.param]


@pytest.fixture(params=[kind.name for kind in KINDS if not kind.is_grpc])
def auth_gateway(request: pytest.FixtureRequest, running: dict[str, Gateway]) -> Gateway:
    """One that asks `/v1/auth`, as it is shipped."""
    return running[f"{request.param}-open"]


@pytest.fixture(params=[kind.name for kind in KINDS])
def tokenless(request: pytest.FixtureRequest, running: dict[str, Gateway]) -> Gateway:
    """One that shows limen no token: as it is shipped."""
    return running[f"{request.param}-open"]

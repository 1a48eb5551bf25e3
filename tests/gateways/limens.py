"""limen itself, as gateways find it: `limen serve` with HTTP and gRPC, at ports that are known."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.gateways.places import new_port
from tests.server.running import Running
from tests.servers import HOST


class Limen(Running):
    """A service with these rules; each setting as `auth__checks="token"`."""

    def __init__(self, folder: Path, rules: Path, **settings: str) -> None:
        folder.mkdir()
        self.grpc_port = new_port()
        own = {
            # The clients of these tests are on this host too, at other addresses than the gateways.
            "gateway__trusted_proxies": HOST,
            "gateway__attributes": "api_key=X-Api-Key",
        }
        environ = {f"LIMEN_{name.upper()}": value for name, value in {**own, **settings}.items()}
        flags = ("--rules", str(rules), "--grpc-bind", f"{HOST}:{self.grpc_port}")
        super().__init__(folder, *flags, environ=environ)


@contextmanager
def running(*limens: Limen) -> Iterator[list[Limen]]:
    """Start them side by side; yield them when all are ready."""
    with ExitStack() as stack, ThreadPoolExecutor(len(limens)) as pool:
        yield list(pool.map(stack.enter_context, limens))

"""PostgreSQL over TLS: what `sslmode` means. TLS ends at a proxy: the server of the tests has none.

The proxy speaks the TLS handshake of PostgreSQL as the server does.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from limen.errors import StoreError
from limen.rules.stores.sql import SqlStore
from tests.postgres import ESCAPED_PASSWORD, USER, Postgres
from tests.rules.stores.conftest import DATABASE
from tests.servers import HOST

SSL_REQUEST_BYTES = 8


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for localhost, signed by itself; return it and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    extensions = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", *extensions, *files],
        check=True,
        capture_output=True,
    )
    return made, key


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def tls_proxy(postgres: Postgres, made: Path, key: Path) -> AsyncIterator[int]:
    """Offer TLS in front of a server; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(SSL_REQUEST_BYTES)
            writer.write(b"S")
            await writer.start_tls(context)
            inner_reader, inner_writer = await asyncio.open_connection(HOST, postgres.port)
            await asyncio.wait(
                [
                    asyncio.create_task(pump(reader, inner_writer)),
                    asyncio.create_task(pump(inner_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            inner_writer.close()
        except OSError:
            pass  # the client does not accept the certificate
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, HOST, 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


@pytest.mark.parametrize(
    ("host", "options", "expected"),
    [
        ("localhost", "sslmode=verify-full&sslrootcert={own}", ""),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert={own}", ""),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={own}", "check sslrootcert and the host"),
        ("localhost", "sslmode=verify-full&sslrootcert={other}", "check sslrootcert and the host"),
        ("localhost", "sslmode=require", ""),
        ("localhost", "", ""),
    ],
)
def test_sslmode_decides_how_the_server_is_verified(
    postgres: Postgres,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    options: str,
    expected: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where the driver looks for .postgresql
    (own, key), (other, _) = certificate(tmp_path, "own"), certificate(tmp_path, "other")

    async def work() -> None:
        async with tls_proxy(postgres, own, key) as port:
            query = options.format(own=own, other=other)
            where = f"{host}:{port}/{DATABASE}?{query}"
            store = SqlStore(f"postgresql://{USER}:{ESCAPED_PASSWORD}@{where}")
            await store.prepare()
            assert await store.version() == ""

    if not expected:
        asyncio.run(work())
        return
    with pytest.raises(StoreError, match=expected) as caught:
        asyncio.run(work())
    assert "the certificate of the server is not accepted" in str(caught.value)

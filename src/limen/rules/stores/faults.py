"""What went wrong in a database, in one line that says what to do. Knows no rules, shows no secret.

Every error of SQLAlchemy, of a driver or of the system becomes a `StoreError` here, and only here.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from limen.errors import StoreError
from limen.rules.stores.address import Address
from limen.rules.stores.tables import REVISIONS

TO_PREPARE = "run `limen rules apply FILE` (in a program: `prepare()`), or name another place"
NOT_PREPARED = f"there are no tables of limen yet; {TO_PREPARE}"
_NO_FILE = f"there is no such file; {TO_PREPARE}"
_GONE = (
    "the server went away in the middle; what was being changed is there as a whole or not at all: "
    "look at `limen rules history`"
)
_NO_ANSWER = "the server did not answer in time; check that it runs, and try again"
_STARTING = "the server is starting or shutting down; try again"
_NO_TABLES = ("no such table", "no such column", "has no column named")
"""What SQLite says of tables that are not there, or of an older limen."""
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_SQLITE = {
    **dict.fromkeys(
        _BUSY, "another process has held it for too long; try again, or end that process"
    ),
    "SQLITE_FULL": "the disk is full; make room, and try again",
    "SQLITE_IOERR": "the disk failed to read or write: it is full, over its quota, or broken",
    "SQLITE_READONLY": "it is read-only; let this user write the file and its folder",
    "SQLITE_CANTOPEN": "the file cannot be opened; let this user read and write it and its folder",
    "SQLITE_PERM": "the file cannot be opened; let this user read and write it and its folder",
    "SQLITE_NOTADB": "the file is not a database of SQLite; check the address",
    "SQLITE_CORRUPT": "the file is damaged; restore it from a backup",
}
_POSTGRESQL = {
    "28": "the user or the password was refused; check the address",
    "3D000": "there is no such database; create it, or check the address",
    "42P01": NOT_PREPARED,
    "42703": NOT_PREPARED,
    "42501": "this user lacks the right; make it the owner of the tables of limen",
    "25006": (
        "the server is read-only; use the address of the primary, or turn "
        "default_transaction_read_only off"
    ),
    "53100": "the disk of the server is full; make room, and try again",
    "53300": "the server has too many connections; try again, or allow it more",
    "57014": "the server ended the query, which took too long; try again",
    "57P": _STARTING,
    "08": _GONE,
    "40": "another change came in between; try again",
    "55P03": "another session of the database holds a lock; end that session or its transaction, "
    "and try again; to find it: SELECT pid, state, query FROM pg_stat_activity JOIN pg_locks "
    "USING (pid) WHERE relation::regclass::text LIKE '%limen%' (pg_terminate_backend(pid) ends it)",
}

_TLS_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_NO_SUCH_OPTION = "42704"
"""What a driver does not know of the options in an address, it asks the server to set."""


class NotPrepared(StoreError):
    """Say that there are no tables yet: `prepare` was never called there."""

    def __init__(self, message: str = NOT_PREPARED) -> None:
        super().__init__(message)


class NoAnswer(StoreError):
    """Say that the server does not answer yet: it hangs, or it is starting."""


class NewerSchema(StoreError):
    """Say that a newer limen made the tables: they may be readable, and are not written."""


_KINDS: dict[str, type[StoreError]] = {
    NOT_PREPARED: NotPrepared,
    _NO_FILE: NotPrepared,
    _NO_ANSWER: NoAnswer,
    _STARTING: NoAnswer,
}


def newer_schema(revision: str | None) -> NewerSchema | None:
    """Return the error for a revision of the schema that is not known; None for known ones."""
    if revision is None or revision in REVISIONS:
        return None
    return NewerSchema(
        f"the rule database has schema revision {revision}, and this limen supports revisions up "
        f"to {REVISIONS[-1]}; upgrade limen"
    )


@contextmanager
def in_plain_words(address: Address) -> Iterator[None]:
    """Turn whatever a database can raise inside into a `StoreError`."""
    try:
        yield
    except _foreign() as error:
        reason = _reason(error, address)
        raise _KINDS.get(reason, StoreError)(f"rules at {address.shown}: {reason}") from error


def is_busy(error: BaseException) -> bool:
    """Say whether SQLite refused because somebody else holds the lock."""
    return isinstance(error, DBAPIError) and _sqlite_name(error.orig).startswith(_BUSY)


def _foreign() -> tuple[type[Exception], ...]:
    asyncpg = sys.modules.get("asyncpg")  # who has not imported it cannot have raised it
    drivers = () if asyncpg is None else (asyncpg.PostgresError, asyncpg.InterfaceError)
    return (SQLAlchemyError, OSError, sqlite3.Error, *drivers)


def _reason(error: BaseException, address: Address) -> str:
    cause = (error.orig if isinstance(error, DBAPIError) else error) or error
    if isinstance(cause, sqlite3.Error):
        return _reason_of_sqlite(cause, address)
    if isinstance(cause, OSError):
        return _reason_of_system(cause, address)
    code = str(getattr(cause, "sqlstate", None) or "")
    if code == _NO_SUCH_OPTION:
        return f"{_first_line(cause)}; take that option out of the address"
    for length in (5, 3, 2):
        if code[:length] in _POSTGRESQL:
            return _POSTGRESQL[code[:length]]
    if "connection" in str(cause) and not code:
        return _GONE
    return _first_line(cause)


def _reason_of_sqlite(error: sqlite3.Error, address: Address) -> str:
    if any(missing in str(error) for missing in _NO_TABLES):
        return NOT_PREPARED
    if address.path is not None:
        try:
            if not address.path.exists():
                return _file_for_a_folder(address.path) or _NO_FILE
        except OSError as trouble:  # a folder on the way lets nobody in
            return _reason_of_system(trouble, address)
    name = _sqlite_name(error)
    for known, reason in _SQLITE.items():
        if name.startswith(known):
            return reason
    return _first_line(error)


def _reason_of_system(error: OSError, address: Address) -> str:
    if address.path is not None:
        reason = _file_for_a_folder(address.path)
        return reason or f"{_first_line(error)}; let this user write there, or choose another place"
    file = _unreadable_file(address)
    if file is not None:
        return f"{file}; correct the path in the address, or let this user read the file"
    if isinstance(error, TimeoutError):
        return _NO_ANSWER
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the server is not accepted ({error.verify_message}); check "
            "sslrootcert and the host in the address"
        )
    if isinstance(error, socket.gaierror):
        if address.is_doubtful:
            return "no such host is known; in the password, write @ as %40"
        return "no such host is known; check the address"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return _GONE
    if isinstance(error, ConnectionRefusedError):
        return "nobody answers there; check that the server runs, and the address"
    return f"no connection to the server ({_first_line(error)}); check that it runs"


def _unreadable_file(address: Address) -> str | None:
    """Say which file for TLS cannot be read: the driver says that there is no such file."""
    options = address.options
    for option in _TLS_FILES:
        path = options.get(option) or os.environ.get(f"PG{option.upper()}")
        if not path:
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            return f"cannot read {path} ({option}): {_first_line(error)}"
    return None


def _file_for_a_folder(path: Path) -> str | None:
    """Say when something on the way to a file is a file itself."""
    try:
        wrong = next((each for each in path.parents if each.is_file()), None)
    except OSError:
        return None
    if wrong is None:
        return None
    return f"{wrong} is a file, and should be a folder; move it, or choose another place"


def _sqlite_name(error: object) -> str:
    return str(getattr(error, "sqlite_errorname", None) or "")


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0][:200]

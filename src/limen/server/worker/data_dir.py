"""What a service keeps on its host: the data folder, and in it secrets that it makes by itself.

`prepare` is called once, before any worker starts. A secret is made once, readable by its owner
alone, and never printed by anything here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from msgspec import Struct

from limen.connect import is_shared
from limen.errors import ConfigurationError, InvalidRules, StoreError
from limen.rules.document import load, parse, parse_text
from limen.rules.stores import address
from limen.rules.stores.faults import NewerSchema, NoAnswer
from limen.rules.stores.file import FileStore
from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tokens import Role, new_secret
from limen.rules.sync.files import LastGood
from limen.server.settings import Settings

_FIRST_ANSWER_S = 1.0
"""How long the start waits for a connection to the database, before the service listens."""
_ADMIN_TOKEN, _SECRET = "admin-token", "secret"
_logger = logging.getLogger("limen.server")


class Prepared(Struct, frozen=True):
    """What `prepare` has to tell."""

    admin_token: Path | None
    """The file with the token that was made here; None when the settings have one."""
    is_first: bool
    """Whether the starter rules were put there just now."""


class Place:
    """The data folder, as the settings have it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder: Path = Path(settings.data_dir)

    @property
    def rules_file(self) -> Path | None:
        """The file that the rules are in; None when they are in a database."""
        rules = self._settings.rules.get_secret_value()
        return Path(rules) if rules and "://" not in rules else None

    @property
    def books(self) -> str:
        """The address of the database."""
        return self._settings.database.get_secret_value()

    def secret(self) -> str:
        """Return what signs receipts. Raises `StoreError` when it cannot be read."""
        return self._settings.auth.secret.get_secret_value() or _read(self.folder / _SECRET)

    def fixed_tokens(self) -> Mapping[Role, str]:
        """Return the tokens that hold whatever the database says."""
        auth, own = self._settings.auth, self.folder / _ADMIN_TOKEN
        admin = auth.admin_token.get_secret_value() or (_read(own) if own.exists() else "")
        return {"admin": admin, "check": auth.check_token.get_secret_value()}

    async def prepare(self) -> Prepared:
        """Make the folder, its secrets and the tables. Raises `LimenError` when that fails.

        A database that does not answer is left to `open`. One that fails otherwise is tolerated
        when the rules can come from elsewhere.
        """
        _make_folder(self.folder)
        self._look_at_file()
        if not self._settings.auth.secret.get_secret_value():
            _keep(self.folder / _SECRET, secrets.token_urlsafe(32))
        self._warn_of_unverified_server()
        books = SqlStore(self.books, connect_timeout=_FIRST_ANSWER_S)
        try:
            is_first = await self.open(books)
            await self._refuse_strangers(books)
            await self._look_at_rules(books)
        except StoreError as error:
            if not isinstance(error, NoAnswer) and not self._can_do_without(books):
                raise
            _logger.warning("starting without the database: %s", error)
            is_first = False
        finally:
            await books.close()
        if self._settings.auth.admin_token.get_secret_value():
            return Prepared(None, is_first)
        _keep(self.folder / _ADMIN_TOKEN, new_secret())
        return Prepared(self.folder / _ADMIN_TOKEN, is_first)

    def _warn_of_unverified_server(self) -> None:
        database = address.parse(self.books)
        if address.lacks_sslmode(database, os.environ):
            _logger.warning(
                "the connection to %s may be unencrypted, and the server is not verified; add "
                "?sslmode=verify-full&sslrootcert=FILE to the address, or sslmode=disable on a "
                "trusted network",
                database.shown,
            )

    def _look_at_file(self) -> None:
        """Raise for a file of rules that nobody could go by; a good one of before will do."""
        if self.rules_file is None or self._last_good(FileStore(self.rules_file)).is_usable:
            return
        try:
            load(self.rules_file)
        except InvalidRules as error:
            raise ConfigurationError(f"{self.rules_file}: {error}") from None

    async def _look_at_rules(self, books: SqlStore) -> None:
        """Raise for invalid rules in the database, unless rules can come from elsewhere."""
        if self.rules_file is not None or self._can_do_without(books):
            return
        snapshot = await books.load()
        try:
            if snapshot is not None:
                parse(snapshot.document)
        except InvalidRules as error:
            place = self._settings.rules_place
            raise ConfigurationError(f"the rules in {place}: {error}") from None

    async def open(self, books: SqlStore) -> bool:
        """Bring the database up to date; return whether the starter rules were put there."""
        try:
            await books.prepare()
        except NewerSchema as error:
            await books.load()  # raises when the rules cannot be read either
            _logger.warning("changes to rules and tokens are refused: %s", error)
            return False
        # Only where nobody chose the place: elsewhere, no rules may be what somebody wants.
        if self._settings.rules.get_secret_value() or await books.latest() is not None:
            return False
        text = (resources.files("limen.server.worker") / "starter.yaml").read_text("utf-8")
        document = dict(parse_text(text).document)
        await books.save(document, author="limen", comment="the starter rules", base=None)
        return True

    async def _refuse_strangers(self, books: SqlStore) -> None:
        """Raise when other machines can reach a listener that needs a token, and none exists."""
        settings = self._settings
        if any(self.fixed_tokens().values()):
            return
        exposed = [
            bind
            for name, bind in settings.listeners.items()
            if not bind.is_loopback and (name == "admin.bind" or not settings.checks_are_open)
        ]
        if not exposed or any(token.revoked_at is None for token in await books.tokens()):
            return
        raise ConfigurationError(
            f"{exposed[0]} can be reached from other machines, and there is no token yet; run "
            "`limen token create --role admin --name you`, or set LIMEN_AUTH__ADMIN_TOKEN_FILE"
        )

    def _can_do_without(self, books: SqlStore) -> bool:
        store = books if self.rules_file is None else FileStore(self.rules_file)
        return self._last_good(store).is_usable or is_shared(
            self._settings.store.url.get_secret_value()
        )

    def _last_good(self, store: FileStore | SqlStore) -> LastGood:
        return LastGood(self.folder, store.source)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"the data folder {folder} cannot be made: {error.strerror}") from None


def _keep(path: Path, secret: str) -> None:
    """Write a secret, unless one is there: of several who start at once, one does."""
    try:
        if path.exists():
            return  # also when the disk is full
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
        # Never seen half written: it gets its name when it is whole, and only if nobody has it.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        fresh.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None

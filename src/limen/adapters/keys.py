"""Key functions: whom a limit counts apart. Pure.

A key is one of `ip`, `user`, `route`, `header(...)` and `everyone`, by name or by itself; a
function of the framework's own request; several of them together, as a tuple; or the first that is
known, by `either`. Requests without a key never share one counter: they are refused, not limited,
or an error, as `missing` says.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from types import CellType, CodeType
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct

from limen._internal.functions import is_async, name_of
from limen.adapters.request import Request
from limen.errors import ConfigurationError, did_you_mean, shown

Missing = Literal["error", "skip", "deny"]
_HEADER = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
"""What HTTP takes for the name of a header, but for `%`."""
KeyFunction = Callable[[Any], str | None] | Callable[[Any], Awaitable[str | None]]


class Key(Struct, eq=False):
    """Whom a limit counts apart. Made by the names of this module."""

    name: str
    """What errors call it: `"ip"`, `"header X-Api-Key"`, `"shop.tenant_of"`."""
    _read: Callable[[Request], str | None] | None
    per: tuple[str, ...] = ()
    """What a person is told is counted apart: `("user",)`."""
    missing: Missing = "error"
    """What happens without an answer, where the limit does not say."""
    function: KeyFunction | None = None
    """The user's own; None for those that are built in."""
    reads_user: bool = False
    """Whether it asks who is logged in, which may take a database."""
    label: str = ""
    """What keeps apart who counts by different things; the name, if not given."""
    _parts: tuple[Key, ...] = ()
    _reported: set[str] = set()

    def __post_init__(self) -> None:
        self.label = self.label or self.name

    def text(self, request: Request) -> str | None:
        """Return what is counted, such as `"ip=192.0.2.7"`; None when it is not known.

        For a function of the user's own, `answered` does that.
        """
        return self._read(request) if self._read is not None else None

    def answered(self, answer: object) -> str | None:
        """Return the same from what a function of the user's own answered."""
        if isinstance(answer, bytes):
            answer = answer.decode("utf-8", "surrogateescape")
        if isinstance(answer, str) and answer:
            return f"{self.label}={_escaped(answer)}"
        return None

    def lacking(self, request: Request) -> Key:
        """Return which key has no answer: of several together, the first."""
        return next((key for key in self._parts if key.text(request) is None), self)

    def why(self, answer: object) -> str:
        """Say why there is no key. Never shows the answer itself: it may be a secret."""
        if self.function is None:
            return f"the key {self.name!r} is not known for this request"
        empty = "empty " if isinstance(answer, str | bytes) else ""
        got = "None" if answer is None else f"{empty}{type(answer).__name__}"
        return f"the key function {self.name} returned {got}, and not text"

    def is_first_report(self, why: str) -> bool:
        """Return whether a problem of this key function is new: each is logged once.

        Clients can cause it with every request, so it must not fill the log.
        """
        if why in self._reported:
            return False
        self._reported.add(why)
        return True

    def __repr__(self) -> str:
        return f"<Key {self.name}>"


def header(name: str) -> Key:
    """Count by a header that the client sends, such as `header("X-Api-Key")`.

    Who sends none, or several, is refused: only count by what somebody checks, since whoever may
    choose the value chooses a bucket.
    """
    if not isinstance(name, str) or not _HEADER.fullmatch(name):
        raise ConfigurationError(f"expected the name of a header, got {shown(name)}")
    lower = name.lower()
    label = f"header:{lower}="

    def read(request: Request) -> str | None:
        values = request.header(lower)
        return label + _escaped(values[0]) if len(values) == 1 and values[0] else None

    return Key(f"header {name}", read, per=(name,), missing="deny")


def either(*keys: Key | str) -> Key:
    """Count by the first that is known: `either("user", "ip")`."""
    found = [_built_in(key, "either") for key in keys]
    if len(found) < 2:
        raise ConfigurationError('either takes two keys or more, such as either("user", "ip")')

    def read(request: Request) -> str | None:
        return next(filter(None, (key.text(request) for key in found)), None)

    name = " or ".join([key.name for key in found])
    reads_user = any(key.reads_user for key in found)
    return Key(name, read, missing=found[-1].missing, reads_user=reads_user)


def key_of(key: object) -> Key:
    """Return the key that an argument names, or raise `ConfigurationError`."""
    if isinstance(key, Key):
        return key
    if isinstance(key, str):
        if key.startswith("header:"):
            return header(key.removeprefix("header:"))
        if key in _NAMED:
            return _NAMED[key]
        raise ConfigurationError(
            f"unknown key {shown(key)}{did_you_mean(key, _NAMED)}; there are: "
            f"{', '.join(_NAMED)}, header:NAME, or a function of the request"
        )
    if isinstance(key, tuple) and key:
        return _together([_built_in(each, "a tuple of keys") for each in key])
    if callable(key):
        # One that is not async may look at `request.user`.
        reads_user = not is_async(key)
        return Key(name_of(key), None, (), "deny", key, reads_user, _label(key))
    raise ConfigurationError(
        f"key must be a name such as 'ip', a function of the request, or a tuple, got {shown(key)}"
    )


def _together(keys: list[Key]) -> Key:
    def read(request: Request) -> str | None:
        texts = [key.text(request) for key in keys]
        return None if None in texts else " ".join(filter(None, texts))

    per = tuple([name for key in keys for name in key.per])
    name = " and ".join([key.name for key in keys])
    reads_user = any(key.reads_user for key in keys)
    return Key(name, read, per, reads_user=reads_user, _parts=tuple(keys))


def _built_in(key: object, where: str) -> Key:
    found = key_of(key)
    if found.function is not None:
        raise ConfigurationError(
            f"{where} takes names such as 'ip', got the function {found.name}; call it alone, and "
            "let it return all that tells clients apart"
        )
    return found


def _label(function: Callable[..., object]) -> str:
    name = name_of(function)
    code = getattr(function, "__code__", None)
    if code is None or ("<lambda>" not in name and "<locals>" not in name):
        return name
    # All lambdas of a module have the same name, and so has what a function returns each time; what
    # they count must not get mixed. By what they read, and not by where they stand: a line above
    # them changes nothing.
    read = _canonical((code, tuple(map(_held, getattr(function, "__closure__", None) or ()))))
    return f"{name}:{crc32(read.encode('utf-8', 'surrogatepass')):08x}"


def _held(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing, yet
        return None


def _canonical(value: object) -> str:
    """Return what a constant is, the same in every process."""
    if isinstance(value, CodeType):
        return _canonical((value.co_names, value.co_consts, value.co_freevars))
    if isinstance(value, tuple):
        return f"({','.join(map(_canonical, value))})"
    if isinstance(value, frozenset | set):
        return f"{{{','.join(sorted(map(_canonical, value)))}}}"
    if isinstance(value, str | bytes | int | float | bool | None):
        return repr(value)
    return type(value).__qualname__


def _escaped(value: str) -> str:
    """Return a value in which no blank stands: what follows one is another key."""
    if " " in value or "%" in value:
        return value.replace("%", "%25").replace(" ", "%20")
    return value


def _ip(request: Request) -> str | None:
    client = request.client
    return None if client is None else f"ip={client.key}"


def _user(request: Request) -> str | None:
    found = request.user
    return f"user={_escaped(found)}" if found else None


def _route(request: Request) -> str | None:
    found = request.endpoint
    return f"route={_escaped(found)}" if found else None


ip: Key = Key("ip", _ip, per=("ip",))
"""Count by address. Behind proxies, say which are trusted: `addresses=AddressSettings(...)`."""
user: Key = Key("user", _user, per=("user",), missing="deny", reads_user=True)
"""Count by who is logged in, as the framework knows it. Who is not is refused: see `either`."""
route: Key = Key("route", _route)
"""Count each endpoint apart, by its template, whoever asks."""
everyone: Key = Key("everyone", lambda request: "everyone")
"""Count all together: one bucket for everybody, on purpose."""

_NAMED = {
    "ip": ip,
    "user": user,
    "route": route,
    "everyone": everyone,
    "user_or_ip": either(user, ip),
}

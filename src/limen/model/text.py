"""User text in keys and on terminals.

As part of a key it is injective, printable, and never longer than asked for.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import quote

_SAFE = "!$'()*+,-./:;=@_~ "
_is_plain = re.compile(r"[A-Za-z0-9!$'()*+,\-./:;=@_~ ]*").fullmatch
"""Says of most keys, quickly, that there is nothing to escape."""
DIGEST_MARK = "#"
DIGEST_LENGTH = 41


def escaped(text: str, most: int) -> str:
    """Return `text` with all but harmless characters escaped, or its digest when that is too long.

    `most` is at least `DIGEST_LENGTH`. Neither `{`, `}`, `|`, `#` nor `%` survives as itself.
    """
    if len(text) <= most:
        if _is_plain(text):
            return text
        plain = quote(text, safe=_SAFE, errors="surrogatepass")
        if len(plain) <= most:
            return plain
    return digest(text)


def digest(text: str) -> str:
    """Return a stand-in that no escaped text can equal, because escaped text has no `#`."""
    return DIGEST_MARK + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def printable(text: str) -> str:
    """Return a text on one line, with control characters escaped: `\\n`, `\\x1b`."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )

"""What a text is, that should be the path of a file. Opens none."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LOGIN = re.compile(r"[^\s/:@]+:[^\s@]+@")


def is_there(path: str) -> bool:
    """Return whether there is such a file, or something that does not let us look for it."""
    try:
        return Path(path).exists()
    except PermissionError:
        return True
    except OSError:
        return False


def can_be_read(path: str) -> bool:
    """Return whether a path is that of a file which this process may read."""
    try:
        return Path(path).is_file() and os.access(path, os.R_OK)
    except OSError:
        return False


def is_address(text: str) -> bool:
    """Return whether a text is rather an address, which may hold a password, than a path."""
    return "://" in text or (_LOGIN.match(text) is not None and not is_there(text))

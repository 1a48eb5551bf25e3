"""Every shape of a state's key, in one place. Knows no store.

A key is injective (no two states share one, whatever text users send) and bounded (however long
that text is). See docs/adr/0007-key-format.md.
"""

from __future__ import annotations

from limen.model import Check
from limen.model.text import DIGEST_MARK, digest, escaped

MAX_NAMESPACE = 32
MAX_BYTES = 200
MAX_PLAIN = 200
_MAX_TEXT = 43


def memory_key(check: Check) -> str:
    """Return the key of a state in this process: what the limit adds, then the user's text.

    Long text is kept as its digest, behind a mark that no limit's identity begins with.
    """
    if len(check.key) <= MAX_PLAIN:
        return check.limit.identity + check.key
    return DIGEST_MARK + check.limit.identity + digest(check.key)


def redis_key(namespace: str, check: Check) -> str:
    """Return the key of a state in Redis: `namespace:{subject}identity`, and the key if it differs.

    The braces are the hash tag: states of one subject live on one node of a cluster. Braces in the
    user's own text are escaped, so that it cannot choose the slot.
    """
    key, subject = check.key, check.subject
    if subject is None or subject == key:
        return f"{namespace}:{{{escaped(key, _MAX_TEXT)}}}{check.limit.identity}"
    tag, rest = escaped(subject, _MAX_TEXT), escaped(key, _MAX_TEXT)
    return f"{namespace}:{{{tag}}}{check.limit.identity}{rest}"


def marker_key(key: str, receipt_id: str) -> str:
    """Return the key that says that a receipt was used on the state at `key`, in the same slot."""
    return f"{key}#{receipt_id}"


def rules_channel(namespace: str) -> str:
    """Return the channel on which new rules and the kill switch are announced."""
    return f"{namespace}:{{rules}}news"

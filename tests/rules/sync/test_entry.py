"""A rule set on its way: what is not believed, and that nothing else is ever raised."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.errors import LimenError
from limen.rules import parse
from limen.rules.document import digest
from limen.rules.stores import Snapshot
from limen.rules.sync import Poisoned
from limen.rules.sync.entry import FORMAT, MAX_BYTES, decode, encode
from tests.rules.sync.processes import rule_set
from tests.rules.sync.test_poison import DOCUMENTS, FORMS, mutations

DOCUMENT = rule_set(7, 5)


def written(**changed: Any) -> bytes:
    fields = {
        "format": FORMAT,
        "version": "7",
        "digest": digest(changed.get("document", DOCUMENT)),
        "written_at": 1.5,
        "document": DOCUMENT,
        **changed,
    }
    return msgspec.json.encode(fields)


def test_what_is_written_is_read() -> None:
    entry = decode(encode(Snapshot("7", DOCUMENT)))
    assert entry.snapshot == Snapshot("7", DOCUMENT)
    assert entry.digest == digest(DOCUMENT)


@pytest.mark.parametrize(
    "document",
    [
        {"rules": []},
        {"rules": [{"name": "a", "description": "ü \U0001f600 \u2028", "limits": "1/day"}]},
        {"rules": [], "numbers": [0, -1, 1.5, 1e300, 2**63 - 1, True, None]},
    ],
)
def test_every_document_has_the_same_digest_after_the_journey(document: dict[str, Any]) -> None:
    assert decode(encode(Snapshot("1", document))).document == document


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it cannot be read"),
        (b"null", "it cannot be read"),
        (b"\xff", "it cannot be read"),
        (b"[" * 200_000, "it cannot be read"),
        (b'{"format": 2}', "it has format 2, expected 1"),
        (b'{"format": 0, "x": [[[]]]}', "it has format 0, expected 1"),
        (b'{"format": "1"}', "it cannot be read"),
        (written(extra=1), "it cannot be read"),
        (written(version=7), "it cannot be read"),
        (written(version=""), "its version is ''"),
        (written(version="7" * 65), "its version is "),
        (written(document=[]), "it cannot be read"),
        (written(digest="0" * 64), "its digest is not that of its document"),
        (written(digest=digest(DOCUMENT).upper()), "its digest is not that of its document"),
        (b" " * (MAX_BYTES + 1), "it has 8,388,609 bytes, expected at most 8,388,608"),
    ],
)
def test_what_is_not_believed_and_why(data: bytes, reason: str) -> None:
    with pytest.raises(Poisoned) as caught:
        decode(data)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=500) | mutations() | FORMS | DOCUMENTS)
def test_whatever_the_bytes_it_is_poison_or_good_rules_or_invalid_ones(data: bytes) -> None:
    try:
        entry = decode(data)
        parse(entry.document, version=entry.version)
    except LimenError:
        return
    assert digest(entry.document) == entry.digest

"""The last good rules in a file: replaced as a whole, read with distrust."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from limen.errors import StoreError
from limen.rules.stores import Snapshot
from limen.rules.stores.file import FileStore
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Poisoned
from limen.rules.sync.files import RULES, LastGood
from tests.rules.sync.processes import rule_set

SOURCE = "file:/etc/limen/rules.yaml"


def test_what_is_kept_is_read_and_nothing_else_is_left_there(tmp_path: Path) -> None:
    kept = LastGood(tmp_path / "new" / "folder", SOURCE)
    assert kept.read() is None
    for number in (1, 2):
        kept.write(Snapshot(str(number), rule_set(number, 5)))
        entry = kept.read()
        assert entry is not None
        assert entry.snapshot == Snapshot(str(number), rule_set(number, 5))
    assert [path.name for path in kept.path.parent.iterdir()] == [RULES]


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 100])
def test_a_damaged_file_is_not_believed(tmp_path: Path, damage: bytes) -> None:
    kept = LastGood(tmp_path, SOURCE)
    kept.path.write_bytes(damage)
    with pytest.raises(Poisoned):
        kept.read()


def test_a_file_that_was_cut_anywhere_is_not_believed(tmp_path: Path) -> None:
    kept = LastGood(tmp_path, SOURCE)
    kept.write(Snapshot("1", rule_set(1, 5)))
    whole = kept.path.read_bytes()
    for length in range(0, len(whole), 7):
        kept.path.write_bytes(whole[:length])
        with pytest.raises(Poisoned):
            kept.read()


def test_what_cannot_be_read_or_written_is_one_line(tmp_path: Path) -> None:
    kept = LastGood(tmp_path, SOURCE)
    kept.path.mkdir()
    with pytest.raises(StoreError, match=r"last-good\.json cannot be read: Is a directory"):
        kept.read()
    with pytest.raises(StoreError, match=r"last-good\.json cannot be written: Is a directory"):
        kept.write(Snapshot("1", rule_set(1, 5)))
    assert [path.name for path in tmp_path.iterdir()] == [RULES]


def test_threads_that_keep_together_leave_one_whole_file(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                LastGood(tmp_path, SOURCE).write(Snapshot(str(number), rule_set(number, 5)))
                entry = LastGood(tmp_path, SOURCE).read()
                assert entry is not None
                assert entry.document == rule_set(int(entry.version), 5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == [RULES]


@pytest.mark.parametrize("source", ["file:/etc/limen/other.yaml", ""])
def test_rules_of_another_or_unknown_source_are_not_used_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    LastGood(tmp_path, source).write(Snapshot("1", rule_set(1, 5)))
    kept = LastGood(tmp_path, SOURCE)
    assert [kept.read(), kept.read()] == [None, None]
    assert not kept.is_usable
    assert [record.getMessage() for record in caplog.records] == [
        f"{kept.path} has the rules of {source or 'an unknown source'}, not of {SOURCE}; not used"
    ]
    kept.write(Snapshot("2", rule_set(2, 5)))
    assert kept.is_usable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://ann:s3cret@db:5432/limen", "postgres://bob@db:5432/limen?sslmode=require"),
        ("sqlite:///rules.db", f"sqlite:///{Path.cwd()}/rules.db"),
    ],
)
def test_source_of_a_database_is_its_place_without_the_login(one: str, other: str) -> None:
    assert SqlStore(one).source == SqlStore(other).source
    assert "ann" not in SqlStore(one).source
    assert "s3cret" not in SqlStore(one).source


def test_sources_of_two_files_and_two_databases_differ() -> None:
    stores: list[FileStore | SqlStore] = [
        FileStore("rules.yaml"),
        FileStore("other.yaml"),
        SqlStore("sqlite:///rules.yaml"),
        SqlStore("postgresql://db/limen"),
        SqlStore("postgresql://db/other"),
        SqlStore("postgresql://db2/limen"),
    ]
    assert len({store.source for store in stores}) == len(stores)

"""No password on the screen: wherever an address lands, and whatever is wrong with it."""

from __future__ import annotations

import pytest

from limen.masking import masked
from tests.cli.acts import SECRET, Run

ADDRESS = f"postgresql://joe:{SECRET}@127.0.0.1:1/x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://joe:pw@host/db", "postgresql://joe:***@host/db"),
        ("'postgres://joe:p:w/1@2@host/db': no", "'postgres://joe:***@host/db': no"),
        ("postgresql://joe:p w@host/db", "postgresql://joe:***@host/db"),
        ("postgresql://joe:12/34@host/db", "postgresql://***@host/db"),
        ("redis://:pw@host", "redis://***@host"),
        ("https://token@host/path", "https://***@host/path"),
        ("a://b:c@d and e://f:g@h", "a://b:***@d and e://f:***@h"),
        ("rules at postgresql://joe:***@h/x: no", "rules at postgresql://joe:***@h/x: no"),
        ("'postgresql://joe:very-long...'", "'postgresql://joe:***'"),
        ("'postgresql://joe:very-long... got", "'postgresql://joe:*** got"),
        ("(postgresql://joe:pw)", "(postgresql://joe:***)"),
        # What is no login stays.
        (
            "redis://a:1,b:22/x and redis://[::1]:6379/0",
            "redis://a:1,b:22/x and redis://[::1]:6379/0",
        ),
        (
            "--store redis://host:6379; redis://host:6379",
            "--store redis://host:6379; redis://host:6379",
        ),
        ("postgresql://user:password@host/database", "postgresql://user:password@host/database"),
        ("sqlite:///rules.db by ann@example.com", "sqlite:///rules.db by ann@example.com"),
        ("redis://host:6379: no answer, ask ops@x", "redis://host:6379: no answer, ask ops@x"),
        ("see https://example.com, or me@here", "see https://example.com, or me@here"),
        ("joe:pw@host", "joe:pw@host"),
        (f"got limen_3f2a91c0_{43 * 'x'}", "got limen_3f2a91c0_***"),
        ("'limen_3f2a91c0_abcdefg...'", "'limen_3f2a91c0_***...'"),
        ("limen_tokens of limen_3f2a91c0", "limen_tokens of limen_3f2a91c0"),
    ],
)
def test_a_login_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("command", "expected", "option"),
    [
        (f"rules diff {ADDRESS}", "a file", "--rules"),
        (f"rules diff 1 {ADDRESS}", "a file", "--rules"),
        (f"rules show {ADDRESS}", "a rule", "--rules"),
        (f"rules validate {ADDRESS}", "a file", "--rules"),
        (f"rules apply {ADDRESS}", "a file", "--rules"),
        (f"rules export -o {ADDRESS}", "a file", "--rules"),
        (f"rules import-envoy {ADDRESS}", "a file", "--rules"),
        (f"rules import-envoy rules.yaml -o {ADDRESS}", "a file", "--rules"),
        (f"explain {ADDRESS}", "an attribute", "--rules"),
        (f"explain {ADDRESS}?sslmode=require", "an attribute", "--rules"),
        (f"explain user=7 --at {ADDRESS}", "a time", "--rules"),
        (f"explain redis://:{SECRET}@host", "an attribute", "--store"),
        (f"kill-switch on rediss://:{SECRET}@host", "a rule", "--store"),
        (f"rules validate joe:{SECRET}@host/x", "a file", "--rules"),
    ],
)
def test_an_address_where_something_else_belongs_is_not_repeated(
    limen: Run, applied: str, command: str, expected: str, option: str
) -> None:
    ran = limen(*command.split())
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err == f"limen: that is an address, not {expected}; did you mean {option}?\n"


@pytest.mark.parametrize(
    "command",
    [
        f"rules history {ADDRESS}",
        f"rules rollback {ADDRESS}",
        f"rules validate {ADDRESS} --json",
        f"rules import-envoy rules.yaml --algorithm {ADDRESS}",
        f"demo {ADDRESS}",
        f"demo postgresql://joe:{SECRET}",
        f"explain user=7 --namespace postgresql://joe:{SECRET * 20}@host",
        f"explain user=7 --namespace {ADDRESS}",
        f"explain user=7 --store {ADDRESS}",
        f"rules show --rules postgresql:joe:{SECRET}@host/x",
        f"rules show --rules postgresql://joe:{SECRET}",
    ],
)
def test_an_address_in_any_other_place_shows_no_password(
    limen: Run, applied: str, command: str
) -> None:
    # The fixture looks for the secret in all that is printed.
    assert limen(*command.split()).exit_code == 2


def test_a_password_in_a_comment_is_not_shown(limen: Run, file: str) -> None:
    limen("rules", "apply", file, "--comment", f"moved to {ADDRESS}")
    assert "moved to postgresql://joe:***@127.0.0.1:1/x" in limen("rules", "history").out
    assert "moved to postgresql://joe:***@127.0.0.1:1/x" in limen("rules", "audit").out

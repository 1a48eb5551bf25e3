"""Configurations in the manner of envoyproxy/ratelimit, imported and decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limen import Limiter
from limen.engine import Engine
from limen.rules import parse_text
from limen.rules.envoy import Imported, attributes_of, import_files
from limen.rules.text import write
from limen.testing import ManualClock
from tests.rules.envoy.reference import DAY, SECONDS

FOLDER = Path(__file__).parent
GOOD = sorted((FOLDER / "good").glob("*.yaml"))
BAD = sorted((FOLDER / "bad").glob("*.yaml"))
ENDLESS = 20
"""As many requests as are sent to see that nothing stops them."""

Entries = list[tuple[str, str]]


def imported(*paths: Path, algorithm: str = "fixed_window") -> Imported:
    return import_files([(path.name, path.read_bytes()) for path in paths], algorithm)


class Service:
    """Rules of some files, in force, under a clock that stands still."""

    def __init__(self, *names: str) -> None:
        found = imported(*(FOLDER / "good" / f"{name}.yaml" for name in names))
        assert not found.problems
        self.clock = ManualClock(start=1_700_000_040)
        rules = parse_text(write(found.document))
        self.engine = Engine(rules, Limiter(clock=self.clock), clock=self.clock)

    def passing(self, domain: str, *entries: tuple[str, str]) -> int:
        """Return how many of many equal requests pass."""
        facts = attributes_of(domain, entries)
        verdicts = [self.engine.decide(facts) for _ in range(ENDLESS)]
        assert all(len({part.rule for part in verdict.parts}) <= 1 for verdict in verdicts)
        allowed = [verdict.allowed for verdict in verdicts]
        assert allowed == sorted(allowed, reverse=True)
        return sum(allowed)


@pytest.mark.parametrize(
    ("name", "domain", "entries", "expected"),
    [
        ("messaging", "messaging", [("recipient", "bob")], 5),
        ("messaging", "messaging", [("kind", "newsletter"), ("recipient", "bob")], 2),
        ("messaging", "messaging", [("kind", "invoice"), ("recipient", "bob")], 4),
        ("messaging", "messaging", [("kind", "invoice")], 7),
        # The value was found, and it has no limit: the entry without a value is not asked.
        ("messaging", "messaging", [("kind", "newsletter")], ENDLESS),
        # Likewise one level down.
        (
            "messaging",
            "messaging",
            [("kind", "newsletter"), ("recipient", "ada@example.org")],
            ENDLESS,
        ),
        (
            "messaging",
            "messaging",
            [("kind", "newsletter"), ("recipient", "ada@example.org"), ("campaign", "may")],
            1,
        ),
        # As deep as the request, no deeper and no less.
        ("messaging", "messaging", [("recipient", "bob"), ("kind", "invoice")], ENDLESS),
        (
            "messaging",
            "messaging",
            [("kind", "invoice"), ("recipient", "bob"), ("campaign", "may")],
            ENDLESS,
        ),
        ("messaging", "messaging", [], ENDLESS),
        ("messaging", "another", [("recipient", "bob")], ENDLESS),
        ("messaging", "messaging", [("recipient", "")], 5),
        ("messaging", "messaging", [("Recipient", "bob")], ENDLESS),
        ("edge", "edge", [("remote_address", "192.0.2.1")], 3),
        ("edge", "edge", [("remote_address", "203.0.113.5")], 0),
        ("edge", "edge", [("remote_address", "198.51.100.7")], ENDLESS),
        ("edge", "edge", [("remote_address", "198.51.100.8")], ENDLESS),
        ("edge", "edge", [("path", "/api/users")], 4),
        ("edge", "edge", [("path", "/api/")], 4),
        ("edge", "edge", [("path", "/api/health")], 9),
        ("edge", "edge", [("path", "/api")], 2),
        ("edge", "edge", [("path", "/static/a.css")], 6),
        ("edge", "edge", [("path", "/stats")], 5),
        ("edge", "edge", [("path", "")], 2),
        ("soft", "soft", [("service", "billing"), ("user", "ada")], ENDLESS),
        ("soft", "soft", [("service", "billing"), ("user", "bob")], 2),
        ("soft", "soft", [("service", "billing"), ("user", "eve")], ENDLESS),
        ("soft", "soft", [("service", "search")], ENDLESS),
        ("soft", "soft", [("service", "search"), ("user", "ada")], 3),
        ("odd", "odd * domain", [("header_match", "get"), ("header_match", "beta")], 2),
        ("odd", "odd * domain", [("header_match", "get"), ("header_match", "any")], 3),
        ("odd", "odd * domain", [("header_match", "beta"), ("header_match", "get")], ENDLESS),
        ("odd", "odd or domain", [("header_match", "get"), ("header_match", "beta")], ENDLESS),
        ("odd", "odd * domain", [(":path", "/")], 4),
        ("odd", "odd * domain", [("path", "/")], ENDLESS),
        ("odd", "odd * domain", [("ip", "not an address")], 5),
        ("odd", "odd * domain", [("ip", "192.0.2.1")], ENDLESS),
        ("odd", "odd * domain", [("domain", "a"), ("descriptor", "b")], 6),
        ("odd", "odd * domain", [("tenant/1", "a"), ("日本", "∅")], 7),
        ("odd", "odd * domain", [("tenant/1", "a"), ("日本", "")], 8),
        ("odd", "odd * domain", [("tenant", "a"), ("1/日本", "")], ENDLESS),
    ],
)
def test_a_descriptor_is_held_to_its_limit(
    name: str, domain: str, entries: Entries, expected: int
) -> None:
    assert Service(name).passing(domain, *entries) == expected


def test_several_files_are_several_domains() -> None:
    service = Service("messaging", "edge", "soft")
    assert service.passing("messaging", ("recipient", "192.0.2.1")) == 5
    assert service.passing("edge", ("remote_address", "192.0.2.1")) == 3
    assert service.passing("soft", ("remote_address", "192.0.2.1")) == ENDLESS


def test_without_a_value_each_value_has_its_own_counter() -> None:
    service = Service("messaging")
    assert [service.passing("messaging", ("recipient", who)) for who in ("a", "b", "")] == [5] * 3
    assert service.passing("messaging", ("recipient", "a")) == 0


def test_a_pattern_counts_each_value_apart_unless_it_is_shared() -> None:
    service = Service("edge")
    assert service.passing("edge", ("path", "/api/a")) == 4
    assert service.passing("edge", ("path", "/api/b")) == 4
    assert service.passing("edge", ("path", "/static/a")) == 6
    assert service.passing("edge", ("path", "/static/b")) == 0


def test_two_descriptors_of_one_request_are_counted_apart() -> None:
    service = Service("messaging")
    assert service.passing("messaging", ("kind", "newsletter"), ("recipient", "bob")) == 2
    assert service.passing("messaging", ("recipient", "bob")) == 5


def test_a_shadow_counts_and_tells() -> None:
    service = Service("soft")
    facts = attributes_of("soft", [("service", "billing"), ("user", "ada")])
    parts = [service.engine.decide(facts).parts[0] for _ in range(2)]
    assert [(part.mode, part.allowed) for part in parts] == [("shadow", True), ("shadow", False)]


@pytest.mark.parametrize("unit", SECONDS)
def test_a_window_ends_where_the_clock_says(unit: str) -> None:
    service, now, size = Service("units"), 1_700_000_040, SECONDS[unit]
    assert service.passing("units", ("every", unit)) == 1
    rest = size - now % size
    service.clock.advance(rest - 0.001)
    assert service.passing("units", ("every", unit)) == (0 if rest > 0.001 else 1)
    service.clock.advance(0.001)
    assert service.passing("units", ("every", unit)) == 1


def test_units_are_those_of_the_service() -> None:
    assert SECONDS["month"] == 30 * DAY
    limits = [rule["limits"] for rule in imported(FOLDER / "good" / "units.yaml").document["rules"]]
    assert limits[-3:] == ["1/week", "1 per 30 days", "1 per 365 days"]


def test_the_rules_read_well() -> None:
    rules = imported(FOLDER / "good" / "edge.yaml").document["rules"]
    assert [rule["name"] for rule in rules] == [
        "edge.remote_address",
        "edge.remote_address_203.0.113.5",
        "edge.path_api_any",
        "edge.path_static_any",
        "edge.path_st_any",
        "edge.path_api_health",
        "edge.path",
    ]
    assert rules[2] == {
        "name": "edge.path_api_any",
        "match": {
            "domain": "edge",
            "descriptor": "path",
            "path": {"is": "/api/*", "not": "/api/health"},
        },
        "key": ["path"],
        "limits": "4/minute",
        "algorithm": "fixed_window",
    }
    assert rules[1] == {
        "name": "edge.remote_address_203.0.113.5",
        "match": {
            "domain": "edge",
            "descriptor": "remote_address",
            "remote_address": "203.0.113.5",
        },
        "mode": "block",
    }
    assert "key" not in rules[3]
    assert rules[-1]["match"]["path"] == {"not": ["/api/*", "/static/*", "/st*", "/api/health"]}


def test_no_list_is_written_once_and_pointed_to() -> None:
    for path in GOOD:
        assert "&id" not in write(imported(path).document)


def config(*descriptors: dict[str, Any], domain: str = "d") -> bytes:
    for descriptor in descriptors:
        descriptor.setdefault("rate_limit", {"unit": "day", "requests_per_unit": 1})
    return write({"domain": domain, "descriptors": list(descriptors)}).encode()


def names(raw: bytes) -> list[str]:
    found = import_files([("a.yaml", raw)])
    assert not found.problems
    return [rule["name"] for rule in found.document["rules"]]


def test_names_are_unique_and_short_and_stay_when_a_rule_is_added() -> None:
    values = ["/a", "a", "a/", "x" * 80 + "1", "x" * 80 + "2", "/", "//"]
    entries = [{"key": "日本", "value": value} for value in values]
    before = names(config(*entries, domain="??"))
    assert len(set(before)) == len(values)
    assert all(1 <= len(name) <= 64 for name in before)
    assert before[0] == "a"
    assert before[5] == "rule"
    assert names(config(*entries, {"key": "new"}, domain="??")) == [*before, "new"]


def test_the_name_of_a_limit_becomes_a_description() -> None:
    limit = {"unit": "day", "requests_per_unit": 1, "name": "five a day"}
    found = import_files([("a.yaml", config({"key": "a", "rate_limit": limit}))])
    assert found.document["rules"][0]["description"] == "five a day"


def test_what_is_not_the_same_here_is_noted() -> None:
    found = imported(FOLDER / "good" / "notes.yaml")
    expected = (FOLDER / "good" / "notes.txt").read_text()
    assert "".join(f"{note}\n" for note in found.notes) == expected


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_nothing_else_is_noted(path: Path) -> None:
    silent = {"messaging", "odd", "soft"}
    assert bool(imported(path).notes) == (path.stem not in silent)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_refused_with_all_its_problems(path: Path) -> None:
    found = imported(path)
    assert "".join(f"{problem}\n" for problem in found.problems) == (
        path.with_suffix(".txt").read_text()
    )
    assert found.document == {"rules": []}


def test_one_bad_file_spoils_the_good_ones() -> None:
    found = imported(*GOOD, *BAD)
    assert found.document == {"rules": []}
    assert {problem.file for problem in found.problems} == {path.name for path in BAD}


def test_files_of_one_domain_are_put_together() -> None:
    one, two = config({"key": "a"}), config({"key": "a", "value": "x"})
    found = import_files([("1.yaml", one), ("2.yaml", two)])
    assert [rule["match"].get("a") for rule in found.document["rules"]] == [{"not": "x"}, "x"]
    assert [str(note) for note in found.notes] == [
        "2.yaml:1: domain: added to what 1.yaml says of 'd', as with MERGE_DOMAIN_CONFIG"
    ]
    again = import_files([("1.yaml", one), ("2.yaml", one)])
    assert [str(problem) for problem in again.problems] == [
        "2.yaml:3: descriptors[0]: the same key and value stand in descriptors[0] of 1.yaml, line 3"
    ]


def test_another_algorithm_counts_all() -> None:
    path = FOLDER / "good" / "edge.yaml"
    rules = imported(path, algorithm="token_bucket").document["rules"]
    assert {rule.get("algorithm") for rule in rules} == {"token_bucket", None}


def test_what_an_algorithm_cannot_hold_is_a_problem_of_its_line() -> None:
    limit = {"unit": "day", "requests_per_unit": 2_000_000}
    raw = config({"key": "a"}, {"key": "b", "rate_limit": limit})
    found = import_files([("a.yaml", raw)], "packed_window")
    [problem] = found.problems
    assert str(problem).startswith("a.yaml:7: descriptors[1]: packed_window holds at most")


def test_a_value_that_is_no_text_to_yaml_is_as_it_is_written() -> None:
    raw = b"""
domain: 7
descriptors:
  - {key: on, value: no, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: on, value: 012, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: on, value: true, rate_limit: {unit: day, requests_per_unit: 1}, shadow_mode: YES}
  - {key: on, value: null, rate_limit: {unit: day, requests_per_unit: 1}}
"""
    rules = import_files([("a.yaml", raw)]).document["rules"]
    assert [rule["match"]["domain"] for rule in rules] == ["7"] * 4
    values = [rule["match"]["on"] for rule in rules]
    assert values == ["no", "012", "true", {"not": ["no", "012", "true"]}]
    assert [rule.get("mode") for rule in rules] == [None, None, "shadow", None]


def test_thousands_of_values_are_imported_in_a_moment() -> None:
    entries = [{"key": "user", "value": f"u{number}"} for number in range(2_000)]
    found = import_files([("a.yaml", config(*entries, {"key": "user"}, {"key": "x"}))])
    assert len(found.document["rules"]) == 2_002


def test_a_domain_without_limits_stays_known() -> None:
    config = b"domain: edge*\ndescriptors: [{key: user}]\n"
    found = import_files([("edge.yaml", config)])
    assert not found.problems
    rules = parse_text(write(found.document))
    assert [(rule.name, rule.mode) for rule in rules.rules] == [("edge", "off")]
    assert rules.is_about("domain", "edge*")
    assert not rules.is_about("domain", "edges")


def test_quota_mode_refuses_nobody() -> None:
    """As there: in that mode the service reports what is over, and answers OK."""
    config = b"""
domain: edge
descriptors:
  - {key: user, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
"""
    found = import_files([("edge.yaml", config)])
    [note] = found.notes
    assert "refuses nobody, as there" in str(note)
    engine = Engine(parse_text(write(found.document)), Limiter(clock=ManualClock()))
    facts = attributes_of("edge", [("user", "1")])
    assert all(engine.decide(facts).allowed for _ in range(3))

"""The rule files in `examples/rules`: each is read, and each of its rules is met by requests.

A scenario tells a story of one file, on a clock that moves only when told to. Each is a test of its
own; and all of one file together must have seen every rule of it let pass and refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from limen import Limiter
from limen.engine import Engine, Part, RequestRefused, RuleSlot, Verdict
from limen.rules import load
from limen.testing import ManualClock

FOLDER = Path(__file__).parents[2] / "examples" / "rules"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3_600, 86_400


class Desk:
    """Where requests are decided by one example, and what its rules were seen to say."""

    def __init__(self, example: str) -> None:
        self.clock = ManualClock(NOON.timestamp())
        limiter = Limiter(clock=self.clock)
        self.engine = Engine(load(FOLDER / f"{example}.yaml"), limiter, clock=self.clock)
        self.close = limiter.close
        self.seen: set[tuple[str, bool]] = set()
        """Each rule that was met, and whether it let pass."""

    def ask(self, attributes: dict[str, str], cost: int = 1) -> Verdict:
        return self._note(self.engine.decide(attributes, cost))

    def take(self, attributes: dict[str, str]) -> RuleSlot:
        """Take what a request holds while it runs, and keep it."""
        slot = self.engine.slot(attributes)
        self._note(slot.acquire())
        return slot

    def admitted(self, attributes: dict[str, str], most: int = 10_000) -> int:
        """Ask until refused; return how many requests passed."""
        for number in range(most):
            if not self.ask(attributes).allowed:
                return number
        return most

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def at(self, moment: datetime) -> None:
        self.clock.advance(moment.timestamp() - self.clock.monotonic())

    def _note(self, verdict: Verdict) -> Verdict:
        for part in verdict.parts:
            # A rule has refused when it alone did so, or was a shadow; not when it merely agreed.
            if part.allowed or part.mode == "shadow" or verdict.rule == part.rule:
                self.seen.add((part.rule, part.allowed))
        if verdict.allowed:
            met = {part.rule for part in verdict.parts}
            rules = self.engine.rules.rules
            self.seen |= {(of.name, True) for of in rules if of.mode == "block"} - {
                (name, True) for name in met
            }
        return verdict


def part(verdict: Verdict, rule: str) -> Part:
    """Return what the first limit of a rule says."""
    return next(part for part in verdict.parts if part.rule == rule)


# starter.yaml


def anonymous_requests_are_counted_by_address(desk: Desk) -> None:
    assert desk.admitted({"ip": "192.0.2.1", "path": "/"}) == 60
    refused = desk.ask({"ip": "192.0.2.1", "path": "/"})
    assert (refused.rule, refused.retry_after) == ("anonymous-per-ip", 60)
    assert desk.ask({"ip": "192.0.2.2", "path": "/"}).allowed
    assert desk.ask({"ip": "192.0.2.1", "user": "42", "path": "/"}).allowed
    desk.later(60)
    assert desk.ask({"ip": "192.0.2.1", "path": "/"}).allowed


def a_user_may_be_quick_for_a_moment_but_not_all_day(desk: Desk) -> None:
    request = {"ip": "192.0.2.1", "user": "42", "path": "/search"}
    assert desk.admitted(request) == 50
    for _ in range(495):
        desk.later(1)
        assert desk.admitted(request) == 10
    desk.later(1)
    refused = desk.ask(request)
    assert (refused.rule, str(refused.limit)) == ("per-user", "5000/hour")
    desk.later(HOUR)
    assert desk.ask(request).allowed


def all_together_stay_below_the_ceiling(desk: Desk) -> None:
    for number in range(40):
        assert desk.ask({"user": str(number)}, cost=50).allowed
    refused = desk.ask({"user": "new"})
    assert (refused.rule, refused.retry_after) == ("ceiling", 0.001)
    health = desk.ask({"path": "/healthz"})
    assert health.allowed
    assert health.exempt == ("health-checks",)
    desk.later(1)
    assert desk.ask({"user": "new"}).allowed


# saas.yaml


def each_plan_has_its_rate(desk: Desk) -> None:
    rates = {"free": 60, "team": 60, "business": 200, "made-up": 60, "": 30}
    for plan, rate in rates.items():
        request = {"account": f"of-{plan}", "user": f"of-{plan}", "plan": plan}
        assert desk.admitted(request) == rate, plan
        assert desk.ask(request).rule == "rate"
    enterprise = {"account": "initech", "user": "7", "plan": "enterprise"}
    assert desk.admitted(enterprise, most=500) == 500
    assert part(desk.ask(enterprise), "rate").limit is None
    desk.later(MINUTE)
    assert desk.ask({"account": "of-free", "user": "of-free", "plan": "free"}).allowed


def a_quota_is_by_day_and_by_month(desk: Desk) -> None:
    request = {"account": "small", "user": "1", "plan": "free"}
    assert desk.ask(request, cost=60).allowed
    desk.later(MINUTE)
    assert desk.ask(request, cost=40).allowed
    refused = desk.ask(request)
    assert (refused.rule, str(refused.limit)) == ("quota", "100/calendar day")
    assert refused.retry_after == 12 * HOUR - MINUTE
    for day in range(17, 26):
        desk.at(datetime(2026, 11, day, 12, tzinfo=UTC))
        assert desk.ask(request, cost=60).allowed
        desk.later(MINUTE)
        assert desk.ask(request, cost=40).allowed
    desk.at(datetime(2026, 11, 26, 12, tzinfo=UTC))
    refused = desk.ask(request)
    assert (refused.rule, str(refused.limit)) == ("quota", "1000/month")
    desk.at(datetime(2026, 12, 1, tzinfo=UTC))
    assert desk.ask(request).allowed


def a_quota_needs_an_account(desk: Desk) -> None:
    refused = desk.ask({"user": "1", "plan": "team"})
    assert (refused.rule, refused.retry_after) == ("quota", None)
    assert part(refused, "quota").reason == "missing"


def an_override_ends_by_itself(desk: Desk) -> None:
    request = {"account": "acme", "user": "42", "plan": "team"}
    assert desk.admitted(request) == 5_000
    assert part(desk.ask(request), "rate").is_override
    desk.at(datetime(2026, 12, 23, 23, 59, 59, tzinfo=UTC))
    assert part(desk.ask(request), "rate").is_override
    desk.at(datetime(2026, 12, 24, tzinfo=UTC))
    assert not part(desk.ask(request), "rate").is_override
    assert desk.admitted(request) == 59


def a_shadow_reports_and_refuses_nobody(desk: Desk) -> None:
    request = {"account": "acme", "user": "7", "plan": "business", "path": "/export/orders"}
    verdicts = [desk.ask(request) for _ in range(12)]
    assert all(verdicts)
    assert [part(verdict, "exports").allowed for verdict in verdicts] == [True] * 10 + [False] * 2
    assert {part(verdict, "exports").mode for verdict in verdicts} == {"shadow"}


def a_quarter_of_the_accounts_is_refused(desk: Desk) -> None:
    refused = 0
    for number in range(400):
        request = {"account": f"a{number}", "user": f"u{number}", "plan": "business"}
        assert desk.ask({**request, "path": "/upload"}, cost=100).allowed
        verdict = desk.ask({**request, "path": "/upload"})
        assert not part(verdict, "uploads").allowed
        refused += not verdict.allowed
    assert 70 < refused < 130


def exemptions_free_from_all_rules_or_from_some(desk: Desk) -> None:
    probe = {"account": "ours", "user": "status-page", "plan": "free"}
    assert desk.admitted(probe, most=200) == 200
    gift = {"account": "acme", "user": "7", "plan": "team", "path": "/import"}
    verdict = desk.ask(gift)
    assert verdict.exempt == ("import-of-acme",)
    assert {part.rule for part in verdict.parts} == {"rate"}
    desk.at(datetime(2026, 12, 1, tzinfo=UTC))
    assert {part.rule for part in desk.ask(gift).parts} == {"rate", "quota"}


# llm.yaml


def chat(tokens: int | None = 1_000, *, plan: str = "paid", **more: str) -> dict[str, str]:
    request = {"org": "acme", "api_key": "k1", "plan": plan, "model": "large", "path": "/v1/chat"}
    return {**request, **({} if tokens is None else {"tokens": str(tokens)}), **more}


def an_estimate_is_asked_for(desk: Desk) -> None:
    refused = desk.ask(chat(None))
    assert (refused.rule, part(refused, "tokens").reason) == ("tokens", "missing")
    assert desk.ask(chat()).allowed


def requests_are_counted_whatever_they_cost(desk: Desk) -> None:
    assert desk.admitted(chat(10, plan="trial")) == 10
    assert desk.ask(chat(10, plan="trial")).rule == "requests"
    assert desk.admitted(chat(10, plan="paid", api_key="k2")) == 600
    anonymous = desk.ask({name: of for name, of in chat().items() if name != "api_key"})
    assert (anonymous.rule, part(anonymous, "requests").reason) == ("requests", "missing")


def tokens_come_back_evenly_for_each_model_apart(desk: Desk) -> None:
    assert desk.ask(chat(15_000, plan="trial")).allowed
    refused = desk.ask(chat(10_000, plan="trial"))
    assert (refused.rule, refused.remaining, refused.retry_after) == ("tokens", 5_000, 15)
    assert desk.ask(chat(10_000, plan="trial", model="small")).allowed
    never = desk.ask(chat(20_001, plan="trial"))
    assert (never.rule, never.retry_after) == ("tokens", None)
    desk.later(15)
    assert desk.ask(chat(10_000, plan="trial")).allowed


def the_budget_ends_at_midnight(desk: Desk) -> None:
    for _ in range(5):
        assert desk.ask(chat(20_000, plan="trial")).allowed
        desk.later(MINUTE)
    refused = desk.ask(chat(1, plan="trial"))
    assert (refused.rule, str(refused.limit)) == ("budget", "100000/calendar day")
    assert refused.retry_after == 12 * HOUR - 5 * MINUTE
    desk.later(12 * HOUR)
    assert desk.ask(chat(1, plan="trial")).allowed


def an_answer_is_settled_at_what_it_took(desk: Desk) -> None:
    with desk.engine.slot(chat(8_000, plan="trial", stream="true")) as slot:
        verdict = slot.verdict
        assert verdict is not None
        assert part(verdict, "tokens").remaining == 12_000
        assert {part.rule for part in verdict.parts} == {"requests", "tokens", "budget", "streams"}
    assert desk.engine.settle(verdict, {"tokens": 731})
    assert not desk.engine.settle(verdict, {"tokens": 731})
    left = desk.engine.peek(chat(1, plan="trial"))
    assert part(left, "tokens").remaining == 20_000 - 731
    assert part(left, "budget").remaining == 100_000 - 731
    assert part(left, "requests").remaining == 9


def an_answer_that_failed_is_given_back(desk: Desk) -> None:
    verdict = desk.ask(chat(8_000, plan="trial"))
    assert desk.engine.refund(verdict)
    left = desk.engine.peek(chat(1, plan="trial"))
    assert [part(left, rule).remaining for rule in ("requests", "tokens", "budget")] == [
        10,
        20_000,
        100_000,
    ]


def four_streams_at_once(desk: Desk) -> None:
    stream = chat(100, stream="true")
    assert desk.ask(stream).not_applicable == ("streams",)
    slots = [desk.take(stream) for _ in range(4)]
    assert all(slot.verdict for slot in slots)
    fifth = desk.take(stream).verdict
    assert fifth is not None
    assert (fifth.allowed, fifth.rule) == (False, "streams")
    with pytest.raises(RequestRefused, match="refused by rule streams"), desk.engine.slot(stream):
        pass
    assert desk.take(chat(100)).verdict, "one that is not streamed holds no place"
    assert slots[0].release()
    assert desk.take(stream).verdict
    desk.later(60)
    assert desk.take(stream).verdict, "those that were not heard of are forgotten"


# login.yaml


def login(ip: str, account: str, path: str = "/login") -> dict[str, str]:
    return {"ip": ip, "account": account, "path": path, "method": "POST"}


def guessing_keeps_the_door_shut(desk: Desk) -> None:
    assert desk.admitted(login("192.0.2.1", "alice")) == 5
    assert desk.ask(login("192.0.2.1", "alice")).rule == "pair"
    desk.later(9 * MINUTE)
    assert not desk.ask(login("192.0.2.1", "alice")), "and this try counts too"
    desk.later(9 * MINUTE)
    assert desk.ask(login("192.0.2.1", "alice")).allowed
    assert desk.ask(login("192.0.2.9", "alice")).allowed, "the owner, from elsewhere"


def a_right_password_costs_nothing(desk: Desk) -> None:
    for _ in range(1_000):
        verdict = desk.ask(login("192.0.2.1", "alice"))
        assert verdict.allowed
        assert desk.engine.refund(verdict)


def one_address_tries_many_accounts(desk: Desk) -> None:
    admitted = [desk.ask(login("192.0.2.1", f"user{number}")) for number in range(31)]
    assert [verdict.allowed for verdict in admitted] == [True] * 30 + [False]
    assert (admitted[-1].rule, str(admitted[-1].limit)) == ("ip", "30/minute")
    passed = 30
    for minute in range(9):
        desk.later(MINUTE)
        tries = [desk.ask(login("192.0.2.1", f"user{minute}-{number}")) for number in range(30)]
        passed += sum(verdict.allowed for verdict in tries)
    assert passed == 200
    assert str(desk.ask(login("192.0.2.1", "bob")).limit) == "200/hour"


def many_addresses_try_one_account(desk: Desk) -> None:
    tries = [desk.ask(login(f"198.51.100.{number}", "alice")) for number in range(21)]
    assert [verdict.allowed for verdict in tries] == [True] * 20 + [False]
    assert tries[-1].rule == "account"
    assert desk.ask(login("198.51.100.1", "bob")).allowed


def many_addresses_try_many_accounts(desk: Desk) -> None:
    tries = [desk.ask(login(f"10.1.{n // 250}.{n % 250}", f"user{n}")) for n in range(601)]
    assert all(tries)
    assert [part(verdict, "everybody").allowed for verdict in tries] == [True] * 600 + [False]


def a_login_without_a_name_or_an_address_is_none(desk: Desk) -> None:
    for request in (login("192.0.2.1", ""), login("", "alice")):
        refused = desk.ask(request)
        assert not refused.allowed
        assert part(refused, "pair").reason == "missing"
        assert refused.retry_after is None


def administrators_come_by_the_company_network(desk: Desk) -> None:
    for outside in ("192.0.2.1", "", "not an address", "2001:db8::1"):
        refused = desk.ask(login(outside, "root", "/admin/login"))
        assert not refused.allowed
        assert part(refused, "admin-from-outside").reason == "blocked"
    for number in range(5):
        assert desk.ask(login(f"10.0.0.{number}", "root", "/admin/login")).allowed
    refused = desk.ask(login("fd00::7", "root", "/admin/login"))
    assert refused.rule == "admin"
    desk.later(HOUR)
    assert desk.ask(login("fd00::7", "root", "/admin/login")).allowed


def reset_mails_are_few(desk: Desk) -> None:
    one = [desk.ask(login(f"192.0.2.{n}", "alice", "/password-reset")) for n in range(4)]
    assert [verdict.allowed for verdict in one] == [True] * 3 + [False]
    assert one[-1].rule == "reset-mails"
    many = [desk.ask(login("198.51.100.1", f"user{n}", "/password-reset")) for n in range(11)]
    assert [verdict.allowed for verdict in many] == [True] * 10 + [False]
    assert many[-1].rule == "reset-mails-per-ip"
    desk.later(HOUR)
    assert desk.ask(login("192.0.2.1", "alice", "/password-reset")).allowed
    assert desk.ask(login("192.0.2.1", "alice", "/password-reset")).allowed
    assert desk.ask(login("192.0.2.1", "alice", "/password-reset")).allowed
    desk.later(HOUR)
    assert str(desk.ask(login("192.0.2.1", "alice", "/password-reset")).limit) == "6/day"


# b2b.yaml


def call(endpoint: str = "/v1/orders", weight: int = 1, **more: str) -> dict[str, str]:
    request = {"org": "acme", "user": "7", "ip": "192.0.2.7", "method": "GET"}
    return {**request, "endpoint": endpoint, "path": endpoint, "weight": str(weight), **more}


def blocked_addresses_are_not_heard(desk: Desk) -> None:
    for ip in ("203.0.113.9", "198.51.100.7", "::ffff:198.51.100.7", "2001:db8:bad::1"):
        refused = desk.ask(call(ip=ip))
        assert (refused.rule, refused.decision) == ("blocked", None)
    for ip in ("192.0.2.7", "198.51.100.8", "2001:db8::1"):
        assert desk.ask(call(ip=ip)).allowed


def an_organisation_has_its_contract(desk: Desk) -> None:
    calls = [desk.ask(call(user=str(number))) for number in range(101)]
    assert [verdict.allowed for verdict in calls] == [True] * 100 + [False]
    assert (calls[-1].rule, calls[-1].retry_after) == ("organisation", 0.02)
    globex = [desk.ask(call(org="globex", user=str(number))) for number in range(1_001)]
    assert [verdict.allowed for verdict in globex] == [True] * 1_000 + [False]
    nobody = desk.ask(call(org=""))
    assert (nobody.allowed, part(nobody, "organisation").reason) == (False, "missing")


def endpoints_weigh_differently(desk: Desk) -> None:
    for number in range(20):
        for user in range(20):
            assert desk.ask(call(weight=50, user=f"{number}-{user}")).allowed
        desk.later(1)
    refused = desk.ask(call(weight=50))
    assert (refused.rule, refused.remaining) == ("points", 0)
    desk.later(2 * HOUR)
    assert desk.ask(call(weight=50)).allowed


def a_user_does_not_take_it_all(desk: Desk) -> None:
    assert desk.admitted(call()) == 30
    assert desk.ask(call()).rule == "user"
    assert desk.ask(call(user="8")).allowed
    assert desk.ask(call(org="globex")).allowed, "another organisation's user 7"


def searches_are_counted_for_each_endpoint(desk: Desk) -> None:
    searches = [desk.ask(call("/v1/search", 5, user=str(n // 25))) for n in range(100)]
    desk.later(1)
    searches += [desk.ask(call("/v1/search", 5, user=str(n))) for n in range(21)]
    assert [verdict.allowed for verdict in searches] == [True] * 120 + [False]
    assert searches[-1].rule == "endpoint"
    assert desk.ask(call("/v1/search/people", 5)).allowed
    assert desk.ask(call("/v1/orders")).allowed


def writes_leave_at_an_even_pace(desk: Desk) -> None:
    writes = [desk.ask(call(method="POST")) for _ in range(12)]
    assert [verdict.delay for verdict in writes[:3]] == [0.0, 0.2, 0.4]
    assert [verdict.allowed for verdict in writes] == [True] * 11 + [False]
    assert (writes[-2].delay, writes[-1].rule) == (2.0, "writes")
    assert desk.ask(call(method="GET")).allowed
    desk.later(writes[-1].retry_after or 0)
    assert desk.ask(call(method="POST")).allowed


def two_reports_at_once_and_a_hundred_a_day(desk: Desk) -> None:
    report = call("/v1/reports", 50, method="POST")
    first, second, third = (desk.take(report) for _ in range(3))
    assert (first.verdict, second.verdict) != (None, None)
    assert third.verdict is not None
    assert (third.verdict.allowed, third.verdict.rule) == (False, "reports-at-once")
    assert first.release()
    assert second.release()
    for _ in range(98):
        desk.later(10)
        held = desk.take(report)
        assert held.verdict
        assert held.release()
    desk.later(10)
    spent = desk.take(report).verdict
    assert spent is not None
    assert (spent.allowed, str(spent.limit)) == (False, "100/day")


Scenario = Callable[[Desk], None]

SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "starter": (
        anonymous_requests_are_counted_by_address,
        a_user_may_be_quick_for_a_moment_but_not_all_day,
        all_together_stay_below_the_ceiling,
    ),
    "saas": (
        each_plan_has_its_rate,
        a_quota_is_by_day_and_by_month,
        a_quota_needs_an_account,
        an_override_ends_by_itself,
        a_shadow_reports_and_refuses_nobody,
        a_quarter_of_the_accounts_is_refused,
        exemptions_free_from_all_rules_or_from_some,
    ),
    "llm": (
        an_estimate_is_asked_for,
        requests_are_counted_whatever_they_cost,
        tokens_come_back_evenly_for_each_model_apart,
        the_budget_ends_at_midnight,
        an_answer_is_settled_at_what_it_took,
        an_answer_that_failed_is_given_back,
        four_streams_at_once,
    ),
    "login": (
        guessing_keeps_the_door_shut,
        a_right_password_costs_nothing,
        one_address_tries_many_accounts,
        many_addresses_try_one_account,
        many_addresses_try_many_accounts,
        a_login_without_a_name_or_an_address_is_none,
        administrators_come_by_the_company_network,
        reset_mails_are_few,
    ),
    "b2b": (
        blocked_addresses_are_not_heard,
        an_organisation_has_its_contract,
        endpoints_weigh_differently,
        a_user_does_not_take_it_all,
        searches_are_counted_for_each_endpoint,
        writes_leave_at_an_even_pace,
        two_reports_at_once_and_a_hundred_a_day,
    ),
}


def play(example: str, scenario: Scenario) -> set[tuple[str, bool]]:
    desk = Desk(example)
    try:
        scenario(desk)
    finally:
        desk.close()
    return desk.seen


@pytest.mark.parametrize(
    ("example", "scenario"),
    [(example, scenario) for example, of in SCENARIOS.items() for scenario in of],
    ids=lambda of: of if isinstance(of, str) else of.__name__,
)
def test_example_decides_as_its_comments_say(example: str, scenario: Scenario) -> None:
    play(example, scenario)


@pytest.mark.parametrize("example", SCENARIOS)
def test_every_rule_of_an_example_lets_pass_and_refuses(example: str) -> None:
    seen = {each for scenario in SCENARIOS[example] for each in play(example, scenario)}
    rules = load(FOLDER / f"{example}.yaml").rules
    assert seen == {(rule.name, allowed) for rule in rules for allowed in (True, False)}


def test_these_examples_there_are() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}.yaml" for name in SCENARIOS}


@pytest.mark.parametrize("example", SCENARIOS)
def test_everything_in_an_example_says_why_it_is_there(example: str) -> None:
    rules = load(FOLDER / f"{example}.yaml")
    assert [rule.name for rule in rules.rules if not rule.description] == []
    assert [exemption.name for exemption in rules.exemptions if not exemption.description] == []


@pytest.mark.parametrize("example", SCENARIOS)
def test_an_example_begins_with_how_to_try_it(example: str) -> None:
    head = (FOLDER / f"{example}.yaml").read_text().partition("\nrules:")[0]
    assert f"limen rules validate examples/rules/{example}.yaml" in head
    assert f"--rules examples/rules/{example}.yaml" in head

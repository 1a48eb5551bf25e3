"""`RateLimit` and the keys: what they take, what they refuse, what they count apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Concurrency, ConfigurationError, InvalidInput, InvalidLimit, Limit
from limen._internal.functions import call_sync
from limen.adapters import AddressSettings, RateLimit, Request, either, header, ip, plan
from limen.adapters.keys import key_of
from limen.adapters.limit import Item
from limen.adapters.manner import Manner, manner_of
from limen.adapters.plan import apart, unasked
from limen.flow import run

FORWARDED_BY_7 = AddressSettings(trusted_proxies=("10.0.0.7",), header="forwarded")
BEHIND_ONE = AddressSettings(trusted_hops=1, header="x-forwarded-for")


def trusting(addresses: AddressSettings) -> Manner:
    return manner_of({"addresses": addresses})


class Asked(Request):
    """A request that says what a test wants."""

    __slots__ = ("_headers", "_peer", "_user")

    def __init__(
        self,
        peer: str | None = "192.0.2.7",
        user: str | None = None,
        manner: Manner | None = None,
        **headers: str,
    ) -> None:
        super().__init__(manner or manner_of({}), {"native": True})
        self._peer, self._user = peer, user
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def method(self) -> str:
        return "GET"

    @property
    def path(self) -> str:
        return "/users//7"

    @property
    def peer(self) -> str | None:
        return self._peer

    @property
    def user(self) -> str | None:
        return self._user

    @property
    def route(self) -> str | None:
        return "/users/{id}"

    def header(self, name: str) -> Sequence[str]:
        return [self._headers[name]] if name in self._headers else []


def item_of(limit: RateLimit, request: Request) -> Item | None:
    return run(plan.item_of(limit, request, call_sync))


def texts(limit: RateLimit, request: Request) -> list[str]:
    item = item_of(limit, request)
    return [] if item is None else [check.key for check in item.checks]


def raw(request: Any) -> Any:
    return request["native"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ip", "ip=192.0.2.7"),
        (ip, "ip=192.0.2.7"),
        ("user", "user=ada"),
        ("route", "route=/users/{id}"),
        ("everyone", "everyone"),
        ("header:X-Api-Key", "header:x-api-key=s3cret"),
        (("user", "ip"), "user=ada ip=192.0.2.7"),
        (either("header:X-None", "user"), "user=ada"),
        ("user_or_ip", "user=ada"),
    ],
)
def test_a_key_is_what_is_counted(key: Any, text: str) -> None:
    request = Asked(user="ada", x_api_key="s3cret")
    assert texts(RateLimit("1/hour", key=key), request) == [text]
    assert texts(RateLimit("1/hour", key=key, scope="s"), request) == [f"s {text}"]


def test_one_network_of_ipv6_is_one_client() -> None:
    assert texts(RateLimit("1/hour"), Asked("2001:db8::1234")) == ["ip=2001:db8::"]


@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True), st.text(min_size=1))
def test_no_two_clients_share_a_count_whatever_they_say(names: list[str], other: str) -> None:
    limit = RateLimit("1/hour", key=("user", "header:a"))
    first, second = [texts(limit, Asked(user=name, a=other)) for name in names]
    assert first != second
    alone = texts(RateLimit("1/hour", key="user"), Asked(user=names[0]))
    assert alone != first


def test_functions_without_a_name_of_their_own_count_apart_by_what_they_read() -> None:
    tenant = key_of(lambda request: request.tenant)
    account = key_of(lambda request: request.account)
    assert tenant.label != account.label
    assert tenant.label == key_of(lambda request: request.tenant).label

    def by(name: str) -> Any:
        return lambda request: request.header(name)

    assert key_of(by("x-a")).label != key_of(by("x-b")).label
    assert key_of(by("x-a")).label == key_of(by("x-a")).label


def test_a_lambda_has_the_same_name_in_every_process() -> None:
    code = (
        "from limen.adapters.keys import key_of\n"
        "print(key_of(lambda r: 'w' if r.method in {'PUT', 'POST', 'PATCH'} else r.ip).label)\n"
        "print(key_of(lambda r: ''.join(x for x in r.path if x in {'a', 'b', 'c'})).label)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_async_by_a_detour_is_an_error_in_threads() -> None:
    async def is_staff(request: Any) -> bool:
        return False

    limit = RateLimit("1/hour", exempt_when=lambda request: is_staff(request))
    with pytest.raises(ConfigurationError, match="is async, and this adapter runs in threads"):
        item_of(limit, Asked())
    staff: Any = is_staff
    by_key = RateLimit("1/hour", key=lambda request: staff(request), missing="skip")
    with pytest.raises(ConfigurationError, match="is async, and this adapter runs in threads"):
        item_of(by_key, Asked())
    with pytest.raises(ConfigurationError, match="deduct_when cannot be async"):
        RateLimit("1/hour", deduct_when=is_staff)


def test_the_place_is_the_scope_of_who_names_none() -> None:
    limit = RateLimit("1/hour", key="everyone")
    assert texts(limit.at("GET /users/{id}"), Asked()) == ["GET /users/{id} everyone"]
    assert limit.at("GET /users/{id}") is limit.at("GET /users/{id}")
    assert limit.at(None) is limit
    named = RateLimit("1/hour", scope="all")
    assert named.at("GET /users/{id}") is named


def test_a_slot_has_no_cost() -> None:
    item = item_of(RateLimit("10/hour", Concurrency(2, lease=5), cost=7), Asked())
    assert item is not None
    assert [check.cost for check in item.checks] == [7, 1]


def items_of(*limits: RateLimit) -> list[Item]:
    return [item for limit in limits if (item := item_of(limit, Asked())) is not None]


def test_what_was_asked_already_is_not_asked_again() -> None:
    store, other = object(), object()
    asked = [(store, item) for item in items_of(RateLimit("10/hour"))]
    assert unasked(items_of(RateLimit("10/hour")), store, asked) == []
    assert len(unasked(items_of(RateLimit("10/hour"), RateLimit("10/hour")), store, [])) == 1
    # Elsewhere it is another count.
    assert len(unasked(items_of(RateLimit("10/hour")), other, asked)) == 1


@pytest.mark.parametrize(
    "second",
    [
        RateLimit("20/hour"),
        RateLimit("10/hour", cost=2),
        RateLimit("10/hour", deduct_when=bool),
        RateLimit("10/hour", on_error="closed"),
        RateLimit("10/hour", "5/day"),
    ],
)
def test_others_that_would_share_its_state_are_an_error(second: RateLimit) -> None:
    first = RateLimit("10/hour")
    with pytest.raises(ConfigurationError, match="would share one state; give one of them a scope"):
        unasked(items_of(second), None, [(None, item) for item in items_of(first)])
    with pytest.raises(ConfigurationError, match="would share one state"):
        apart([first, second])
    named = RateLimit(Limit(20, 3_600, name="other"))
    apart([first, named, RateLimit("20/hour", scope="b"), RateLimit("20/hour", key="everyone")])


def test_rules_are_asked_once() -> None:
    asked = [(None, item) for item in items_of(RateLimit())]
    with pytest.raises(ConfigurationError, match="two layers ask the rules about the same request"):
        unasked(items_of(RateLimit()), None, asked)


def test_rules_get_attributes_and_more() -> None:
    limit = RateLimit(attributes=lambda request: {"plan": "free", "user": None}, cost=3)
    item = item_of(limit, Asked(user="ada"))
    assert isinstance(item, Item)
    assert item.cost == 3
    assert item.attributes == {
        "method": "GET",
        "path": "/users/7",
        "ip": "192.0.2.7",
        "route": "/users/{id}",
        "plan": "free",
    }


@pytest.mark.parametrize("more", [3, {"plan": 3}])
def test_attributes_that_are_none_name_the_function(more: Any) -> None:
    def plan_of(request: Any) -> Any:
        return more

    with pytest.raises(ConfigurationError, match=r"attributes function .*plan_of returned int"):
        item_of(RateLimit(attributes=plan_of), Asked())


class TestNobodyIsCountedWithEverybodyByAccident:
    def test_refuses_a_request_whose_function_returns_none(self) -> None:
        def whom(request: Any) -> None:
            return None

        item = item_of(RateLimit("1/hour", key=whom), Asked())
        assert item is not None
        assert (item.lacks, item.checks) == (("client",), ())
        with pytest.raises(ConfigurationError, match=r"whom returned None, and not text"):
            item_of(RateLimit("1/hour", key=whom, missing="error"), Asked())

    def test_a_function_that_fails_can_be_an_error_with_its_cause(self) -> None:
        def whom(request: Any) -> str:
            raise KeyError("s3cret")

        with pytest.raises(ConfigurationError, match="whom raised KeyError") as caught:
            item_of(RateLimit("1/hour", key=whom, missing="error"), Asked())
        assert isinstance(caught.value.__cause__, KeyError)
        assert "s3cret" not in str(caught.value)

    def test_a_request_without_an_address_is_an_error(self) -> None:
        for peer in (None, "", "/run/app.sock", "unix:", "localhost", "<local>"):
            with pytest.raises(ConfigurationError, match="no address to count by"):
                item_of(RateLimit("1/hour"), Asked(peer))

    def test_of_several_keys_the_one_that_is_missing_decides(self) -> None:
        limit = RateLimit("1/hour", key=("user", "ip"))
        with pytest.raises(ConfigurationError, match="no address to count by"):
            item_of(limit, Asked(None, user="ada"))
        item = item_of(limit, Asked())
        assert item is not None
        assert item.lacks == ("user",)

    @pytest.mark.parametrize("key", ["user", "header:X-Api-Key", ("user", "ip")])
    def test_who_does_not_say_who_he_is_is_refused(self, key: Any) -> None:
        item = item_of(RateLimit("1/hour", key=key), Asked())
        assert item is not None
        assert item.lacks
        assert not item.checks
        assert item_of(RateLimit("1/hour", key=key, missing="skip"), Asked()) is None

    def test_an_empty_header_is_no_header(self) -> None:
        item = item_of(RateLimit("1/hour", key="header:x-api-key"), Asked(x_api_key=""))
        assert item is not None
        assert item.lacks == ("x-api-key",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateLimit("1/parsec"), "parsec"),
        (lambda: RateLimit(3), "a limit must be text such as '100/minute'"),  # type: ignore[arg-type]
        (lambda: RateLimit("1/hour", "2/hour"), "would share one state"),
        (lambda: RateLimit("1/hour", cost=-1), "cost must be a whole number"),
        (lambda: RateLimit("1/hour", key="usr"), r"unknown key 'usr' \(did you mean 'user'"),
        (lambda: RateLimit("1/hour", key=7), "key must be a name"),  # type: ignore[arg-type]
        (lambda: RateLimit("1/hour", scope="a b"), "scope must be text without blanks"),
        (lambda: RateLimit("1/hour", missing="no"), "missing must be error, skip, deny"),  # type: ignore[arg-type]
        (lambda: RateLimit("1/hour", on_error="no"), "on_error must be"),  # type: ignore[arg-type]
        (lambda: RateLimit("1/hour", exempt_when=True), "exempt_when must be a function"),  # type: ignore[arg-type]
        (lambda: RateLimit("1/hour", attributes=raw), "attributes are for rules"),
        (lambda: header("not a header"), "expected the name of a header"),
        (lambda: either("ip"), "either takes two keys"),
        (lambda: either("ip", raw), "takes names such as 'ip', got the function"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_said_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, InvalidInput, InvalidLimit), match=message):
        make()


def test_a_cost_function_that_answers_nonsense_is_named() -> None:
    def weight_of(request: Any) -> Any:
        return "7"

    with pytest.raises(ConfigurationError, match=r"the cost function .*weight_of: cost must be"):
        item_of(RateLimit("1/hour", cost=weight_of), Asked())


def test_says_what_it_is_without_telling_keys() -> None:
    assert repr(RateLimit("1/hour", Limit(5, 60))) == "<RateLimit 1/hour; 5/minute by ip>"
    assert repr(RateLimit()) == "<RateLimit the rules by ip>"


class TestUntrustedProxies:
    """A proxy that is not listed makes all of its clients one: the log says so, once."""

    def test_is_logged_once_with_peer_and_setting(self, caplog: pytest.LogCaptureFixture) -> None:
        manner = manner_of({})
        for peer in ("::ffff:10.0.0.7", "10.0.0.8", "10.0.0.7"):
            request = Asked(peer, manner=manner, x_forwarded_for="192.0.2.1, 192.0.2.2")
            item_of(RateLimit("9/hour"), request)
        (line,) = [record.getMessage() for record in caplog.records]
        assert "The X-Forwarded-For header of 10.0.0.7 is ignored" in line
        assert "trusted_proxies" in line
        assert "192.0.2" not in line

    def test_is_logged_for_a_peer_that_is_not_among_the_trusted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        manner = trusting(FORWARDED_BY_7)
        for peer in ("10.0.0.7", "10.0.0.8"):
            item_of(RateLimit("9/hour"), Asked(peer, manner=manner, forwarded="for=192.0.2.1"))
        (line,) = [record.getMessage() for record in caplog.records]
        assert "The Forwarded header of 10.0.0.8 is ignored" in line

    @pytest.mark.parametrize(
        "request_",
        [
            Asked("10.0.0.7"),
            Asked("nonsense", x_forwarded_for="192.0.2.1"),
            # Another header than the one that is trusted is not looked at.
            Asked("10.0.0.8", manner=trusting(FORWARDED_BY_7), x_forwarded_for="192.0.2.1"),
            Asked("10.0.0.8", manner=trusting(BEHIND_ONE), x_forwarded_for="192.0.2.1"),
            # uvicorn and ProxyFix put the address from the header in place of the peer.
            Asked("192.0.2.1", x_forwarded_for="192.0.2.66, 192.0.2.1"),
            Asked("192.0.2.1", forwarded='for="192.0.2.1:4711"'),
            # Not counted by address.
            Asked("10.0.0.7", user="ada", x_forwarded_for="192.0.2.1"),
        ],
    )
    def test_is_not_logged_otherwise(
        self, request_: Asked, caplog: pytest.LogCaptureFixture
    ) -> None:
        item_of(RateLimit("9/hour", key="user_or_ip", missing="skip"), request_)
        assert not caplog.records

"""`RateLimit` and the keys: what they take, what they refuse, what they count apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Concurrency, ConfigurationError, InvalidInput, InvalidLimit, Limit
from limen.adapters import AddressSettings, RateLimit, Request, either, header, ip
from limen.adapters.keys import key_of
from limen.adapters.limit import Item
from limen.adapters.plan import beside, item_of, joined
from limen.http import ClientAddresses


class Asked(Request):
    """A request that says what a test wants."""

    __slots__ = ("_headers", "_peer", "_user")

    def __init__(
        self,
        peer: str | None = "192.0.2.7",
        user: str | None = None,
        settings: AddressSettings | None = None,
        **headers: str,
    ) -> None:
        super().__init__({"native": True}, ClientAddresses(settings))
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


def test_lambdas_that_read_other_things_count_apart() -> None:
    tenant = key_of(lambda request: request.tenant)
    account = key_of(lambda request: request.account)
    assert tenant.name != account.name
    assert tenant.name == key_of(lambda request: request.tenant).name


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
    again = beside(items_of(RateLimit("10/hour")), items_of(RateLimit("10/hour", "5/day")))
    assert again == []
    once = beside(items_of(RateLimit("10/hour"), RateLimit("10/hour")), [])
    assert len(once) == 1


def test_other_limits_in_the_same_place_hold_too_and_count_beside() -> None:
    items = beside(items_of(*[RateLimit(text) for text in ("9/hour", "2/hour", "3/hour")]), [])
    checks, places = joined(items)
    assert [(str(check.limit), check.key) for check in checks] == [
        ("9/hour", "ip=192.0.2.7"),
        ("2/hour", "ip=192.0.2.7 #2"),
        ("3/hour", "ip=192.0.2.7 #3"),
    ]
    assert places == ((0,), (1,), (2,))


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
    def test_a_function_without_an_answer_is_an_error(self) -> None:
        def whom(request: Any) -> None:
            return None

        with pytest.raises(ConfigurationError, match=r"whom returned None, and not text"):
            item_of(RateLimit("1/hour", key=whom), Asked())

    def test_a_function_that_fails_is_an_error_with_its_cause(self) -> None:
        def whom(request: Any) -> str:
            raise KeyError("s3cret")

        with pytest.raises(ConfigurationError, match="whom raised KeyError") as caught:
            item_of(RateLimit("1/hour", key=whom), Asked())
        assert isinstance(caught.value.__cause__, KeyError)
        assert "s3cret" not in str(caught.value)

    def test_a_request_without_an_address_is_an_error(self) -> None:
        for peer in (None, "", "/run/app.sock"):
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

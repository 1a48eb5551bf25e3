"""The cost of an error message is bounded: numbers are checked before members are looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.admin.driving import ADMIN
from tests.server.product import Product, product

# As many short attributes as fit into a body of 1 MiB.
MANY = 90_000
MOST_KEYS = 10_000
"""How many keys an object may have in the admin API."""
VALID: dict[str, Any] = {f"a{number:x}": "" for number in range(MANY)}
TOO_MANY = "expected object of length <= 100"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder: Path = tmp_path_factory.mktemp("service")
    with product(folder, auth__admin_token=ADMIN) as started:
        yield started


def detail(service: Product, path: str, value: Any, *headers: str, status: int = 422) -> str:
    body = json.dumps(value, separators=(",", ":")).encode()
    response = service.ask(path, *headers, method="POST", body=body)
    assert response.status == status
    text: str = response.problem["detail"]
    assert len(text) < 600
    return text


def test_number_of_attributes_is_checked_before_their_values(service: Product) -> None:
    attributes = {**VALID, "last": 1}
    for path in ("/v1/check", "/v1/slots"):
        text = detail(service, path, {"attributes": attributes})
        assert text == f"attributes: {TOO_MANY}"
    listed = [{"attributes": {"user": "1"}}, {"attributes": attributes}]
    assert detail(service, "/v1/check", listed) == f"[1].attributes: {TOO_MANY}"


def test_number_of_costs_is_checked_before_their_values(service: Product) -> None:
    actual = {**dict.fromkeys(VALID, 1), "last": "x"}
    text = detail(service, "/v1/settle", {"receipt": "x", "actual": actual})
    assert text == f"actual: {TOO_MANY}"


def test_first_invalid_attribute_is_named_if_there_are_few(service: Product) -> None:
    attributes = {**dict(list(VALID.items())[:99]), "last": 1}
    text = detail(service, "/v1/check", {"attributes": attributes})
    assert text == "attributes.last: expected str, got int"


def test_number_of_own_limits_is_checked_before_they_are_parsed(service: Product) -> None:
    limits = [";".join(["1/s"] * 200) for _ in range(99)]
    text = detail(service, "/v1/check", {"key": "k", "limits": [*limits, "no limit"]})
    assert text == "at most 100 limits fit on one request, got 19801"


def test_list_is_parsed_up_to_the_number_of_limits_that_it_may_have(service: Product) -> None:
    own = [
        {"key": "k", "limits": ";".join(f"{each + 1}/{unit + 1}s" for unit in range(100))}
        for each in range(900)
    ]
    text = detail(service, "/v1/check", [*own, {"key": "k", "limits": "no limit"}])
    assert text == "this list comes under more than 20,000 limits in all; ask in shorter lists"


def test_name_of_an_unknown_field_is_cut(service: Product) -> None:
    assert "unknown field" in detail(service, "/v1/check", {" - at `$" * 10_000: 1})


def test_json_descriptors_and_entries_are_counted_before_they_are_parsed(service: Product) -> None:
    entries = [*[{"key": "k", "value": "v"}] * 30_000, {"key": 1}]
    body: dict[str, Any] = {"domain": "d", "descriptors": [{"entries": entries}]}
    text = detail(service, "/json", body, status=400)
    assert "Expected `array` of length <= 64 - at `$.descriptors[0].entries`" in text
    text = detail(service, "/json", {"domain": "d", "descriptors": [{}] * 300_000}, status=400)
    assert "Expected `array` of length <= 100 - at `$.descriptors`" in text


def test_admin_attributes_are_counted_before_they_are_validated(service: Product) -> None:
    token = f"Authorization: Bearer {ADMIN}"
    attributes = dict.fromkeys(list(VALID)[:MOST_KEYS], 1)
    text = detail(service, "/admin/v1/explain", {"attributes": attributes}, token)
    assert text == f"attributes: expected at most 100 attributes, got {MOST_KEYS:,}"


def test_admin_response_names_100_problems_and_the_number_of_the_rest(service: Product) -> None:
    token = f"Authorization: Bearer {ADMIN}"
    fields = dict.fromkeys(list(VALID)[:MOST_KEYS], 1)
    text = detail(service, "/admin/v1/explain", fields, token)
    assert text == f"attributes: this field is missing (and {MOST_KEYS:,} more)"

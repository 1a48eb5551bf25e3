"""The files in `examples/gateways`: none is left untried, and each says what it has to."""

from __future__ import annotations

import pytest

from limen.rules import load
from tests.gateways import gateways
from tests.gateways.gateways import KINDS, SHIPPED

CONFIGURED = sorted({name for kind in KINDS for name in kind.files})
RULES = ["rules.yaml", "envoyproxy-ratelimit/own.yaml"]
FOR_RATELIMIT = ["envoyproxy-ratelimit/envoy.yaml", "envoyproxy-ratelimit/config/edge_proxy.yaml"]
GUIDE = (SHIPPED.parents[1] / "docs" / "gateways.md").read_text()


def test_every_file_is_tried() -> None:
    found = {str(file.relative_to(SHIPPED)) for file in SHIPPED.rglob("*") if file.is_file()}
    assert found == {*CONFIGURED, *RULES, *FOR_RATELIMIT}


@pytest.mark.parametrize("name", [*CONFIGURED, *RULES, *FOR_RATELIMIT])
def test_the_guide_leads_to_every_file(name: str) -> None:
    assert f"(../examples/gateways/{name})" in GUIDE


@pytest.mark.parametrize("name", RULES)
def test_every_rule_says_why_it_is_there(name: str) -> None:
    assert all(rule.description for rule in load(SHIPPED / name).rules)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_gateway_waits_for_50_ms(kind: gateways.Kind) -> None:
    text = "".join((SHIPPED / name).read_text() for name in kind.files)
    assert gateways.with_patience(text).count("500ms") + text.count("0.05s") >= 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_file_says_of_its_lines_is_there(kind: gateways.Kind) -> None:
    text = (SHIPPED / kind.files[-1]).read_text()
    closed = gateways.fail_closed(text)
    assert closed != text
    assert gateways.TOKEN in gateways.show_token(text)
    marked = [line for line in closed.splitlines() if line.endswith(("fail open", "fail closed"))]
    assert all(line.lstrip().startswith("#") == line.endswith("fail open") for line in marked), (
        "each line has changed sides"
    )

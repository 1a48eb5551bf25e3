"""The files in `examples/gateways`: none is left untried, and each says what it has to."""

from __future__ import annotations

import re

import pytest

from limen.rules import load
from limen.server.settings.model import HttpSettings
from tests.gateways import gateways
from tests.gateways.gateways import KINDS, SHIPPED

CONFIGURED = sorted({name for kind in KINDS for name in kind.files})
RULES = ["rules.yaml", "envoyproxy-ratelimit/own.yaml"]
FOR_RATELIMIT = ["envoyproxy-ratelimit/envoy.yaml", "envoyproxy-ratelimit/config/edge_proxy.yaml"]
IDLE_S = {
    "Caddyfile": r"reverse_proxy 127.0.0.1:8080 \{.*\ttransport http \{[^}]*\tkeepalive (\d+)s\n",
    "envoy-ext-authz.yaml": r"- name: limen\n.*\{idle_timeout: (\d+)s\}",
    "nginx.conf": r"upstream limen \{[^}]* keepalive_timeout (\d+)s;",
    "traefik-dynamic.yaml": r"serversTransports:\n    limen:\n.* idleConnTimeout: (\d+)s\n",
}
"""Where each file that asks by HTTP says how long it keeps a connection that is idle."""
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
def test_a_gateway_waits_as_long_as_the_guide_says(kind: gateways.Kind) -> None:
    settings = "".join(said_in(name) for name in kind.files)
    waits = re.findall(r"\b(\d+ms|0\.\d+s)\b", settings)
    expected = "250ms" if kind.name.startswith("traefik") else waits[0]
    assert len(waits) >= 2
    assert set(waits) == {expected}
    assert expected in ("250ms", "50ms", "0.05s")


def test_traefik_says_next_to_its_timeout_what_a_late_verdict_does() -> None:
    text = (SHIPPED / "traefik-dynamic.yaml").read_text()
    reason = text.partition("serversTransports:")[2].partition("responseHeaderTimeout:")[0]
    assert "fail open" in reason
    assert "limen_undelivered_decisions_total" in reason


def said_in(name: str) -> str:
    """Return a file without the lines that are comments."""
    lines = (SHIPPED / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def test_who_asks_by_http_is_known() -> None:
    asking = {
        name for name in [*CONFIGURED, *FOR_RATELIMIT] if re.search(r"\b8080\b", said_in(name))
    }
    assert asking == IDLE_S.keys()


@pytest.mark.parametrize("name", IDLE_S)
def test_a_gateway_lets_go_of_an_idle_connection_before_limen_does(name: str) -> None:
    found = re.search(IDLE_S[name], said_in(name), re.DOTALL)
    assert found
    assert 0 < float(found[1]) < HttpSettings().keep_alive


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

"""What `deploy/` has for Prometheus and Grafana, by promtool and by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limen.observe.figures import Figures
from limen.observe.prometheus import families
from tests import servers
from tests.observe.test_figures import busy_one
from tests.prometheus import Prometheus, prometheus, promtool
from tests.server.product import Product, product
from tests.test_docs import ROOT
from tests.waiting import wait_until

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "limen.json").read_text())
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}


def names() -> set[str]:
    """Return the name of every series that a service has."""
    found = {each.name for family in families(busy_one(), 2) for each in family.samples}
    assert {
        each.name for family in families(Figures("", 0.0), 2) for each in family.samples
    } < found
    return found


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\blimen_\w+", expression))


# What promtool says


def test_alerts_and_configuration_pass_promtool() -> None:
    told = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert f"SUCCESS: {len(RULES)} rules found" in told
    assert told.endswith("exit 0"), told
    told = promtool("check", "config", "--lint=all", "--lint-fatal", DEPLOY / "prometheus.yml")
    assert told.endswith("exit 0"), told
    assert f"SUCCESS: {len(RULES)} rules found" in told


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert len(rule["annotations"]["description"]) > 100
        assert metrics_in(rule["expr"]) <= names()
    readme = (DEPLOY / "README.md").read_text()
    told = re.findall(r"^\| `(Limen\w+)` \|", readme, re.MULTILINE)
    assert told == [rule["alert"] for rule in RULES]


# Each alert: series of one value for each minute, from when on it fires and what it says then, and
# series with which it does not.
OF = '{job="limen",instance="a"'
STEADY = "0+600x30"  # 10 a second
SLOW = f'limen_store_duration_seconds_bucket{OF},server="s",le='
CASES: dict[str, tuple[dict[str, str], str, str, dict[str, str]]] = {
    "LimenDown": (
        {f"up{OF}}}": "1 0x30"},
        "3m",
        "the control plane of limen at a does not answer",
        {f"up{OF}}}": "1 0 1 0 1x30", 'up{job="other",instance="a"}': "0x30"},
    ),
    "LimenStoreAway": (
        {f'limen_breaker_open{OF},server="s"}}': "0 1x30"},
        "2m",
        "limen at a decides without its store s",
        {f'limen_breaker_open{OF},server="s"}}': "0x30"},
    ),
    "LimenDegraded": (
        {
            f'limen_fallback_decisions_total{OF},source="local",outcome="allowed"}}': "0+60x30",
            f'limen_requests_total{OF},outcome="allowed"}}': STEADY,
        },
        "5m",
        "limen at a decides 10% of requests without its store",
        {
            f'limen_fallback_decisions_total{OF},source="local",outcome="allowed"}}': "0+5x30",
            f'limen_requests_total{OF},outcome="allowed"}}': STEADY,
            'limen_fallback_decisions_total{job="limen",instance="idle",source="local"}': "0x30",
            'limen_requests_total{job="limen",instance="idle"}': "0x30",
        },
    ),
    "LimenStoreSlow": (
        {
            f'{SLOW}"0.01"}}': "0+900x30",
            f'{SLOW}"0.02"}}': "0+1000x30",
            f'{SLOW}"+Inf"}}': "0+1000x30",
        },
        "12m",
        "the store s takes 19ms for the slowest 1 % of calls",
        {
            f'{SLOW}"0.01"}}': "0+999x30",
            f'{SLOW}"0.02"}}': "0+1000x30",
            f'{SLOW}"+Inf"}}': "0+1000x30",
        },
    ),
    "LimenRefusesMuch": (
        {
            f'limen_decisions_total{OF},rule="login",outcome="denied"}}': "0+600x30",
            f'limen_decisions_total{OF},rule="login",outcome="allowed"}}': "0+200x30",
        },
        "20m",
        "the rule login refuses 75% of what it decides",
        {
            f'limen_decisions_total{OF},rule="even",outcome="denied"}}': "0+600x30",
            f'limen_decisions_total{OF},rule="even",outcome="allowed"}}': "0+600x30",
            f'limen_decisions_total{OF},rule="seldom",outcome="denied"}}': "0+6x30",
            f'limen_decisions_total{OF},rule="shadow",outcome="shadow_denied"}}': "0+600x30",
        },
    ),
    "LimenRulesOld": (
        {f"limen_rules_trouble{OF}}}": "0 2x30"},
        "7m",
        "limen at a does not hear of new rules for certain",
        {f"limen_rules_trouble{OF}}}": "0 1x3 0x30"},
    ),
    "LimenRulesDiffer": (
        {
            f'limen_rules_info{OF},version="7",source="store"}}': "1x30",
            'limen_rules_info{job="limen",instance="b",version="8",source="cache"}': "1x30",
        },
        "6m",
        "2 versions of the rules are in force at once",
        {
            f'limen_rules_info{OF},version="8",source="store"}}': "1x30",
            'limen_rules_info{job="limen",instance="b",version="8",source="cache"}': "1x30",
            'limen_rules_info{job="staging",instance="c",version="9",source="store"}': "1x30",
        },
    ),
    "LimenKillSwitch": (
        {f"limen_kill_switch{OF}}}": "1x60"},
        "31m",
        "the kill switch of limen at a is still on",
        {f"limen_kill_switch{OF}}}": "1x20 0x60"},
    ),
    "LimenWorkerBusy": (
        {f"limen_worker_busy_ratio{OF}}}": "0.5 0.97x30"},
        "7m",
        "a worker of limen at a is busy 97% of the time",
        {f"limen_worker_busy_ratio{OF}}}": "0.97x3 0.5 0.97x3 0.5x30"},
    ),
    "LimenLostRefunds": (
        {f"limen_lost_refunds_total{OF}}}": "0x5 3x30"},
        "7m",
        "limen at a could not give back what it had reserved",
        {f"limen_lost_refunds_total{OF}}}": "5x30"},
    ),
}


def test_there_is_a_case_for_every_alert() -> None:
    assert list(CASES) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_only_then(alert: str, tmp_path: Path) -> None:
    fires, at, summary, is_calm = CASES[alert]
    [rule] = [each for each in RULES if each["alert"] == alert]
    assert metrics_in("".join([*fires, *is_calm])) <= names()

    def judged(series: dict[str, str], expected: dict[str, list[Any]]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": each} for name, each in series.items()],
            "alert_rule_test": [
                {"alertname": alert, "eval_time": at, "exp_alerts": alerts}
                for at, alerts in expected.items()
            ],
        }

    labels = {"severity": rule["labels"]["severity"], "job": "limen"}
    by = {"LimenRefusesMuch": {"rule": "login"}, "LimenRulesDiffer": {}}.get(
        alert, {"instance": "a"}
    )
    if alert in ("LimenStoreAway", "LimenStoreSlow"):
        by = {"instance": "a", "server": "s"}
    fired = {"exp_labels": {**labels, **by}, "exp_annotations": {"summary": summary}}
    # Compared by promtool to the letter; the description is tried by whoever reads it.
    bare = yaml.safe_load(ALERTS.read_text())
    for each in bare["groups"][0]["rules"]:
        del each["annotations"]["description"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(bare))
    never: dict[str, list[Any]] = {f"{minute}m": [] for minute in range(30)}
    tests = [judged(fires, {"0m": [], at: [fired]}), judged(is_calm, never)]
    case = {"rule_files": ["alerts.yml"], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(case))
    told = promtool("test", "rules", tmp_path / "test.yml")
    assert told.endswith("exit 0"), told


# The dashboard


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def test_every_question_of_the_dashboard_is_understood(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(asked) > 30
    for expression in asked:
        assert metrics_in(expression) <= names()
    values = {"__rate_interval": "5m", "__range": "1h", **dict.fromkeys(VARIABLES, ".*")}
    filled = [re.sub(r"\$(\w+)", lambda found: values[found[1]], each) for each in asked]
    rules = [{"record": f"asked:{number}", "expr": each} for number, each in enumerate(filled)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    told = promtool("check", "rules", "--lint=none", file)
    assert f"SUCCESS: {len(asked)} rules found" in told, told


def test_the_dashboard_shows_every_metric() -> None:
    shown = "".join(target["expr"] for panel in panels() for target in panel["targets"])
    families_ = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names()}
    hidden = {name for name in families_ if name not in shown}
    # How often single servers were away is the sum that is shown.
    assert hidden == {"limen_build_info", "limen_breaker_opened_total"}


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["schemaVersion"] >= 38) == ("limen", True)
    assert "id" not in DASHBOARD  # it is of the Grafana that made it
    assert list(VARIABLES) == ["datasource", "job", "instance", "rule"]
    assert VARIABLES["datasource"]["query"] == "prometheus"
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Requests", "Rules", "Store", "Service"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        for of in (panel, *panel["targets"]):
            assert of["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_compose_gives_prometheus_and_grafana_what_is_here() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [
        volume.split(":")[0]
        for name in ("prometheus", "grafana")
        for volume in services[name]["volumes"]
        if volume.startswith("./")
    ]
    assert len(mounted) == 5
    assert all((DEPLOY / each).is_file() for each in mounted)
    assert all(services[name]["profiles"] == ["metrics"] for name in ("prometheus", "grafana"))
    source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert job["job_name"] == "limen"
    assert job["static_configs"] == [{"targets": ["limen:8082"]}]


# All of it, running


def shortened(folder: Path, port: int) -> dict[str, Any]:
    """Return the shipped configuration for a service at this port, with everything faster."""
    alerts = re.sub(r"\bfor: \w+", "for: 1s", ALERTS.read_text())
    (folder / "alerts.yml").write_text(alerts)
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["global"]["scrape_timeout"] = "500ms"
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    return config


RULE = """
rules:
  - name: login
    key: [ip]
    limits: 10000/minute
"""


@pytest.mark.slow
def test_an_outage_of_the_store_is_seen_by_a_real_prometheus(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULE)
    (tmp_path / "prometheus").mkdir()
    with (
        servers.process(servers.binaries()["valkey"]) as valkey,
        product(
            tmp_path / "limen",
            *("--store", f"redis://127.0.0.1:{valkey.port}", "--workers", "2"),
            *("--rules", str(rules)),
        ) as service,
    ):
        config = shortened(tmp_path / "prometheus", service.admin_port)
        with prometheus(tmp_path / "prometheus", config) as scraping:
            wait_until(lambda: scraping.value("limen_workers") == 2)
            ask(service, 20)
            allowed = 'limen_decisions_total{rule="login",outcome="allowed"}'
            wait_until(lambda: scraping.value(allowed) == 20)
            assert "LimenStoreAway" not in scraping.firing()

            # A worker that dies takes nothing of the sum with it.
            old = service.workers
            os.kill(old[0], signal.SIGKILL)
            wait_until(lambda: len(service.workers) == 2 and service.workers != old)
            since = time.time()
            wait_until(lambda: (scraping.value("timestamp(limen_workers)") or 0) > since + 1)
            wait_until(lambda: scraping.value(allowed) == 20)
            assert scraping.value(f"resets({allowed}[5m])") == 0

            valkey.kill()
            wait_until(lambda: is_seen(scraping, service, "LimenStoreAway"))
            wait_until(lambda: scraping.value("max(limen_breaker_open)") == 1)
            wait_until(
                lambda: scraping.value('sum(limen_fallback_decisions_total{source="local"}) > 0')
            )

            valkey.restart()
            wait_until(lambda: scraping.value("max(limen_breaker_open)") == 0)
            wait_until(lambda: "LimenStoreAway" not in scraping.firing())
            wait_until(lambda: scraping.value("sum(limen_fallback_activations_total) > 0"))
        service.signal(signal.SIGTERM)
        assert service.code() == 0
    assert not list((tmp_path / "limen" / ".limen").glob("workers-*"))


def test_no_scrape_shows_less_than_the_one_before(tmp_path: Path) -> None:
    """Whichever worker answers: a counter that falls looks like a restart, and rates jump."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULE)
    shown = []
    with (
        servers.server(servers.binaries()["valkey"]) as valkey,
        product(
            tmp_path / "limen",
            *("--store", f"redis://127.0.0.1:{valkey}", "--workers", "2", "--rules", str(rules)),
        ) as service,
    ):
        wait_until(lambda: scraped(service, "limen_workers ") == 2)
        for _ in range(50):
            ask(service, 2)
            shown.append(scraped(service, 'limen_requests_total{outcome="allowed"}'))
        service.signal(signal.SIGTERM)
        assert service.code() == 0
    assert shown == sorted(shown)


def scraped(service: Product, name: str) -> float:
    lines = service.ask("/metrics").body.decode().splitlines()
    [line] = [line for line in lines if line.startswith(name)]
    return float(line.rpartition(" ")[2])


def is_seen(scraping: Prometheus, service: Product, alert: str) -> bool:
    ask(service, 5)
    return alert in scraping.firing()


def ask(service: Product, times: int) -> None:
    """Ask so often, by a connection for each: both workers are asked."""
    for _ in range(times):
        answer = service.ask("/v1/check", method="POST", body={"attributes": {"ip": "192.0.2.1"}})
        assert answer.status == 200

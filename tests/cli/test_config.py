from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from limen.cli.config import app
from limen.cli.options import SETTINGS, flags_of
from limen.server.settings import FIELDS
from tests.cli.acts import SECRET, Run


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in FIELDS:
        monkeypatch.delenv(field.variable, raising=False)
        monkeypatch.delenv(f"{field.variable}_FILE", raising=False)
    monkeypatch.delenv("LIMEN_CONFIG", raising=False)


def test_shows_what_holds_and_who_said_so(limen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("limen.toml").write_text('[log]\nlevel = "debug"\n')
    monkeypatch.setenv("LIMEN_STORE__URL", f"redis://joe:{SECRET}@host:6379/1")
    monkeypatch.setenv("LIMEN_AUTH__ADMIN_TOKEN", f"{SECRET}-0123456789")
    ran = limen("config", "show", "--workers", "4", "--checks", "token")
    assert (ran.exit_code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    for line in (
        "workers = 4  # --workers",
        'bind = "127.0.0.1:8080"  # default',
        'rules = "sqlite:///.limen/rules.db"  # default',
        'url = "redis://joe:***@host:6379/1"  # LIMEN_STORE__URL',
        'checks = "token"  # --checks',
        'admin_token = "***"  # LIMEN_AUTH__ADMIN_TOKEN',
        'check_token = ""  # default',
        'level = "debug"  # limen.toml',
    ):
        assert line in lines
    assert tomllib.loads(ran.out)["http"]["headers"] == ["draft-11"]


def test_shows_the_same_as_json(limen: Run) -> None:
    ran = limen("config", "show", "--json", "--store", f"redis://:{SECRET}@host")
    shown = json.loads(ran.out)
    assert list(shown) == [field.name for field in FIELDS]
    assert shown["store.url"] == {"value": "redis://***@host", "source": "--store"}
    assert shown["http.keep_alive"] == {"value": 75.0, "source": "default"}


def test_takes_every_flag(limen: Run, tmp_path: Path) -> None:
    for name in ("c.toml", "tls.crt", "tls.key"):
        Path(name).touch()
    given = {
        "--config": "c.toml",
        "--bind": ":1",
        "--grpc-bind": ":2",
        "--admin-bind": ":3",
        "--store": "redis://h",
        "--rules": "rules.yaml",
        "--workers": "2",
        "--data-dir": "d",
        "--namespace": "n",
        "--tls-certificate": "tls.crt",
        "--tls-key": "tls.key",
        "--checks": "open",
        "--log-level": "error",
        "--log-format": "json",
    }
    assert len(given) == len(SETTINGS)
    ran = limen("config", "show", "--json", *(word for pair in given.items() for word in pair))
    shown = json.loads(ran.out).values()
    values = {said["source"]: str(said["value"]) for said in shown if said["source"] != "default"}
    assert {"--config": "c.toml", **values} == given


def test_a_flag_is_named_as_its_setting_says() -> None:
    flags = {field.name: field.flag for field in FIELDS} | {"config": "--config"}
    command = get_command(app).commands["show"]  # type: ignore[attr-defined]  # it is a group
    options = {parameter.name: parameter.opts[0] for parameter in command.params}
    assert {name: options[name] for name in SETTINGS} == {
        name: flags[option.setting] for name, option in SETTINGS.items()
    }
    assert set(options) - set(SETTINGS) <= {"as_json", "help"}


def test_flags_are_by_the_names_of_settings() -> None:
    parameters = {"store": "redis://h", "log_level": None, "as_json": True}
    assert flags_of(parameters) == {"store.url": "redis://h", "log.level": None}


def test_the_example_is_a_file_that_can_be_used(limen: Run) -> None:
    ran = limen("config", "example")
    assert (ran.exit_code, ran.err) == (0, "")
    Path("limen.toml").write_text(ran.out)
    shown = limen("config", "show")
    assert shown.exit_code == 0
    assert "# default" not in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "two"], "--workers: must be a valid integer, got 'two'"),
        (["--workers", "0"], "--workers: must be greater than or equal to 1, got '0'"),
        (["--store", f"joe:{SECRET}@h"], "--store: the address of the store has no scheme"),
        (["--rules", f"joe:{SECRET}@h"], "--rules: the address of the rules has no scheme"),
        (["--config", "none.toml"], "--config: cannot read the file: No such file or directory"),
        (["--stroe", "x"], "No such option: --stroe"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    limen: Run, arguments: list[str], message: str
) -> None:
    ran = limen("config", "show", *arguments)
    assert (ran.exit_code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_variable_is_a_mistake(limen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMEN_STROE__URL", f"redis://:{SECRET}@h")
    ran = limen("config", "show")
    assert (ran.exit_code, ran.err) == (
        2,
        "limen: unknown setting 'LIMEN_STROE__URL' in the environment; did you mean "
        "'LIMEN_STORE__URL'?\n",
    )


def test_without_a_command_it_helps(limen: Run) -> None:
    ran = limen("config")
    assert ran.exit_code == 0
    assert "limen config example > limen.toml" in ran.out

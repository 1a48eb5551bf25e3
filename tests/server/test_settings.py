from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from limen import Limiter
from limen.cli.options import SETTINGS
from limen.errors import ConfigurationError
from limen.server.settings import FIELDS, Settings, as_data, as_toml, example, load, read
from limen.server.settings.fields import Field
from limen.server.settings.model import Checks
from limen.server.settings.sources import OTHERS
from limen.server.settings.values import Bind, Secret, SecretAddress
from tests.test_docs import ROOT, blocks_of

CANARY = "c4nary-Wh1stle"
LONG = f"{CANARY}-0123456789-0123456789"
STORES = (
    "'memory://', 'redis://host:6379', 'rediss://...' with TLS, 'unix:///run/redis.sock', "
    "'redis+cluster://host:6379,host:6380' or 'redis+sentinel://host:26379/service'"
)
DATABASES = (
    "'sqlite:///rules.db', 'sqlite:////var/lib/limen/rules.db' "
    "or 'postgresql://user:password@host/database'"
)
FOLDER = "expected the path of a folder, without '?' and '://'"
BINDS = "expected host:port, [::1]:8080, or :8080 for all addresses"
SHARED = "workers need a store that they share, got 'memory://'; use --store redis://host:6379"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(toml: str = "", environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    """Return the settings of a limen.toml, an environment and flags (`store__url`)."""
    if toml:
        Path("limen.toml").write_text(toml)
    return load({name.replace("__", "."): value for name, value in flags.items()}, environ or {})


def complaint(toml: str = "", environ: dict[str, str] | None = None, **flags: Any) -> str:
    """Return what is said to be wrong."""
    with pytest.raises(ConfigurationError) as refused:
        said(toml, environ, **flags)
    return str(refused.value)


# What holds.


def test_nothing_said_is_the_defaults() -> None:
    found = read({}, {})
    assert found.settings == Settings()
    assert set(found.sources.values()) == {"default"}
    assert list(found.sources) == [field.name for field in FIELDS]


def test_a_file_is_weaker_than_the_environment_and_that_than_a_flag() -> None:
    toml = 'namespace = "a"\ndata_dir = "a"\nworkers = 2\n[store]\nurl = "redis://a"'
    Path("limen.toml").write_text(toml)
    found = read(
        {"workers": 4, "namespace": None},
        {"LIMEN_DATA_DIR": "b", "LIMEN_WORKERS": "3", "LIMEN_STORE__URL": "redis://b"},
    )
    settings = found.settings
    assert (settings.namespace, settings.data_dir, settings.workers) == ("a", Path("b"), 4)
    assert settings.store.url.get_secret_value() == "redis://b"
    assert {name: source for name, source in found.sources.items() if source != "default"} == {
        "namespace": "limen.toml",
        "data_dir": "LIMEN_DATA_DIR",
        "workers": "--workers",
        "store.url": "LIMEN_STORE__URL",
    }


def test_a_file_is_found_by_the_flag_then_the_variable_then_in_the_folder() -> None:
    for name in ("limen", "flag", "variable"):
        Path(f"{name}.toml").write_text(f'namespace = "{name}"')
    environ = {"LIMEN_CONFIG": "variable.toml"}
    assert said().namespace == "limen"
    assert said(environ={"LIMEN_CONFIG": ""}).namespace == "limen"
    assert said(environ=environ).namespace == "variable"
    assert said(environ=environ, config="flag.toml").namespace == "flag"
    assert read({"config": Path("flag.toml")}, {}).sources["namespace"] == "flag.toml"


def test_values_of_every_kind_are_read_from_the_environment() -> None:
    settings = said(
        environ={
            "LIMEN_BIND": "[::1]:0",
            "LIMEN_STORE__DEADLINE": ".5",
            "LIMEN_STORE__ON_ERROR": "closed",
            "LIMEN_HTTP__HEADERS": "draft-11, x-ratelimit",
            "LIMEN_HTTP__MAX_BODY": "2048",
            "LIMEN_HTTP__KEEP_ALIVE": "0",
            "LIMEN_LOG__FORMAT": "json",
            "LIMEN_AUTH__SECRET": LONG,
            "LIMEN_RULES": "rules.yaml",
        }
    )
    assert settings.bind == Bind("::1", 0)
    assert (settings.store.deadline, settings.store.on_error) == (0.5, "closed")
    assert settings.http.headers == ("draft-11", "x-ratelimit")
    assert (settings.http.max_body, settings.http.keep_alive) == (2048, 0.0)
    assert settings.log.format == "json"
    assert settings.auth.secret.get_secret_value() == LONG
    assert settings.rules.get_secret_value() == "rules.yaml"
    assert said(environ={"LIMEN_HTTP__HEADERS": ""}).http.headers == ()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_file_holds_the_value_without_one_newline(folder: Path, ending: str) -> None:
    token = folder / "token"
    token.write_bytes(f"{LONG}{ending}".encode())
    found = read({}, {"LIMEN_AUTH__ADMIN_TOKEN_FILE": str(token)})
    assert found.settings.auth.admin_token.get_secret_value() == LONG
    assert found.sources["auth.admin_token"] == "LIMEN_AUTH__ADMIN_TOKEN_FILE"


def test_only_secrets_and_addresses_are_taken_from_files() -> None:
    assert [field.file_variable for field in FIELDS if field.file_variable] == [
        "LIMEN_RULES_FILE",
        "LIMEN_STORE__URL_FILE",
        "LIMEN_AUTH__ADMIN_TOKEN_FILE",
        "LIMEN_AUTH__CHECK_TOKEN_FILE",
        "LIMEN_AUTH__SECRET_FILE",
        "LIMEN_ALERTS__WEBHOOK_FILE",
        "LIMEN_ALERTS__WEBHOOK_SECRET_FILE",
    ]


def test_variables_of_others_are_no_mistakes() -> None:
    environ = {
        **dict.fromkeys(OTHERS[1:], "1"),
        "LIMENIT": "x",
        # What Kubernetes sets for the services limen and limen-redis.
        "LIMEN_SERVICE_HOST": "10.0.0.1",
        "LIMEN_SERVICE_PORT": "8080",
        "LIMEN_SERVICE_PORT_HTTP": "8080",
        "LIMEN_PORT": "tcp://10.0.0.1:8080",
        "LIMEN_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "LIMEN_PORT_8080_TCP_ADDR": "10.0.0.1",
        "LIMEN_REDIS_SERVICE_HOST": "10.0.0.2",
        "LIMEN_REDIS_PORT": "tcp://10.0.0.2:6379",
        "LIMEN_REDIS_PORT_6379_TCP_PROTO": "tcp",
    }
    assert said(environ=environ) == Settings()


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.8.8.8:1", "127.8.8.8", 1, True),
        ("[::1]:8080", "::1", 8080, True),
        ("localhost:65535", "localhost", 65535, True),
        ("LocalHost:0", "LocalHost", 0, True),
        (":8080", "", 8080, False),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),
        ("[::]:8080", "::", 8080, False),
        ("[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", 80, True),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80, False),
        ("10.0.0.1:80", "10.0.0.1", 80, False),
        ("limen.example.com:80", "limen.example.com", 80, False),
        ("localhost.example.com:80", "localhost.example.com", 80, False),
        ("127.1:80", "127.1", 80, False),
    ],
)
def test_where_to_listen(text: str, host: str, port: int, is_loopback: bool) -> None:
    settings = said(bind=text)
    assert settings.bind == Bind(host, port)
    assert settings.bind.is_loopback is settings.is_loopback is is_loopback
    assert str(settings.bind) == text


@pytest.mark.parametrize(
    ("bind", "is_open"),
    [
        ("127.0.0.1:80", {"auto": True, "open": True, "token": False}),
        (":80", {"auto": False, "open": True, "token": False}),
    ],
)
def test_checks_are_open_on_loopback_only_unless_said(bind: str, is_open: dict[str, bool]) -> None:
    for checks in get_args(Checks):
        assert said(bind=bind, auth__checks=checks).checks_are_open is is_open[checks]


@pytest.mark.parametrize(
    ("bind", "is_open"),
    [
        ("127.0.0.1:80", {"auto": True, "open": True, "token": False}),
        ("", {"auto": True, "open": True, "token": False}),
        (":80", {"auto": False, "open": True, "token": False}),
    ],
)
def test_metrics_depend_on_the_address_of_the_control_plane(
    bind: str, is_open: dict[str, bool]
) -> None:
    for metrics in get_args(Checks):
        settings = said(admin__bind=bind, auth__metrics=metrics)
        assert settings.metrics_are_open is is_open[metrics]
        assert settings.checks_are_open
    assert said(bind=":80", grpc__bind=":81").metrics_are_open


def test_the_control_plane_has_an_address_of_its_own_or_none() -> None:
    assert said().admin.bind == Bind("127.0.0.1", 8082)
    assert said(admin__bind="").admin.bind is None
    assert said(environ={"LIMEN_ADMIN__BIND": "[::1]:90"}).admin.bind == Bind("::1", 90)
    assert said('admin.bind = ":91"').admin.bind == Bind("", 91)
    assert [said(admin__bind=bind).admin_is_loopback for bind in ("localhost:1", "", ":1")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("limen.example:80", "http://limen.example:80"),
        (":8080", "http://localhost:8080"),
        ("0.0.0.0:8080", "http://localhost:8080"),
        ("[::]:8080", "http://localhost:8080"),
    ],
)
def test_the_url_of_the_data_plane(bind: str, url: str) -> None:
    for name in ("tls.crt", "tls.key"):
        Path(name).touch()
    tls: dict[str, Any] = {"tls__certificate": "tls.crt", "tls__key": "tls.key"}
    assert said(bind=bind).data_plane_url == url
    assert said(bind=bind, **tls).data_plane_url == url.replace("http:", "https:")


def test_rules_are_in_the_data_folder_unless_said() -> None:
    assert said().rules_place.get_secret_value() == "sqlite:///.limen/rules.db"
    assert (
        said(data_dir="/var/lib/x").rules_place.get_secret_value()
        == "sqlite:////var/lib/x/rules.db"
    )
    assert said(rules="rules.yaml").rules_place.get_secret_value() == "rules.yaml"


def test_a_namespace_that_is_good_here_is_good_for_a_limiter() -> None:
    for namespace in ("a", "A.b_c-9", "x" * 32):
        Limiter(namespace=said(namespace=namespace).namespace).close()
    for namespace in ("", "a b", "x" * 33, "é"):
        assert complaint(namespace=namespace).startswith("--namespace: expected 1 to 32 letters")


def test_tls_takes_two_files() -> None:
    Path("tls.crt").touch()
    Path("tls.key").touch()
    settings = said(tls__certificate="tls.crt", tls__key="tls.key")
    assert settings.tls.is_on
    assert not Settings().tls.is_on


# What is refused.


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            "[stroe]\nurl = 1",
            "unknown setting 'stroe' in limen.toml; did you mean 'store'?",
        ),
        ("[stroe]", "unknown setting 'stroe' in limen.toml; did you mean 'store'?"),
        ("wrokers = 2", "unknown setting 'wrokers' in limen.toml; did you mean 'workers'?"),
        ("port = 80", "unknown setting 'port' in limen.toml; did you mean 'bind'?"),
        ("log_level = 1", "unknown setting 'log_level' in limen.toml; did you mean 'log.level'?"),
        (
            '"store.url" = 1',
            "unknown setting '\"store.url\"' in limen.toml; did you mean 'store.url'?",
        ),
        (
            "[store.redis]\nx = 1",
            "unknown setting 'store.redis' in limen.toml; did you mean 'store.url'?",
        ),
        (
            "[zebra]\nquux = 1",
            "unknown setting 'zebra' in limen.toml; see `limen config example`",
        ),
        (
            'store = "redis://localhost"',
            "limen.toml: store: expected a table, got a value",
        ),
        ("[bind]\nport = 1", f"limen.toml: bind: {BINDS}, got {{'port': 1}}"),
        ('workers = "2"', "limen.toml: workers: must be a valid integer, got '2'"),
        ("workers = 0", "limen.toml: workers: must be greater than or equal to 1, got 0"),
        ("workers = 65", "limen.toml: workers: must be less than or equal to 64, got 65"),
        ("workers = 2.0", "limen.toml: workers: must be a valid integer, got 2.0"),
        ("workers = true", "limen.toml: workers: must be a valid integer, got True"),
        ("data_dir = ' '", f"limen.toml: data_dir: {FOLDER}"),
        ("data_dir = 1", f"limen.toml: data_dir: {FOLDER}"),
        ('data_dir = "a\\nb"', f"limen.toml: data_dir: {FOLDER}"),
        ('data_dir = "what?"', f"limen.toml: data_dir: {FOLDER}"),
        ("rules = []", "limen.toml: rules: must be a valid string"),
        ("rules = 2026-12-24", "limen.toml: rules: must be a valid string"),
        (
            "rules = ' '",
            f"limen.toml: rules: the address of the rules has no scheme; use {DATABASES}",
        ),
        (
            "rules = 'mysql://x'",
            f"limen.toml: rules: rules cannot be kept in 'mysql://'; use {DATABASES}",
        ),
        (
            "rules = 'sqlite:rules.db'",
            f"limen.toml: rules: the address of the rules has no scheme; use {DATABASES}",
        ),
        (
            "namespace = 'a b'",
            "limen.toml: namespace: expected 1 to 32 letters, digits, '.', '_' or '-'",
        ),
        ("store.url = {}", "limen.toml: store.url: must be a valid string"),
        (
            "store.url = 'memory://host'",
            "limen.toml: store.url: 'memory://' takes no host or path; use "
            "'memory://?max_keys=100000'",
        ),
        (
            "store.url = 'memory://?max_keys=0'",
            "limen.toml: store.url: max_keys must be a whole number from 1, got '0'",
        ),
        (
            "store.deadline = 0",
            "limen.toml: store.deadline: must be greater than 0, got 0",
        ),
        (
            "store.deadline = nan",
            "limen.toml: store.deadline: must be less than 3600, got nan",
        ),
        (
            "store.deadline = true",
            "limen.toml: store.deadline: must be a valid number, got True",
        ),
        (
            "store.on_error = 'opne'",
            "limen.toml: store.on_error: must be 'local', 'open' or 'closed', got 'opne' (did you "
            "mean 'open'?)",
        ),
        (
            "auth.checks = 1",
            "limen.toml: auth.checks: must be 'auto', 'open' or 'token', got 1",
        ),
        (
            "http.headers = 'draft-11'",
            "limen.toml: http.headers: must be a valid list, got 'draft-11'",
        ),
        (
            "[http.headers]\ndraft-11 = 1",
            "limen.toml: http.headers: must be a valid list",
        ),
        (
            "http.headers = ['draft-1']",
            "limen.toml: http.headers: must be 'draft-11', 'draft-07', 'draft-03', 'x-ratelimit' "
            "or 'x-ratelimit-delta', got 'draft-1' (did you mean 'draft-11'?)",
        ),
        (
            "http.headers = ['draft-11', 'x-ratelimit', 'draft-07']",
            "limen.toml: http.headers: the styles 'draft-11' and 'draft-07' both write "
            "RateLimit-Policy; choose one of them",
        ),
        (
            "http.max_body = 1",
            "limen.toml: http.max_body: must be greater than or equal to 1024, got 1",
        ),
        (
            "http.max_batch = 0",
            "limen.toml: http.max_batch: must be greater than or equal to 1, got 0",
        ),
        (
            "http.max_header = 0",
            "limen.toml: http.max_header: must be greater than or equal to 1024, got 0",
        ),
        (
            "http.read_timeout = 0",
            "limen.toml: http.read_timeout: must be greater than 0, got 0",
        ),
        (
            "http.keep_alive = -1",
            "limen.toml: http.keep_alive: must be greater than or equal to 0, got -1",
        ),
        (
            "http.drain_timeout = 3600",
            "limen.toml: http.drain_timeout: must be less than 3600, got 3600",
        ),
        (
            "log.level = 'INFO'",
            "limen.toml: log.level: must be 'debug', 'info', 'warning' or 'error', got 'INFO' (did "
            "you mean 'info'?)",
        ),
        (
            "log.format = 'xml'",
            "limen.toml: log.format: must be 'auto', 'text' or 'json', got 'xml'",
        ),
        (
            "tls.certificate = 'no.crt'\ntls.key = 'limen.toml'",
            "limen.toml: tls.certificate: expected a file that can be read",
        ),
        (
            "tls.key = 'limen.toml'",
            "limen.toml: tls.key: TLS needs both tls.certificate and tls.key",
        ),
        ("workers = 2", f"limen.toml: workers: 2 {SHARED}, or one worker"),
        ("bind", "limen.toml is not TOML: Expected '=' after a key in a key/value pair"),
        (f"workers = {'9' * 5000}", "limen.toml is not TOML: Exceeds the limit"),
        (f"workers = {'[' * 5000}", "limen.toml is not TOML: maximum recursion depth"),
    ],
)
def test_a_mistake_in_a_file_is_one_clear_line(toml: str, message: str) -> None:
    found = complaint(toml)
    assert found.startswith(message) if "is not TOML" in message else found == message
    assert "\n" not in found


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"LIMEN_STROE__URL": "x"},
            "unknown setting 'LIMEN_STROE__URL' in the environment; did you mean "
            "'LIMEN_STORE__URL'?",
        ),
        (
            {"LIMEN_STORE_URL": "x"},
            "unknown setting 'LIMEN_STORE_URL' in the environment; did you mean "
            "'LIMEN_STORE__URL'?",
        ),
        (
            {"LIMEN_PORT": "8080"},
            "unknown setting 'LIMEN_PORT' in the environment; did you mean 'LIMEN_BIND'?",
        ),
        (
            {"LIMEN_BIND_FILE": "x"},
            "unknown setting 'LIMEN_BIND_FILE' in the environment; did you mean 'LIMEN_BIND'?",
        ),
        (
            {"LIMEN_ADMIN_TOKEN_FILE": "x"},
            "unknown setting 'LIMEN_ADMIN_TOKEN_FILE' in the environment; did you mean "
            "'LIMEN_AUTH__ADMIN_TOKEN_FILE'?",
        ),
        (
            {"LIMEN_ZEBRA": "x"},
            "unknown setting 'LIMEN_ZEBRA' in the environment; see `limen config example`",
        ),
        (
            {"LIMEN_STORE__URL": "redis://a", "LIMEN_STORE__URL_FILE": "x"},
            "LIMEN_STORE__URL and LIMEN_STORE__URL_FILE are both set; keep one",
        ),
        (
            {"LIMEN_STORE__URL_FILE": "not-there"},
            "LIMEN_STORE__URL_FILE: cannot read the file: No such file or directory",
        ),
        (
            {"LIMEN_STORE__URL_FILE": "/"},
            "LIMEN_STORE__URL_FILE: cannot read the file: Is a directory",
        ),
        (
            {"LIMEN_STORE__URL_FILE": "bytes"},
            "LIMEN_STORE__URL_FILE: cannot read the file: not a path, or not UTF-8",
        ),
        (
            {"LIMEN_STORE__URL_FILE": "/dev/zero"},
            "LIMEN_STORE__URL_FILE: the file has more than 1048576 bytes",
        ),
        (
            {"LIMEN_STORE__URL_FILE": "lines"},
            "LIMEN_STORE__URL_FILE: expected one line of text",
        ),
        (
            {"LIMEN_WORKERS": "two"},
            "LIMEN_WORKERS: must be a valid integer, got 'two'",
        ),
        (
            {"LIMEN_WORKERS": ""},
            "LIMEN_WORKERS: must be a valid integer, got ''",
        ),
        (
            {"LIMEN_STORE__DEADLINE": "50ms"},
            "LIMEN_STORE__DEADLINE: must be a valid number, got '50ms'",
        ),
        ({"LIMEN_BIND": "8080"}, f"LIMEN_BIND: {BINDS}, got '8080'"),
        ({"LIMEN_BIND": "::1:8080"}, f"LIMEN_BIND: {BINDS}, got '::1:8080'"),
        ({"LIMEN_BIND": "[::1:80"}, f"LIMEN_BIND: {BINDS}, got '[::1:80'"),
        ({"LIMEN_BIND": "host:65536"}, f"LIMEN_BIND: {BINDS}, got 'host:65536'"),
        ({"LIMEN_BIND": "http://h:80"}, f"LIMEN_BIND: {BINDS}, got 'http://h:80'"),
        (
            {"LIMEN_STORE__URL": "localhost:6379"},
            f"LIMEN_STORE__URL: the address of the store has no scheme; use {STORES}",
        ),
        (
            {"LIMEN_STORE__URL": "mongodb://x"},
            f"LIMEN_STORE__URL: unknown store 'mongodb://'; use {STORES}",
        ),
        (
            {"LIMEN_AUTH__SECRET": "x" * 16},
            "LIMEN_AUTH__SECRET: expected at least 32 characters",
        ),
        (
            {"LIMEN_AUTH__SECRET": "\udc80" * 40},
            "LIMEN_AUTH__SECRET: expected at least 32 characters",
        ),
        ({"LIMEN_WORKERS": "4"}, f"LIMEN_WORKERS: 4 {SHARED}, or one worker"),
        (
            {"LIMEN_CONFIG": "not-there.toml"},
            "LIMEN_CONFIG: cannot read the file: No such file or directory",
        ),
        ({"LIMEN_CONFIG": "bytes"}, "LIMEN_CONFIG: cannot read the file: not a path, or not UTF-8"),
        ({"LIMEN_CONFIG": "/dev/zero"}, "LIMEN_CONFIG: the file has more than 1048576 bytes"),
    ],
)
def test_a_mistake_in_the_environment_is_one_clear_line(
    environ: dict[str, str], message: str
) -> None:
    Path("bytes").write_bytes(b"\xff\xff")
    Path("lines").write_text("redis://localhost\n\n")
    assert complaint(environ=environ) == message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"config": "none.toml"}, "--config: cannot read the file: No such file or directory"),
        ({"config": ""}, "--config: cannot read the file: Is a directory"),
        ({"config": "a\0b"}, "--config: cannot read the file: not a path, or not UTF-8"),
        ({"config": "redis://h"}, "--config: cannot read the file: No such file or directory"),
        ({"workers": 99}, "--workers: must be less than or equal to 64, got 99"),
        ({"workers": 3}, f"--workers: 3 {SHARED}, or one worker"),
        ({"auth__checks": "no"}, "--checks: must be 'auto', 'open' or 'token', got 'no'"),
        (
            {"log__level": "warn"},
            "--log-level: must be 'debug', 'info', 'warning' or 'error', got 'warn'",
        ),
        ({"admin__bind": "8082"}, f"--admin-bind: {BINDS}, got '8082'"),
        (
            {"admin__bind": "127.0.0.1:8080"},
            "--admin-bind: 127.0.0.1:8080 is already used by bind = '127.0.0.1:8080'; choose "
            "another port",
        ),
        (
            {"admin__bind": "localhost:8080"},
            "--admin-bind: localhost:8080 is already used by bind = '127.0.0.1:8080'; choose",
        ),
        (
            {"admin__bind": ":8081"},
            "--admin-bind: :8081 is already used by grpc.bind = '127.0.0.1:8081'; choose another",
        ),
        (
            {"grpc__bind": "0.0.0.0:8080"},
            "--grpc-bind: 0.0.0.0:8080 is already used by bind = '127.0.0.1:8080'; choose another "
            "port",
        ),
        (
            {"bind": ":8082"},
            "default: admin.bind: 127.0.0.1:8082 is already used by bind = ':8082'; choose another",
        ),
        ({"data_dir": "x://y"}, f"--data-dir: {FOLDER}"),
        ({"tls__key": "x" * 300}, "--tls-key: expected a file that can be read"),
        ({"rules": f"a@{'x' * 300}"}, "--rules: the address of the rules has no scheme"),
    ],
)
def test_a_mistake_in_a_flag_is_one_clear_line(flags: dict[str, Any], message: str) -> None:
    assert complaint(**flags).startswith(message)


def test_listeners_may_share_a_port_on_different_hosts() -> None:
    hosts: dict[str, Any] = {
        "bind": "10.0.0.1:80",
        "grpc__bind": "10.0.0.2:80",
        "admin__bind": "127.0.0.1:80",
    }
    assert said(**hosts).admin.bind == Bind("127.0.0.1", 80)
    free: dict[str, Any] = dict.fromkeys(hosts, "127.0.0.1:0")
    assert said(**free).admin.bind == Bind("127.0.0.1", 0)


def test_two_listeners_on_the_same_port_are_one_line() -> None:
    same: dict[str, Any] = dict.fromkeys(("bind", "grpc__bind", "admin__bind"), "127.0.0.1:80")
    lines = complaint(**same).splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "--grpc-bind: 127.0.0.1:80 is already used by bind = '127.0.0.1:80'",
        "--admin-bind: 127.0.0.1:80 is already used by bind = '127.0.0.1:80'",
        "--admin-bind: 127.0.0.1:80 is already used by grpc.bind = '127.0.0.1:80'",
    ]


def test_all_that_is_wrong_is_told_at_once() -> None:
    toml = "workers = 0\nwrokers = 1\n[log]\nlevel = 1"
    environ = {"LIMEN_BIND": "x", "LIMEN_BNID": "x", "LIMEN_WORKERS": "2"}
    assert [
        line.split(":")[0] for line in complaint(toml, environ, log__format="x").split("\n")
    ] == [
        "unknown setting 'LIMEN_BNID' in the environment; did you mean 'LIMEN_BIND'?",
        "limen.toml",
        "limen.toml",
        "unknown setting 'wrokers' in limen.toml; did you mean 'workers'?",
        "LIMEN_BIND",
        "--log-format",
    ]


def test_a_limen_toml_that_cannot_be_read_is_not_passed_over() -> None:
    Path("limen.toml").mkdir()
    assert complaint() == "limen.toml: cannot read the file: Is a directory"


def test_the_name_of_a_file_does_not_break_a_line() -> None:
    Path("a\nb.toml").write_text("workers = 0")
    assert complaint(config="a\nb.toml").startswith("'a\\nb.toml': workers: must be greater")


# What is not shown.


def test_a_secret_is_shown_by_nothing_but_reveal() -> None:
    secret = Secret(CANARY)
    assert {str(secret), f"{secret}"} == {"***"}
    assert repr(secret) == "Secret('***')"
    assert secret.get_secret_value() == CANARY
    assert secret == Secret(CANARY)
    assert secret != Secret("")
    assert secret != CANARY
    assert hash(secret) == hash(Secret(CANARY))
    assert not Secret("")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"redis://:{CANARY}@h:1/2", "redis://***@h:1/2"),
        (f"redis://joe:{CANARY}@h", "redis://joe:***@h"),
        (f"redis://:12 {CANARY}@h", "redis://***@h"),
        (f"redis://:a@{CANARY}@h", "redis://***@h"),
        (
            f"redis+sentinel://h/s?sentinel_username=joe&sentinel_password={CANARY}",
            "redis+sentinel://h/s?sentinel_username=joe&sentinel_password=***",
        ),
        (f"postgresql://joe@h/d?password={CANARY}&x=1", "postgresql://***@h/d?password=***&x=1"),
        ("sqlite:////var/rules.db", "sqlite:////var/rules.db"),
        ("rules/a@b.yaml", "rules/a@b.yaml"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert str(SecretAddress(address)) == shown
    assert repr(SecretAddress(address)) == f"SecretAddress({shown!r})"
    assert SecretAddress(address).get_secret_value() == address


def test_settings_show_no_secret() -> None:
    found = read(
        {
            "store.url": f"redis+sentinel://joe:{CANARY}@h/s?sentinel_password={CANARY}",
            "rules": f"postgresql://joe:{CANARY}@host/d?password={CANARY}",
            "auth.admin_token": LONG,
            "auth.check_token": f"{LONG}2",
            "auth.secret": LONG,
        },
        {},
    )
    drawn = Console(file=io.StringIO(), width=80)
    drawn.print(found, found.settings, found.settings.store, found.settings.auth)
    assert isinstance(drawn.file, io.StringIO)
    shown = [repr(found), str(found.settings), as_toml(found), str(as_data(found))]
    for text in (*shown, drawn.file.getvalue()):
        assert CANARY not in text
        assert "joe" in text
    assert 'admin_token = "***"  # --auth-admin-token' in as_toml(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auth.admin_token", CANARY),
        ("auth.check_token", CANARY),
        ("auth.secret", CANARY),
        ("auth.admin_token", f"{LONG} with spaces"),
        ("auth.admin_token", f"{LONG}\n"),
        ("auth.checks", f"redis://joe:{CANARY}@h"),
        ("bind", f"redis://joe:{CANARY}@h:80"),
        ("namespace", f"redis://joe:{CANARY}"),
        ("data_dir", f"redis://joe:{CANARY}@h"),
        ("tls.key", f"-----BEGIN PRIVATE KEY-----{CANARY}"),
        ("tls.key", f"joe:{CANARY}@h"),
        ("store.url", f"joe:{CANARY}@h"),
        ("store.url", f"{CANARY}@h"),
        ("store.url", f"redis://{CANARY}@h"),
        ("store.url", f"redis://joe:{CANARY}"),
        ("store.url", f"redis://:{CANARY}/x@h"),
        ("store.url", f"redis://:{CANARY}@h:port"),
        ("store.url", f"redis://:{CANARY}@h/base"),
        ("store.url", f"redis://:{CANARY}@h?x=1"),
        ("store.url", f"redis://h?password={CANARY}"),
        ("store.url", f"reddis://:{CANARY}@h"),
        ("store.url", f"memory://joe:{CANARY}\u2100@h"),
        ("store.url", f" redis://joe:{CANARY}@h"),
        ("rules", f"joe:{CANARY}@h/d"),
        ("rules", f"joe:{CANARY}/x@h/d"),
        ("rules", f"postgresql:joe:{CANARY}@h/d"),
        ("rules", f"postgresql://joe:{CANARY}@h"),
        ("rules", f"postgresql://joe:{CANARY}"),
        ("rules", f"postgresql://joe:{CANARY}@h:p/d"),
        ("rules", f"postgresql://joe:{CANARY}#@h/d"),
        ("rules", f"mysql://joe:{CANARY}@h/d"),
    ],
)
def test_a_secret_that_is_wrong_is_not_repeated(name: str, value: str) -> None:
    [field] = [field for field in FIELDS if field.name == name]
    quoted = value.replace("\n", "\\n")
    flags: dict[str, Any] = {name.replace(".", "__"): value}
    said_by = [
        complaint(environ={field.variable: value}),
        complaint(**flags),
        complaint(f'{name} = "{quoted}"'),
    ]
    for text in said_by:
        assert CANARY not in text
        assert "\n" not in text


@pytest.mark.parametrize(
    "toml",
    [
        f'[auth]\nadmin_token = ["{LONG}"]',
        f'[auth]\nadmin_token = {{ is = "{LONG}" }}',
        f"[auth]\nadmin_token = {CANARY}",
        f'[auth]\nadmin_token = "{LONG}',
        f'[store]\nurl = ["redis://:{CANARY}@h"]',
        f'store = "redis://:{CANARY}@h"',
        f'auth = "{CANARY}"',
        f'"redis://:{CANARY}@h" = 1',
        f'[auth]\ntoken = "{CANARY}"',
    ],
)
def test_a_secret_in_the_wrong_shape_is_not_repeated(toml: str) -> None:
    assert CANARY not in complaint(toml)


def test_a_secret_in_place_of_a_file_is_not_repeated() -> None:
    for field in FIELDS:
        if field.file_variable:
            assert CANARY not in complaint(environ={field.file_variable: LONG})
    assert CANARY not in complaint(environ={"LIMEN_CONFIG": f"redis://:{CANARY}@h"})
    assert CANARY not in complaint(config=f"joe:{CANARY}@h")


# What is written about it.


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_has_a_sentence_with_an_example(field: Field) -> None:
    assert re.fullmatch(r"[A-Z].*`.+`.*\.", field.sentence)


def test_the_example_is_the_defaults() -> None:
    found = said(example())
    assert found == Settings()
    sources = read({}, {}).sources
    assert set(sources.values()) == {"limen.toml"}
    for field in FIELDS:
        assert field.variable in example()
    assert max(map(len, example().splitlines())) <= 100


def test_what_is_shown_can_be_read_again() -> None:
    odd = 'a"b\\c \x80 é 😀'
    shown = as_toml(read({"data_dir": odd, "bind": ":80", "http.headers": []}, {}))
    found = said(shown)
    assert (str(found.data_dir), found.bind, found.http.headers) == (odd, Bind("", 80), ())
    assert 'bind = ":80"  # --bind\n' in shown
    assert "workers = 1  # default\n" in shown


def test_every_flag_of_the_command_is_a_setting() -> None:
    names = {field.name for field in FIELDS}
    assert {option.setting for option in SETTINGS.values()} - names == {"config"}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_is_on_its_page(field: Field) -> None:
    [default] = re.findall(rf"^{field.name.rpartition('.')[2]} = (.*)$", _of_group(field), re.M)
    row = f"| `{field.name}` | `{field.variable}` | `{default}` | {field.sentence} |"
    assert row in (ROOT / "docs" / "settings.md").read_text().splitlines()


def _of_group(field: Field) -> str:
    """Return the part of the example that a setting stands in."""
    parts = re.split(r"^\[(.+)\]$", f"[]\n{example()}".replace("[]", "[-]", 1), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[field.group or "-"]


def test_the_file_on_the_page_can_be_used() -> None:
    [block] = [b for b in blocks_of(ROOT / "docs" / "settings.md") if b.language == "toml"]
    assert said(block.text).workers == 4


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"insight.log": "not-there/log"}, "expected a file in an existing folder"),
        ({"alerts.webhook": "http://127.0.0.1/x"}, "(alerts.webhook_private = true)"),
        ({"alerts.key_share": 7}, "must be less than or equal to 1, got 7"),
        ({"alerts.store_latency": 2}, "must be less than or equal to 1, got 2"),
    ],
)
def test_what_cannot_be_watched_is_told_before_anything_starts(
    flags: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(flags, {})
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1

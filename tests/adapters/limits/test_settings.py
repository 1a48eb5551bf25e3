"""Addresses and options: what can be said, and the one line for what cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import limits.errors
import pytest
from limits import parse
from limits.storage import storage_from_string

from limen.adapters.limits import AsyncLimenStorage, LimenStorage
from limen.adapters.limits.settings import SCHEMES, Settings, read
from limen.errors import ConfigurationError
from tests import servers
from tests.adapters.limits.conftest import Open
from tests.adapters.limits.using import ALL

SECRET = "hunter2"
PLACES = {"unix": "/run/redis.sock", "sentinel": "host:26379/service", "memory": ""}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_address_of_limen_makes_a_storage(scheme: str) -> None:
    place = next((place for form, place in PLACES.items() if form in scheme), "host:6379")
    assert isinstance(storage_from_string(f"{scheme}://{place}"), LimenStorage)
    assert isinstance(storage_from_string(f"async+{scheme}://{place}"), AsyncLimenStorage)


@pytest.mark.parametrize(
    ("uri", "options", "expected"),
    [
        ("limen+memory://", {}, Settings("memory://")),
        ("async+limen+memory://", {}, Settings("memory://")),
        ("limen+memory://?max_keys=9", {}, Settings("memory://?max_keys=9")),
        ("limen+memory://", {"max_keys": 9}, Settings("memory://?max_keys=9")),
        (
            "limen+redis+cluster://a:1,b:2?on_error=raise&deadline=0.25",
            {"instances": 4, "namespace": "shop"},
            Settings("redis+cluster://a:1,b:2", "shop", "raise", 4, 0.25),
        ),
        (
            "limen+rediss://u:p%40@h:1/2?ssl_ca_certs=%2Fa%20b&instances=8&ssl_cert_reqs=none",
            {"ssl_check_hostname": False},
            Settings(
                "rediss://u:p%40@h:1/2?ssl_ca_certs=%2Fa%20b&ssl_cert_reqs=none"
                "&ssl_check_hostname=False",
                instances=8,
            ),
        ),
        (
            "limen+redis://h?on_error=open",
            {"on_error": "closed"},
            Settings("redis://h", on_error="open"),
        ),
        ("limen+redis://h", {"deadline": "0.5"}, Settings("redis://h", deadline=0.5)),
        ("limen+redis://h", {"username": None, "password": None}, Settings("redis://h")),
        (
            "limen+redis+sentinel://u:p%40@h/s",
            {},
            Settings(
                "redis+sentinel://u:p%40@h/s?sentinel_username=u&sentinel_password=p%40",
            ),
        ),
        (
            "limen+redis+sentinel://:p@h?sentinel_password=",
            {"service_name": "s"},
            Settings("redis+sentinel://default:p@h/s?sentinel_password="),
        ),
        (
            "limen+redis+sentinel://:p@h/s",
            {"username": "u", "password": "q", "sentinel_kwargs": {"password": "w"}},
            Settings("redis+sentinel://u:q@h/s?sentinel_username=u&sentinel_password=w"),
        ),
        (
            "limen+redis+sentinel://h/s",
            {"sentinel_kwargs": {"password": None}},
            Settings("redis+sentinel://h/s"),
        ),
    ],
)
def test_options_stand_behind_the_address_or_beside_it(
    uri: str, options: dict[str, Any], expected: Settings
) -> None:
    assert read(uri, options) == expected
    assert SECRET not in repr(read("limen+redis://:hunter2@h", {}))


@pytest.mark.parametrize(
    ("uri", "options", "line"),
    [
        ("limen+redis://h:99999", {}, "a host of 'redis://' cannot be read"),
        ("limen+redis://a,b", {}, "'redis://' takes one host"),
        ("limen+redis://user@h", {}, "has a user and no password"),
        ("limen+redis+sentinel://h", {}, "needs the name of the service"),
        ("limen+unix://", {}, "takes the path of a socket"),
        ("limen+memory://host", {}, "'memory://' takes no host or path"),
        ("limen+redis://h?colour=red", {}, "unknown option 'colour' of 'redis://'"),
        ("limen+redis://h", {"colour": "red"}, "unknown option 'colour' of 'redis://'"),
        ("limen+redis://h", {"password": SECRET}, "address: limen+redis://user:password@host:6379"),
        (
            "limen+redis+cluster://h",
            {"username": "u", "password": SECRET},
            "no option 'username'; write it into the address: limen+redis+cluster://user:password@",
        ),
        (
            "limen+redis+cluster://h",
            {"ssl": True},
            "no option 'ssl'; for TLS, write limen+rediss+cluster://host:6379",
        ),
        ("limen+valkey://h", {"ssl": True}, "for TLS, write limen+valkeys://host:6379"),
        ("limen+redis+sentinel://h/s", {"ssl": True}, "write limen+rediss+sentinel://host:26379/"),
        ("limen+redis+sentinel://h/s", {"password": 7}, "option password must be text, got int"),
        ("limen+redis+sentinel://u@h/s", {}, "has a user and no password"),
        (
            "limen+redis+sentinel://h/s",
            {"sentinel_kwargs": {"socket_timeout": 3}},
            "sentinel_kwargs takes username and password",
        ),
        ("limen+redis+sentinel://h/s", {"use_replicas": True}, "unknown option 'use_replicas'"),
        ("limen+redis://h", {"key_prefix": "x"}, "no option 'key_prefix'; use namespace"),
        ("limen+redis://h?socket_timeout=3", {}, "no option 'socket_timeout'; use deadline"),
        ("limen+redis://h", {"socket_connect_timeout": 30}, "use deadline"),
        ("limen+redis://h?on_error=ignore", {}, "on_error must be local, open, closed or raise"),
        ("limen+redis://h?deadline=soon", {}, "deadline must be seconds above 0"),
        ("limen+redis://h?deadline=-1", {}, "deadline must be seconds above 0"),
        ("limen+redis://h?instances=0", {}, "instances must be a whole number from 1"),
        ("limen+redis://h?instances=many", {}, "instances must be a whole number from 1"),
        ("limen+redis://h?namespace=a%20b", {}, "namespace must be 1 to 32 letters"),
        (f"limen+redis://:a?{SECRET}@h", {}, "write / as %2F, ? as %3F"),
        (f"limen+redis://:a/{SECRET}@h", {}, "write / as %2F, ? as %3F"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "async+"])
def test_what_cannot_be_meant_is_one_clear_line(
    prefix: str, uri: str, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_string(prefix + uri, **options)
    assert isinstance(caught.value, limits.errors.ConfigurationError)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_address_of_somebody_else_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match=r"must begin with 'limen\+'") as caught:
        LimenStorage(f"redis://:{SECRET}@host")
    assert SECRET not in str(caught.value)


def test_namespaces_are_counted_apart(open_storage: Open, uri: str) -> None:
    item = parse("1/year")
    for namespace in ("one", "two"):
        storage = open_storage(f"{uri}?namespace={namespace}&deadline=5")
        for strategy in ALL:
            assert storage.by(strategy).hits(2, item, "k") == [True, False]


def test_a_socket_file_is_a_store_too(open_storage: Open, tmp_path: Path) -> None:
    path = tmp_path / "valkey.sock"
    with servers.process(servers.binaries()["valkey"], "--unixsocket", str(path)):
        storage = open_storage(f"limen+unix://{path}?deadline=5&on_error=raise")
        assert storage.check()
        for strategy in ALL:
            assert storage.by(strategy).hits(2, parse("1/year"), "k") == [True, False]


def test_a_cluster_is_a_store_too(open_storage: Open) -> None:
    item = parse("2/year")
    with servers.cluster(servers.binaries()["valkey"]) as cluster:
        hosts = ",".join(f"{servers.HOST}:{port}" for port in cluster.ports)
        storage = open_storage(f"limen+redis+cluster://{hosts}?deadline=5&on_error=raise")
        for strategy in ALL:
            used = storage.by(strategy)
            for user in "abcdef":
                assert used.hits(3, item, user) == [True, True, False]
            used.clear(item, "a")
            assert used.stats(item, "a").remaining == 2


@pytest.mark.parametrize(
    ("name", "passwords", "login", "options"),
    [
        ("valkey", (SECRET, SECRET), f":{SECRET}@", {}),
        ("valkey", (SECRET, SECRET), f"app:{SECRET}@", {}),
        ("redis-6.2", (SECRET, SECRET), "", {"username": "app", "password": SECRET}),
        ("redis-6.2", (SECRET, ""), f":{SECRET}@", {}),
        ("valkey", ("", SECRET), f":{SECRET}@", {}),
        ("valkey", (SECRET, "x"), f"app:{SECRET}@", {"sentinel_kwargs": {"password": "x"}}),
    ],
)
def test_sentinels_get_the_login_that_limits_gives_them(
    open_storage: Open, name: str, passwords: tuple[str, str], login: str, options: dict[str, Any]
) -> None:
    item = parse("2/year")
    with servers.guarded_sentinel(servers.binaries()[name], *passwords) as watched:
        place = f"{login}{servers.HOST}:{watched.sentinel_ports[0]}/{watched.service}"
        theirs = storage_from_string(f"redis+sentinel://{place}", **options)
        assert theirs.check()
        ours = open_storage(f"limen+redis+sentinel://{place}?deadline=5&on_error=raise", **options)
        assert ours.check()
        for strategy in ALL:
            assert ours.by(strategy).hits(3, item, "k") == [True, True, False]


def test_a_wrong_password_of_sentinels_is_logged_with_the_setting(
    open_storage: Open, caplog: pytest.LogCaptureFixture
) -> None:
    binary = servers.binaries()["valkey"]
    with servers.guarded_sentinel(binary, SECRET, "other") as watched:
        place = f":{SECRET}@{servers.HOST}:{watched.sentinel_ports[0]}/{watched.service}"
        storage = open_storage(f"limen+redis+sentinel://{place}?deadline=5")
        storage.by("fixed-window").hits(1, parse("2/year"), "k")
    assert "(rights)" in caplog.text
    assert "sentinel_username, sentinel_password" in caplog.text
    assert SECRET not in caplog.text


def test_without_limits_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['limits'] = None\n"
        "try:\n    import limen.adapters.limits\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (
        "limen.adapters.limits needs the package limits; run: pip install 'limen[limits]'"
    )

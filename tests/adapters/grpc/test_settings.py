"""What can be said wrongly, and what the statuses say in numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from limen import AsyncLimiter, ConfigurationError, InvalidLimit, Limiter
from limen.adapters import RateLimit
from limen.adapters.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from limen.adapters.grpc.denial import _denial
from limen.http import Answer
from tests.adapters.grpc.serving import RetryInfo


async def slow_key(call: Any) -> str:
    return "key"


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        ([RateLimit()], {}, "a limiter knows no rules"),
        ([RateLimit("1/hour", key=slow_key)], {}, "this adapter runs in threads and cannot await"),
        ([], {"routes": ["/x"]}, "gRPC needs no routes"),
        ([], {"expose": True}, "expose is for web pages"),
        ([], {"status": 418}, "no code of gRPC stands for the status 418"),
        ([], {"status": 200}, "status must be from 400 to 599"),
        ([], {"colour": 1}, "unknown option 'colour'"),
        ([], {"exempt": "/shop.Orders/Place"}, "exempt must be a list"),
        ([], {"exempt": ["shop.Orders/Place"]}, "did you mean '/shop.Orders/Place'"),
        ([], {"exempt": ["/shop.Orders"]}, "a method must be named in full"),
        ([], {"limits_by_method": {"/shop.*/Place": "1/hour"}}, "a method must be named in full"),
        ([], {"limits_by_method": {7: "1/hour"}}, "a method must be named in full"),
        (
            [],
            {"limits_by_method": {"/a.B/C": "1/hour"}, "exempt": ["/a.B/*"]},
            "the limits of '/a.B/C' never hold, since it is exempt; see exempt",
        ),
        (
            [],
            {"limits_by_method": {"/grpc.health.v1.Health/Check": "1/hour"}},
            "never hold, since it is exempt; see limit_infrastructure=True",
        ),
    ],
)
def test_refuses_what_makes_no_sense(
    arguments: list[Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why.replace("*", r"\*")):
        RateLimitInterceptor(Limiter(), *arguments, **options)


def test_refuses_a_limit_that_cannot_be_read() -> None:
    with pytest.raises(InvalidLimit, match="100/minut"):
        RateLimitInterceptor(Limiter(), limits_by_method={"/a.B/C": ["1/hour", "100/minutt"]})


def test_each_kind_of_server_has_its_kind_of_limiter() -> None:
    wrong: Any = AsyncLimiter()
    with pytest.raises(ConfigurationError, match="this adapter is for threads; give it a Limiter"):
        RateLimitInterceptor(wrong, "1/hour")
    wrong = Limiter()
    with pytest.raises(ConfigurationError, match="is for asyncio; give it an AsyncLimiter"):
        AsyncRateLimitInterceptor(wrong, "1/hour")
    wrong.close()


def test_functions_may_be_async_on_asyncio() -> None:
    AsyncRateLimitInterceptor(AsyncLimiter(), RateLimit("1/hour", key=slow_key))


@given(st.floats(0, 1e15))
def test_a_wait_is_said_exactly_and_never_too_short(wait: float) -> None:
    denial = _denial(grpc.StatusCode.RESOURCE_EXHAUSTED, "später", Answer(False, (), wait), [])
    raw = dict(denial.metadata)["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    status = status_pb2.Status.FromString(raw)
    assert (status.code, status.message) == (8, "später")
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    told = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    if wait < 3e11:
        assert told >= wait * (1 - 1e-15)
        assert told == pytest.approx(wait, rel=1e-12, abs=1e-6)
    pushback = int(str(dict(denial.metadata)["grpc-retry-pushback-ms"]))
    assert pushback == -1 if wait * 1_000 > 2**31 - 1 else wait * 1_000 <= pushback < 2**31


def test_without_grpcio_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['grpc'] = None; import limen.adapters.grpc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: limen.adapters.grpc needs the package grpc; run: pip install 'limen[grpc]'"
    )


def test_needs_no_other_package_than_grpcio() -> None:
    code = "import sys, limen.adapters.grpc; print('google.protobuf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

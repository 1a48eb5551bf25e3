"""The messages of Envoy's rate limit service v3: the names and numbers that every Envoy knows."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from limen.server.grpc.schema import File, Schema

_PACKAGE = "envoy.service.ratelimit.v3"
SHOULD_RATE_LIMIT = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
_ENTRY_NAME, _ENTRY = "RateLimitDescriptor.Entry", "string key = 1; string value = 2;"
_UNITS = ("UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")
_FILES = (
    File("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", {"RateLimitUnit": _UNITS}),
    File(
        "envoy/config/core/v3/base.proto",
        "envoy.config.core.v3",
        {"HeaderValue": "string key = 1; string value = 2;"},
    ),
    File(
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy.extensions.common.ratelimit.v3",
        {
            "RateLimitDescriptor": """
                repeated RateLimitDescriptor.Entry entries = 1;
                RateLimitDescriptor.RateLimitOverride limit = 2;
                .google.protobuf.UInt64Value hits_addend = 3;
                bool is_negative_hits = 4;
            """,
            _ENTRY_NAME: _ENTRY,
            "RateLimitDescriptor.RateLimitOverride": """
                uint32 requests_per_unit = 1;
                .envoy.type.v3.RateLimitUnit unit = 2;
            """,
        },
        needs=("envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"),
    ),
    File(
        "envoy/service/ratelimit/v3/rls.proto",
        _PACKAGE,
        {
            "RateLimitRequest": """
                string domain = 1;
                repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors = 2;
                uint32 hits_addend = 3;
            """,
            "RateLimitResponse": """
                RateLimitResponse.Code overall_code = 1;
                repeated RateLimitResponse.DescriptorStatus statuses = 2;
                repeated .envoy.config.core.v3.HeaderValue response_headers_to_add = 3;
                repeated .envoy.config.core.v3.HeaderValue request_headers_to_add = 4;
                bytes raw_body = 5;
            """,
            "RateLimitResponse.Code": ("UNKNOWN", "OK", "OVER_LIMIT"),
            "RateLimitResponse.RateLimit": """
                uint32 requests_per_unit = 1;
                RateLimitResponse.RateLimit.Unit unit = 2;
                string name = 3;
            """,
            "RateLimitResponse.RateLimit.Unit": (*_UNITS, "WEEK"),
            "RateLimitResponse.DescriptorStatus": """
                RateLimitResponse.Code code = 1;
                RateLimitResponse.RateLimit current_limit = 2;
                uint32 limit_remaining = 3;
                .google.protobuf.Duration duration_until_reset = 4;
            """,
        },
        needs=(
            "envoy/config/core/v3/base.proto",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "google/protobuf/duration.proto",
        ),
        service=(
            "RateLimitService",
            "ShouldRateLimit(RateLimitRequest) returns (RateLimitResponse);",
        ),
    ),
)


def envoy_schema(entry: str = _ENTRY) -> Schema:
    """Return the service and its messages, for others to be added."""
    schema = Schema()
    for file in _FILES:
        if _ENTRY_NAME in file.kinds:
            file = structs.replace(file, kinds={**file.kinds, _ENTRY_NAME: entry})
        schema.add(file)
    return schema


_own = envoy_schema()
# Envoy puts into an entry what a client sent in a header, whatever bytes they are. As texts, which
# have to be UTF-8, the whole message could not be read.
_own_as_sent = envoy_schema("bytes key = 1; bytes value = 2;")
RateLimitRequest: Any = _own.message(f"{_PACKAGE}.RateLimitRequest")
RequestAsSent: Any = _own_as_sent.message(f"{_PACKAGE}.RateLimitRequest")
RateLimitResponse: Any = _own.message(f"{_PACKAGE}.RateLimitResponse")
DescriptorStatus: Any = _own.message(f"{_PACKAGE}.RateLimitResponse.DescriptorStatus")
RateLimit: Any = _own.message(f"{_PACKAGE}.RateLimitResponse.RateLimit")
OK, OVER_LIMIT = 1, 2
UNKNOWN, SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = range(8)

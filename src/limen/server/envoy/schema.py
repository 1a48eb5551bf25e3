"""The messages of Envoy's rate limit service v3: the names and numbers that every Envoy knows.

They are kept in a pool of their own, so that they get along with a program that has loaded Envoy's
own definitions under the same names. What a client sends beyond them is skipped, as protobuf does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from google.protobuf import duration_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"

_Kinds = dict[str, str | tuple[str, ...]]
"""Messages as their fields, and enums as their words, by their names within a package."""
_UNITS = ("UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")
_FILES: dict[str, tuple[tuple[str, ...], _Kinds]] = {
    "envoy/type/v3/ratelimit_unit.proto": ((), {"RateLimitUnit": _UNITS}),
    "envoy/config/core/v3/base.proto": ((), {"HeaderValue": "string key = 1; string value = 2;"}),
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto": (
        ("envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"),
        {
            "RateLimitDescriptor": """
                repeated RateLimitDescriptor.Entry entries = 1;
                RateLimitDescriptor.RateLimitOverride limit = 2;
                .google.protobuf.UInt64Value hits_addend = 3;
                bool is_negative_hits = 4;
            """,
            "RateLimitDescriptor.Entry": "string key = 1; string value = 2;",
            "RateLimitDescriptor.RateLimitOverride": """
                uint32 requests_per_unit = 1;
                .envoy.type.v3.RateLimitUnit unit = 2;
            """,
        },
    ),
    "envoy/service/ratelimit/v3/rls.proto": (
        (
            "envoy/config/core/v3/base.proto",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "google/protobuf/duration.proto",
        ),
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
    ),
}
_FIELD = re.compile(r"(repeated )?(\S+) (\w+) = (\d+);")
_PLAIN = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
}


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for known in (duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for path, (needed, kinds) in _FILES.items():
        file = _file(path, needed, kinds)
        if SERVICE.startswith(f"{file.package}."):
            method = file.service.add(name=SERVICE.rpartition(".")[2]).method.add(name=METHOD)
            method.input_type = f".{file.package}.RateLimitRequest"
            method.output_type = f".{file.package}.RateLimitResponse"
        pool.Add(file)
    return pool


def _file(path: str, needed: Iterable[str], kinds: _Kinds) -> FileDescriptorProto:
    package = path.rpartition("/")[0].replace("/", ".")
    file = FileDescriptorProto(name=path, package=package, syntax="proto3", dependency=needed)
    messages: dict[str, Any] = {}
    for name, content in kinds.items():
        outer, _, last = name.rpartition(".")
        within = messages.get(outer, file)
        if isinstance(content, tuple):
            enum = within.enum_type.add(name=last)
            for number, word in enumerate(content):
                enum.value.add(name=word, number=number)
            continue
        message = (within.nested_type if outer else within.message_type).add(name=last)
        messages[name] = message
        for repeated, kind, field_name, number in _FIELD.findall(content):
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _PLAIN:
                field.type = _PLAIN[kind]
            else:
                # Whether it is a message or an enum, the pool finds out.
                field.type_name = kind if kind.startswith(".") else f".{package}.{kind}"
    return file


POOL: DescriptorPool = _pool()
"""Where the messages are known by their names; the service too, for those who ask what there is."""


def _class(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f"envoy.service.ratelimit.v3.{name}"))


RateLimitRequest: Any = _class("RateLimitRequest")
RateLimitResponse: Any = _class("RateLimitResponse")
DescriptorStatus: Any = _class("RateLimitResponse.DescriptorStatus")
RateLimit: Any = _class("RateLimitResponse.RateLimit")
OK, OVER_LIMIT = 1, 2
UNKNOWN, SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = range(8)

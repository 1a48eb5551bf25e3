"""Messages by their public names and numbers, from a table instead of generated code.

They are kept in a pool of their own, so that they get along with a program that has loaded other
definitions under the same names. What a client sends beyond them is skipped, as protobuf does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import duration_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from limen.server.grpc.calls import Code, Failed

_FIELD = re.compile(r"(repeated )?(\S+) (\w+) = (\d+);")
_METHOD = re.compile(r"(\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
_PLAIN = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
}


class File(Struct, frozen=True):
    """What one `.proto` file would say."""

    path: str
    """`"grpc/health/v1/health.proto"`"""
    package: str
    kinds: Mapping[str, str | tuple[str, ...]]
    """Messages as their fields, and enums as their words, by their names within the package.

    An outer one comes first. The name of a type is within the package too, or begins with a dot.
    """
    needs: tuple[str, ...] = ()
    """The paths of other files."""
    service: tuple[str, str] | None = None
    """A name, and methods: `("Health", "Check(Request) returns (Response);")`."""


class Schema:
    """Files that were put together, and the classes of their messages."""

    def __init__(self) -> None:
        self.services: list[str] = []
        self.pool: DescriptorPool = DescriptorPool()
        for known in (duration_pb2, wrappers_pb2):
            self.pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)

    def add(self, file: File) -> None:
        """Add a file; those it needs are there."""
        made = FileDescriptorProto(
            name=file.path, package=file.package, syntax="proto3", dependency=file.needs
        )
        _add_kinds(made, file)
        if file.service is not None:
            name, methods = file.service
            service = made.service.add(name=name)
            for method, streams_in, takes, streams_out, gives in _METHOD.findall(methods):
                service.method.add(
                    name=method,
                    input_type=f".{file.package}.{takes}",
                    output_type=f".{file.package}.{gives}",
                    client_streaming=bool(streams_in),
                    server_streaming=bool(streams_out),
                )
            self.services.append(f"{file.package}.{name}")
        self.pool.Add(made)

    def message(self, name: str) -> Any:
        """Return the class of a message, by its full name."""
        return GetMessageClass(self.pool.FindMessageTypeByName(name))


def _add_kinds(made: FileDescriptorProto, file: File) -> None:
    messages: dict[str, Any] = {}
    for name, content in file.kinds.items():
        outer, _, last = name.rpartition(".")
        within = messages.get(outer, made)
        if isinstance(content, tuple):
            _add_words(within.enum_type.add(name=last), content)
            continue
        message = messages[name] = (within.nested_type if outer else within.message_type).add(
            name=last
        )
        for repeated, kind, field_name, number in _FIELD.findall(content):
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _PLAIN:
                field.type = _PLAIN[kind]
            else:
                # Whether it is a message or an enum, the pool finds out.
                field.type_name = kind if kind.startswith(".") else f".{file.package}.{kind}"


def _add_words(enum: Any, words: Iterable[str]) -> None:
    for number, word in enumerate(words):
        enum.value.add(name=word, number=number)


def decoded(kind: Any, raw: bytes) -> Any:
    """Return a message, or raise `Failed`."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise Failed(Code.INVALID_ARGUMENT, f"the message is not a {name}") from None

"""The services that every gRPC server has: health (`grpc.health.v1`) and reflection.

Health says whether a service can be asked. Reflection, in two versions that differ in their names
only, lists services and messages for grpcurl and similar clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from limen.server.grpc.calls import Call, Code, Failed, Methods, Streamed, Unary
from limen.server.grpc.schema import File, Schema, decoded

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_HEALTH = "grpc.health.v1"
_LOOK_S = 0.5
_HEALTH_FILE = File(
    "grpc/health/v1/health.proto",
    _HEALTH,
    {
        "HealthCheckRequest": "string service = 1;",
        "HealthCheckResponse": "HealthCheckResponse.ServingStatus status = 1;",
        "HealthCheckResponse.ServingStatus": (
            "UNKNOWN",
            "SERVING",
            "NOT_SERVING",
            "SERVICE_UNKNOWN",
        ),
    },
    service=(
        "Health",
        """
        Check(HealthCheckRequest) returns (HealthCheckResponse);
        Watch(HealthCheckRequest) returns (stream HealthCheckResponse);
        """,
    ),
)
_REFLECTION_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_METHOD = "ServerReflectionInfo"
_MESSAGES = {
    "ServerReflectionRequest": """
        string host = 1;
        string file_by_filename = 3;
        string file_containing_symbol = 4;
        ExtensionRequest file_containing_extension = 5;
        string all_extension_numbers_of_type = 6;
        string list_services = 7;
    """,
    "ExtensionRequest": "string containing_type = 1; int32 extension_number = 2;",
    "ServerReflectionResponse": """
        string valid_host = 1;
        ServerReflectionRequest original_request = 2;
        FileDescriptorResponse file_descriptor_response = 4;
        ExtensionNumberResponse all_extension_numbers_response = 5;
        ListServiceResponse list_services_response = 6;
        ErrorResponse error_response = 7;
    """,
    "FileDescriptorResponse": "repeated bytes file_descriptor_proto = 1;",
    "ExtensionNumberResponse": "string base_type_name = 1; repeated int32 extension_number = 2;",
    "ListServiceResponse": "repeated ServiceResponse service = 1;",
    "ServiceResponse": "string name = 1;",
    "ErrorResponse": "int32 error_code = 1; string error_message = 2;",
}


class Health:
    """Tells whether the services of a schema can be asked: all of them or none.

    `aliases` are other names that clients may ask for.
    """

    def __init__(
        self, schema: Schema, is_ready: Callable[[], bool], aliases: Iterable[str] = ()
    ) -> None:
        schema.add(_HEALTH_FILE)
        self._services = schema.services
        self._aliases = frozenset(aliases)
        self._is_ready = is_ready
        self._request: Any = schema.message(f"{_HEALTH}.HealthCheckRequest")
        self._response: Any = schema.message(f"{_HEALTH}.HealthCheckResponse")

    @property
    def methods(self) -> Methods:
        """What can be called."""
        return {
            b"/grpc.health.v1.Health/Check": Unary(self._check),
            b"/grpc.health.v1.Health/Watch": Streamed(self._watch),
        }

    async def _check(self, raw: bytes, call: Call) -> bytes:
        status = self._status(raw)
        if status == SERVICE_UNKNOWN:
            raise Failed(Code.NOT_FOUND, "there is no such service; reflection lists them")
        return self._told(status)

    async def _watch(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for raw in messages:
            last = None
            while True:
                status = self._status(raw)
                if status != last:
                    last = status
                    yield self._told(status)
                await asyncio.sleep(_LOOK_S)

    def _status(self, raw: bytes) -> int:
        service = decoded(self._request, raw).service
        if service and service not in self._services and service not in self._aliases:
            return SERVICE_UNKNOWN
        return SERVING if self._is_ready() else NOT_SERVING

    def _told(self, status: int) -> bytes:
        found: bytes = self._response(status=status).SerializeToString()
        return found


class Reflection:
    """Tells of the services of a schema, and of itself."""

    def __init__(self, schema: Schema) -> None:
        for package in _REFLECTION_PACKAGES:
            request, response = "ServerReflectionRequest", "ServerReflectionResponse"
            method = f"{_METHOD}(stream {request}) returns (stream {response});"
            path = f"{package.replace('.', '/')}/reflection.proto"
            schema.add(File(path, package, _MESSAGES, service=("ServerReflection", method)))
        self._schema = schema
        # The bytes are the same in both versions.
        self._request: Any = schema.message(f"{_REFLECTION_PACKAGES[0]}.ServerReflectionRequest")
        self._response: Any = schema.message(f"{_REFLECTION_PACKAGES[0]}.ServerReflectionResponse")

    @property
    def methods(self) -> Methods:
        """What can be called."""
        told = Streamed(self._tell)
        packages = _REFLECTION_PACKAGES
        return {f"/{each}.ServerReflection/{_METHOD}".encode(): told for each in packages}

    async def _tell(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for raw in messages:
            request = decoded(self._request, raw)
            response = self._response(valid_host=request.host, original_request=request)
            self._answer(request, response)
            yield response.SerializeToString()

    def _answer(self, request: Any, response: Any) -> None:
        pool = self._schema.pool
        try:
            if request.file_by_filename:
                self._add_files(pool.FindFileByName(request.file_by_filename), response)
            elif request.file_containing_symbol:
                self._add_files(self._file_of(request.file_containing_symbol), response)
            elif request.all_extension_numbers_of_type:
                kind = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                response.all_extension_numbers_response.base_type_name = kind.full_name
            elif request.HasField("file_containing_extension"):
                raise KeyError
            else:
                for name in sorted(self._schema.services):
                    response.list_services_response.service.add(name=name)
        except KeyError:
            response.error_response.error_code = Code.NOT_FOUND
            response.error_response.error_message = "there is no such thing here"

    def _file_of(self, symbol: str) -> Any:
        pool = self._schema.pool
        try:
            return pool.FindFileContainingSymbol(symbol)
        except KeyError:
            # A method is a symbol too, which a pool finds only when it is told so.
            return pool.FindMethodByName(symbol).containing_service.file

    def _add_files(self, file: Any, response: Any) -> None:
        """Add a file, and before it all that it needs."""
        seen: dict[str, bytes] = {}

        def visit(each: Any) -> None:
            if each.name not in seen:
                for needed in each.dependencies:
                    visit(needed)
                seen[each.name] = each.serialized_pb

        visit(file)
        response.file_descriptor_response.file_descriptor_proto.extend(seen.values())

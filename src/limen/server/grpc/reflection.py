"""Reflection as gRPC has it: what services there are, and their messages; for grpcurl and the like.

The two versions differ in nothing but their names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from limen.server.grpc.calls import Call, Code, Methods, Streamed
from limen.server.grpc.schema import File, Schema, decoded

_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_NAME = "ServerReflection"
_KINDS = {
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


class Reflection:
    """Tells of the services of a schema, and of itself."""

    def __init__(self, schema: Schema) -> None:
        for package in _PACKAGES:
            methods = f"{_NAME}Info(stream {_NAME}Request) returns (stream {_NAME}Response);"
            path = f"{package.replace('.', '/')}/reflection.proto"
            schema.add(File(path, package, _KINDS, service=(_NAME, methods)))
        self._schema = schema
        # The bytes are the same in both versions.
        self._request: Any = schema.message(f"{_PACKAGES[0]}.ServerReflectionRequest")
        self._response: Any = schema.message(f"{_PACKAGES[0]}.ServerReflectionResponse")

    @property
    def methods(self) -> Methods:
        """What can be called."""
        told = Streamed(self._tell)
        return {f"/{package}.{_NAME}/{_NAME}Info".encode(): told for package in _PACKAGES}

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

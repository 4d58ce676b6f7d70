"""gRPC server reflection, versions 1 and 1alpha: lists the services of a port and their messages.

The two versions differ in the package name only. Descriptions come from protobuf's descriptor pool,
which the generated modules fill.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as alpha

from waystation.net.http2.methods import Caller, Service
from waystation.net.http2.port import GrpcStatus

from .rpc import method

V1: Final = "grpc.reflection.v1.ServerReflection"
V1_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
_FILE_V1: Final = "grpc/reflection/v1/reflection.proto"


def reflection(services: Iterable[Service], *others: str) -> list[Service]:
    """The reflection services for `services`, the services named in `others`, and themselves."""
    _define_v1()
    reflection = _Reflection([*others, *(one.name for one in services), V1, V1_ALPHA])
    info = method(
        reflection.info,
        alpha.ServerReflectionRequest,
        alpha.ServerReflectionResponse,
        many_in=True,
        many_out=True,
    )
    return [Service(name, {"ServerReflectionInfo": info}) for name in (V1, V1_ALPHA)]


class _Reflection:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = sorted(names)
        self._pool: Any = descriptor_pool.Default()

    async def info(
        self, requests: AsyncIterator[Any], _caller: Caller
    ) -> AsyncIterator[alpha.ServerReflectionResponse]:
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: Any) -> alpha.ServerReflectionResponse:
        kind = request.WhichOneof("message_request")
        find: Callable[[Any], dict[str, Any]] | None = {
            "file_by_filename": self._file,
            "file_containing_symbol": self._file_of_symbol,
            "file_containing_extension": self._file_of_extension,
            "all_extension_numbers_of_type": self._extensions,
            "list_services": self._services,
        }.get(kind)
        if find is None:
            answer = _error(GrpcStatus.INVALID_ARGUMENT, "invalid argument")
        else:
            try:
                answer = find(getattr(request, kind))
            except KeyError:
                answer = _error(GrpcStatus.NOT_FOUND, "not found")
        return alpha.ServerReflectionResponse(
            valid_host=request.host, original_request=request, **answer
        )

    def _file(self, name: str) -> dict[str, Any]:
        return _described(self._pool.FindFileByName(name))

    def _file_of_symbol(self, name: str) -> dict[str, Any]:
        return _described(self._pool.FindFileContainingSymbol(name))

    def _file_of_extension(self, wanted: alpha.ExtensionRequest) -> dict[str, Any]:
        message = self._pool.FindMessageTypeByName(wanted.containing_type)
        return _described(self._pool.FindExtensionByNumber(message, wanted.extension_number).file)

    def _extensions(self, name: str) -> dict[str, Any]:
        message = self._pool.FindMessageTypeByName(name)
        numbers = sorted(one.number for one in self._pool.FindAllExtensions(message))
        return {
            "all_extension_numbers_response": alpha.ExtensionNumberResponse(
                base_type_name=message.full_name, extension_number=numbers
            )
        }

    def _services(self, _wish: str) -> dict[str, Any]:
        return {
            "list_services_response": alpha.ListServiceResponse(
                service=[alpha.ServiceResponse(name=name) for name in self._names]
            )
        }


def _described(file: Any) -> dict[str, Any]:
    """A file with all files that it imports."""
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one.name not in found:
            found[one.name] = one.serialized_pb
            waiting += one.dependencies
    return {
        "file_descriptor_response": alpha.FileDescriptorResponse(
            file_descriptor_proto=list(found.values())
        )
    }


def _error(status: GrpcStatus, text: str) -> dict[str, Any]:
    return {"error_response": alpha.ErrorResponse(error_code=status, error_message=text)}


def _define_v1() -> None:
    """Adds version 1 to the pool: the grpcio package defines version 1alpha only."""
    definition = FileDescriptorProto.FromString(alpha.DESCRIPTOR.serialized_pb)
    definition.name = _FILE_V1
    definition.package = V1.rpartition(".")[0]
    for message in definition.message_type:
        for field in filter(lambda field: field.HasField("type_name"), message.field):
            field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for one in definition.service[0].method:
        one.input_type = one.input_type.replace(".v1alpha.", ".v1.")
        one.output_type = one.output_type.replace(".v1alpha.", ".v1.")
    descriptor_pool.Default().AddSerializedFile(definition.SerializeToString())

"""The frames of Feishu's long connection as `protobuf` makes them: the other side of our own."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TEXTS = {6: "payload_encoding", 7: "payload_type", 9: "LogIDNew"}
_NUMBERS = {
    1: ("SeqID", _FIELD.TYPE_UINT64),
    2: ("LogID", _FIELD.TYPE_UINT64),
    3: ("service", _FIELD.TYPE_INT32),
    4: ("method", _FIELD.TYPE_INT32),
}


def _made() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="feishu_frames.proto", package="feishu", syntax="proto2")
    header = file.message_type.add(name="Header")
    frame = file.message_type.add(name="Frame")
    for number, name in enumerate(("key", "value"), 1):
        header.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_REQUIRED)
    for number, (name, kind) in _NUMBERS.items():
        frame.field.add(name=name, number=number, type=kind, label=_FIELD.LABEL_REQUIRED)
    frame.field.add(
        name="headers", number=5, type=_FIELD.TYPE_MESSAGE, label=_FIELD.LABEL_REPEATED, type_name=".feishu.Header"
    )
    for number, name in _TEXTS.items():
        frame.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    frame.field.add(name="payload", number=8, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("feishu.Frame"))


ProtobufFrame = _made()


def protobuf_frame(*, headers: dict[str, str], payload: bytes = b"", **numbers: int) -> bytes:
    """A frame's bytes."""
    frame = ProtobufFrame(SeqID=0, LogID=0, service=0, method=0, payload=payload)
    for name, number in numbers.items():
        setattr(frame, name, number)
    for key, value in headers.items():
        frame.headers.add(key=key, value=value)
    data: bytes = frame.SerializeToString()
    return data


def parsed(data: bytes) -> Any:
    """The frame in these bytes."""
    frame = ProtobufFrame()
    frame.ParseFromString(data)
    return frame

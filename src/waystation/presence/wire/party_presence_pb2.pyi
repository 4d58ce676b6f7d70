from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientMessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR: _ClassVar[ClientMessageType]
    ACK: _ClassVar[ClientMessageType]
    JOIN: _ClassVar[ClientMessageType]
    LEAVE: _ClassVar[ClientMessageType]
    LIST: _ClassVar[ClientMessageType]
    PING: _ClassVar[ClientMessageType]
    DRAIN: _ClassVar[ClientMessageType]
    HANDOFF: _ClassVar[ClientMessageType]
    PROMOTE: _ClassVar[ClientMessageType]
    AUTH: _ClassVar[ClientMessageType]
    UPDATE: _ClassVar[ClientMessageType]
    SIGNAL: _ClassVar[ClientMessageType]

class StatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[StatusCode]
    INTERNAL_ERROR: _ClassVar[StatusCode]
    CLIENT_TIMEOUT: _ClassVar[StatusCode]
    SESSION_ID_IN_USE: _ClassVar[StatusCode]
    SESSION_RESUMED: _ClassVar[StatusCode]
    LIST_RESYNC: _ClassVar[StatusCode]
    STANDBY_ATTACHED: _ClassVar[StatusCode]
    PROMOTED: _ClassVar[StatusCode]
    PARTICIPANT_DETACHED: _ClassVar[StatusCode]
    PARTICIPANT_REATTACHED: _ClassVar[StatusCode]
    TOKEN_EXPIRING: _ClassVar[StatusCode]
    TOKEN_ACCEPTED: _ClassVar[StatusCode]
    ACK_TIMEOUT: _ClassVar[StatusCode]
    REMOVED_BY_ADMIN: _ClassVar[StatusCode]
    SLOW_CONSUMER: _ClassVar[StatusCode]
    TOKEN_EXPIRED: _ClassVar[StatusCode]
    NODE_LOST: _ClassVar[StatusCode]
    PARTY_CLOSED: _ClassVar[StatusCode]
    REPLACED_BY_NEWER_SESSION: _ClassVar[StatusCode]
    BAD_MESSAGE_TYPE: _ClassVar[StatusCode]
    INVALID_FIELD: _ClassVar[StatusCode]
    MISSING_MESSAGE_ID: _ClassVar[StatusCode]
    RATE_LIMITED: _ClassVar[StatusCode]
    TOO_MANY_ACK_IDS: _ClassVar[StatusCode]
    PAYLOAD_TOO_LARGE: _ClassVar[StatusCode]
    NOT_SUPPORTED: _ClassVar[StatusCode]
    ALREADY_JOINED: _ClassVar[StatusCode]
    TOKEN_REJECTED: _ClassVar[StatusCode]
    NOT_STANDBY: _ClassVar[StatusCode]
    STORE_BUSY: _ClassVar[StatusCode]
    JOIN_REQUIRED: _ClassVar[StatusCode]
    INVALID_IDENTIFIER: _ClassVar[StatusCode]
    UNAUTHENTICATED: _ClassVar[StatusCode]
    PERMISSION_DENIED: _ClassVar[StatusCode]
    PARTY_FULL: _ClassVar[StatusCode]
    SESSION_LIMIT: _ClassVar[StatusCode]
    RESUME_REJECTED: _ClassVar[StatusCode]
    SESSION_NOT_FOUND: _ClassVar[StatusCode]
    TAKEN_OVER: _ClassVar[StatusCode]
    PROTOCOL_VIOLATION: _ClassVar[StatusCode]
    MALFORMED_MESSAGE: _ClassVar[StatusCode]
    DRAINING: _ClassVar[StatusCode]
    HANDOFF_REQUIRED: _ClassVar[StatusCode]
    OVERLOADED: _ClassVar[StatusCode]
    STORE_UNAVAILABLE: _ClassVar[StatusCode]
    SESSION_MOVED: _ClassVar[StatusCode]
    WRITE_STALLED: _ClassVar[StatusCode]
    REAUTHENTICATE: _ClassVar[StatusCode]
ERROR: ClientMessageType
ACK: ClientMessageType
JOIN: ClientMessageType
LEAVE: ClientMessageType
LIST: ClientMessageType
PING: ClientMessageType
DRAIN: ClientMessageType
HANDOFF: ClientMessageType
PROMOTE: ClientMessageType
AUTH: ClientMessageType
UPDATE: ClientMessageType
SIGNAL: ClientMessageType
OK: StatusCode
INTERNAL_ERROR: StatusCode
CLIENT_TIMEOUT: StatusCode
SESSION_ID_IN_USE: StatusCode
SESSION_RESUMED: StatusCode
LIST_RESYNC: StatusCode
STANDBY_ATTACHED: StatusCode
PROMOTED: StatusCode
PARTICIPANT_DETACHED: StatusCode
PARTICIPANT_REATTACHED: StatusCode
TOKEN_EXPIRING: StatusCode
TOKEN_ACCEPTED: StatusCode
ACK_TIMEOUT: StatusCode
REMOVED_BY_ADMIN: StatusCode
SLOW_CONSUMER: StatusCode
TOKEN_EXPIRED: StatusCode
NODE_LOST: StatusCode
PARTY_CLOSED: StatusCode
REPLACED_BY_NEWER_SESSION: StatusCode
BAD_MESSAGE_TYPE: StatusCode
INVALID_FIELD: StatusCode
MISSING_MESSAGE_ID: StatusCode
RATE_LIMITED: StatusCode
TOO_MANY_ACK_IDS: StatusCode
PAYLOAD_TOO_LARGE: StatusCode
NOT_SUPPORTED: StatusCode
ALREADY_JOINED: StatusCode
TOKEN_REJECTED: StatusCode
NOT_STANDBY: StatusCode
STORE_BUSY: StatusCode
JOIN_REQUIRED: StatusCode
INVALID_IDENTIFIER: StatusCode
UNAUTHENTICATED: StatusCode
PERMISSION_DENIED: StatusCode
PARTY_FULL: StatusCode
SESSION_LIMIT: StatusCode
RESUME_REJECTED: StatusCode
SESSION_NOT_FOUND: StatusCode
TAKEN_OVER: StatusCode
PROTOCOL_VIOLATION: StatusCode
MALFORMED_MESSAGE: StatusCode
DRAINING: StatusCode
HANDOFF_REQUIRED: StatusCode
OVERLOADED: StatusCode
STORE_UNAVAILABLE: StatusCode
SESSION_MOVED: StatusCode
WRITE_STALLED: StatusCode
REAUTHENTICATE: StatusCode

class ClientSessionIdEntry(_message.Message):
    __slots__ = ("client_id", "session_id", "detached_session_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DETACHED_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    session_id: _containers.RepeatedScalarFieldContainer[int]
    detached_session_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., session_id: _Optional[_Iterable[int]] = ..., detached_session_id: _Optional[_Iterable[int]] = ...) -> None: ...

class HandoffInfo(_message.Message):
    __slots__ = ("endpoints", "ticket", "deadline_ms")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    ticket: bytes
    deadline_ms: int
    def __init__(self, endpoints: _Optional[_Iterable[str]] = ..., ticket: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("session_id", "client_id", "party_id", "message_id", "message_type", "timestamp", "party_seq", "delivery_attempt", "client_session_count", "participant_client_ids", "resume_token", "session_ttl_ms", "handoff", "ack_message_ids", "status_code", "party_epoch", "auth_token", "status_detail", "retry_after_ms", "flags", "payload", "node_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PARTY_SEQ_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    ACK_MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    PARTY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AUTH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    client_id: int
    party_id: int
    message_id: int
    message_type: ClientMessageType
    timestamp: int
    party_seq: int
    delivery_attempt: int
    client_session_count: int
    participant_client_ids: _containers.RepeatedCompositeFieldContainer[ClientSessionIdEntry]
    resume_token: bytes
    session_ttl_ms: int
    handoff: HandoffInfo
    ack_message_ids: _containers.RepeatedScalarFieldContainer[int]
    status_code: StatusCode
    party_epoch: int
    auth_token: str
    status_detail: str
    retry_after_ms: int
    flags: int
    payload: bytes
    node_id: str
    def __init__(self, session_id: _Optional[int] = ..., client_id: _Optional[int] = ..., party_id: _Optional[int] = ..., message_id: _Optional[int] = ..., message_type: _Optional[_Union[ClientMessageType, str]] = ..., timestamp: _Optional[int] = ..., party_seq: _Optional[int] = ..., delivery_attempt: _Optional[int] = ..., client_session_count: _Optional[int] = ..., participant_client_ids: _Optional[_Iterable[_Union[ClientSessionIdEntry, _Mapping[str, object]]]] = ..., resume_token: _Optional[bytes] = ..., session_ttl_ms: _Optional[int] = ..., handoff: _Optional[_Union[HandoffInfo, _Mapping[str, object]]] = ..., ack_message_ids: _Optional[_Iterable[int]] = ..., status_code: _Optional[_Union[StatusCode, str]] = ..., party_epoch: _Optional[int] = ..., auth_token: _Optional[str] = ..., status_detail: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., flags: _Optional[int] = ..., payload: _Optional[bytes] = ..., node_id: _Optional[str] = ...) -> None: ...

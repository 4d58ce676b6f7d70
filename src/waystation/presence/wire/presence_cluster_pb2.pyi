from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    READY: _ClassVar[NodeState]
    NODE_DRAINING: _ClassVar[NodeState]
    FENCED: _ClassVar[NodeState]
NODE_STATE_UNSPECIFIED: NodeState
READY: NodeState
NODE_DRAINING: NodeState
FENCED: NodeState

class Node(_message.Message):
    __slots__ = ("node_id", "incarnation", "client_endpoint", "peer_endpoint", "zone", "state", "sessions", "max_sessions", "version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    client_endpoint: str
    peer_endpoint: str
    zone: str
    state: NodeState
    sessions: int
    max_sessions: int
    version: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., client_endpoint: _Optional[str] = ..., peer_endpoint: _Optional[str] = ..., zone: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("party_id", "limit", "prefer_zone")
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PREFER_ZONE_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    limit: int
    prefer_zone: str
    def __init__(self, party_id: _Optional[int] = ..., limit: _Optional[int] = ..., prefer_zone: _Optional[str] = ...) -> None: ...

class NodeList(_message.Message):
    __slots__ = ("nodes", "revision")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    revision: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping[str, object]]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SessionKey(_message.Message):
    __slots__ = ("party_id", "client_id", "session_id")
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    client_id: int
    session_id: int
    def __init__(self, party_id: _Optional[int] = ..., client_id: _Optional[int] = ..., session_id: _Optional[int] = ...) -> None: ...

class HandoffOffer(_message.Message):
    __slots__ = ("key", "fence", "cursor", "acked_above_cursor", "recent_client_ids", "token_exp_ms", "session_ttl_ms", "flags")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ACKED_ABOVE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    RECENT_CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXP_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    key: SessionKey
    fence: int
    cursor: int
    acked_above_cursor: _containers.RepeatedScalarFieldContainer[int]
    recent_client_ids: _containers.RepeatedScalarFieldContainer[int]
    token_exp_ms: int
    session_ttl_ms: int
    flags: int
    def __init__(self, key: _Optional[_Union[SessionKey, _Mapping[str, object]]] = ..., fence: _Optional[int] = ..., cursor: _Optional[int] = ..., acked_above_cursor: _Optional[_Iterable[int]] = ..., recent_client_ids: _Optional[_Iterable[int]] = ..., token_exp_ms: _Optional[int] = ..., session_ttl_ms: _Optional[int] = ..., flags: _Optional[int] = ...) -> None: ...

class HandoffRequest(_message.Message):
    __slots__ = ("from_node", "from_incarnation", "offers")
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    FROM_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    from_node: str
    from_incarnation: int
    offers: _containers.RepeatedCompositeFieldContainer[HandoffOffer]
    def __init__(self, from_node: _Optional[str] = ..., from_incarnation: _Optional[int] = ..., offers: _Optional[_Iterable[_Union[HandoffOffer, _Mapping[str, object]]]] = ...) -> None: ...

class HandoffGrant(_message.Message):
    __slots__ = ("key", "ticket", "expires_ms", "accepted")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    key: SessionKey
    ticket: bytes
    expires_ms: int
    accepted: bool
    def __init__(self, key: _Optional[_Union[SessionKey, _Mapping[str, object]]] = ..., ticket: _Optional[bytes] = ..., expires_ms: _Optional[int] = ..., accepted: _Optional[bool] = ...) -> None: ...

class HandoffReply(_message.Message):
    __slots__ = ("grants", "client_endpoint")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[HandoffGrant]
    client_endpoint: str
    def __init__(self, grants: _Optional[_Iterable[_Union[HandoffGrant, _Mapping[str, object]]]] = ..., client_endpoint: _Optional[str] = ...) -> None: ...

class PartyChunk(_message.Message):
    __slots__ = ("party_id", "state", "last")
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    state: bytes
    last: bool
    def __init__(self, party_id: _Optional[int] = ..., state: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class TransferReply(_message.Message):
    __slots__ = ("accepted", "client_endpoint")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    client_endpoint: str
    def __init__(self, accepted: _Optional[bool] = ..., client_endpoint: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("key", "fence")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    key: SessionKey
    fence: int
    def __init__(self, key: _Optional[_Union[SessionKey, _Mapping[str, object]]] = ..., fence: _Optional[int] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("stream_alive", "last_message_ms")
    STREAM_ALIVE_FIELD_NUMBER: _ClassVar[int]
    LAST_MESSAGE_MS_FIELD_NUMBER: _ClassVar[int]
    stream_alive: bool
    last_message_ms: int
    def __init__(self, stream_alive: _Optional[bool] = ..., last_message_ms: _Optional[int] = ...) -> None: ...

class RelayFrame(_message.Message):
    __slots__ = ("channel", "client_message", "open", "close", "grpc_status", "claims")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    GRPC_STATUS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    channel: int
    client_message: bytes
    open: bool
    close: bool
    grpc_status: int
    claims: bytes
    def __init__(self, channel: _Optional[int] = ..., client_message: _Optional[bytes] = ..., open: _Optional[bool] = ..., close: _Optional[bool] = ..., grpc_status: _Optional[int] = ..., claims: _Optional[bytes] = ...) -> None: ...

class PartyRequest(_message.Message):
    __slots__ = ("party_id",)
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    def __init__(self, party_id: _Optional[int] = ...) -> None: ...

class PartyView(_message.Message):
    __slots__ = ("party_id", "epoch", "seq", "sessions")
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    epoch: int
    seq: int
    sessions: _containers.RepeatedCompositeFieldContainer[SessionView]
    def __init__(self, party_id: _Optional[int] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[SessionView, _Mapping[str, object]]]] = ...) -> None: ...

class SessionView(_message.Message):
    __slots__ = ("key", "state", "owner", "fence", "cursor", "joined_ms", "deadline_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    key: SessionKey
    state: str
    owner: str
    fence: int
    cursor: int
    joined_ms: int
    deadline_ms: int
    def __init__(self, key: _Optional[_Union[SessionKey, _Mapping[str, object]]] = ..., state: _Optional[str] = ..., owner: _Optional[str] = ..., fence: _Optional[int] = ..., cursor: _Optional[int] = ..., joined_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class KickRequest(_message.Message):
    __slots__ = ("key", "all_sessions_of_client")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_SESSIONS_OF_CLIENT_FIELD_NUMBER: _ClassVar[int]
    key: SessionKey
    all_sessions_of_client: bool
    def __init__(self, key: _Optional[_Union[SessionKey, _Mapping[str, object]]] = ..., all_sessions_of_client: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node_id", "timeout_ms", "undo")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    timeout_ms: int
    undo: bool
    def __init__(self, node_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., undo: _Optional[bool] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("affected",)
    AFFECTED_FIELD_NUMBER: _ClassVar[int]
    affected: int
    def __init__(self, affected: _Optional[int] = ...) -> None: ...

class ListPartiesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class PartySummary(_message.Message):
    __slots__ = ("party_id", "sessions", "clients", "sessions_here", "seq")
    PARTY_ID_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_HERE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    party_id: int
    sessions: int
    clients: int
    sessions_here: int
    seq: int
    def __init__(self, party_id: _Optional[int] = ..., sessions: _Optional[int] = ..., clients: _Optional[int] = ..., sessions_here: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class PartyList(_message.Message):
    __slots__ = ("parties", "total", "node_id", "draining")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    parties: _containers.RepeatedCompositeFieldContainer[PartySummary]
    total: int
    node_id: str
    draining: bool
    def __init__(self, parties: _Optional[_Iterable[_Union[PartySummary, _Mapping[str, object]]]] = ..., total: _Optional[int] = ..., node_id: _Optional[str] = ..., draining: _Optional[bool] = ...) -> None: ...

"""Every type that flows: frozen, slotted, keyword-only, checked on creation.

Ids are the truth; texts and messages are views. Nothing here does I/O, and nothing here knows a wire format.
"""

from openforgerl.records.calls import (
    Completion,
    Delivered,
    MessagesDelta,
    PromptDelta,
    RecordedCall,
    Span,
    SpanKind,
    VersionRun,
)
from openforgerl.records.events import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    EngineFinish,
    Finish,
    GenerateChunk,
    GenerateRequest,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)
from openforgerl.records.ids import check_id
from openforgerl.records.messages import (
    INT64_MAX,
    HarnessCall,
    Message,
    ModelRequest,
    Role,
    Sampling,
    ToolCall,
    ToolSpec,
)
from openforgerl.records.rows import Batch, CallKind, MaskReason, Receipt, Segment, TokenRow, TrainingRow, Update
from openforgerl.records.sessions import EndedBy, Ending, Grade, Session, Use
from openforgerl.records.tasks import LaunchPlan, Task

__all__ = [
    "INT64_MAX",
    "Batch",
    "CallEvent",
    "CallFailed",
    "CallFinished",
    "CallKind",
    "CallStarted",
    "Completion",
    "Delivered",
    "EndedBy",
    "Ending",
    "EngineFinish",
    "Finish",
    "GenerateChunk",
    "GenerateRequest",
    "Grade",
    "HarnessCall",
    "LaunchPlan",
    "MaskReason",
    "Message",
    "MessagesDelta",
    "ModelRequest",
    "PromptDelta",
    "ReasoningDelta",
    "Receipt",
    "RecordedCall",
    "Role",
    "Sampling",
    "Segment",
    "Session",
    "Span",
    "SpanKind",
    "Task",
    "TextDelta",
    "TokenRow",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallEnded",
    "ToolCallStarted",
    "ToolSpec",
    "TrainingRow",
    "Update",
    "Usage",
    "Use",
    "VersionRun",
    "check_id",
]

"""Every error of the project: one class per boundary, drawn here as a tree.

OpenForgeError
├── ConfigError      a field, a file or a flag of the user's is wrong
├── DialectError     a request's bytes are not what its wire format allows
├── AssemblyError    messages cannot become ids (template, context length, unknown role)
├── AccessError      a key does not open what was asked for
├── EngineError      the model could not sample
│   ├── EngineAborted    it began, then dropped the call (weight update, shutdown); the client may retry
│   └── EngineTimeout    a call outlived its deadline and was cancelled
├── StoreError       a record could not be made durable or read back
├── HarnessError     a harness could not be installed or launched
├── SandboxError     a sandbox could not be made, run or removed (infrastructure)
├── TaskError        a task folder is not a task
├── GraderError      a grade could not be computed; never a reward of 0
└── TrainerError     rows could not become an update
"""

from __future__ import annotations

from typing import NamedTuple


class ContextFull(NamedTuple):
    """How much too long a prompt is; each wire format has its own words for it."""

    prompt_tokens: int
    """At least."""
    context_length: int


class OpenForgeError(Exception):
    """Base of all errors raised on purpose.

    `retryable`: the same act may succeed later. `http_status` and `code`: what a harness is answered.
    """

    retryable = False
    http_status = 500
    code = "internal_error"
    context_full: ContextFull | None = None


class ConfigError(OpenForgeError):
    """Names the field or file, the value, and the way out, in one line."""


class DialectError(OpenForgeError):
    """A request that its wire format does not allow."""

    def __init__(
        self, message: str, *, field: str | None = None, code: str = "invalid_request", http_status: int = 400
    ) -> None:
        super().__init__(message)
        self.field = field
        self.code = code
        self.http_status = http_status


class AssemblyError(OpenForgeError):
    """Messages that cannot become a prompt of this model."""

    http_status = 400

    def __init__(self, message: str, *, code: str = "invalid_request", context_full: ContextFull | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.context_full = context_full


class AccessError(OpenForgeError):
    """A missing or wrong key (401), one whose session is over (410), or more than the session may have (403, 429)."""

    def __init__(self, message: str, *, http_status: int = 401, code: str = "invalid_api_key") -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code


class EngineError(OpenForgeError):
    """The engine failed; nothing of the call may be used."""

    retryable = True
    http_status = 503
    code = "engine_error"


class EngineAborted(EngineError):
    """The engine dropped a call that it had begun."""

    code = "engine_aborted"


class EngineTimeout(EngineError):
    """A call outlived its deadline."""

    http_status = 504
    code = "timeout"


class StoreError(OpenForgeError):
    """A record is not durable, so the call that it records fails."""

    http_status = 503
    code = "not_recorded"


class HarnessError(OpenForgeError):
    """A harness is missing, or its launch description is wrong."""


class SandboxError(OpenForgeError):
    """Infrastructure failed around a rollout."""

    retryable = True


class TaskError(OpenForgeError):
    """A task folder that cannot be used; names the file."""


class GraderError(OpenForgeError):
    """No grade: never to be read as a reward of 0."""


class TrainerError(OpenForgeError):
    """Rows that cannot be trained, or an update that is not finite."""

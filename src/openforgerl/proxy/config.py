"""[proxy]: where it listens, and the limits of a call and of a session."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class ProxyConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    tls_cert: Path | None = None
    """A PEM certificate chain; with it and its key the proxy speaks HTTPS only."""
    tls_key: Path | None = Field(default=None, validate_default=True)
    insecure_bind: bool = Field(default=False, validate_default=True)
    """Keys and answers may cross a network in plain text: without TLS on an address that is not loopback."""
    admin_token_env: str = Field(default="OPENFORGERL_ADMIN_TOKEN", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the token of the control API; where it is not set, `serve` makes a token."""
    model_name: str = "policy"
    """The name in the model listing; every name that is asked for is answered."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one answer; None: what the context leaves."""
    max_body_bytes: int = Field(default=256 << 20, ge=1)
    max_calls_per_session: int | None = Field(default=None, ge=1)
    """The next call is refused for good (403), which ends an agent that loops."""
    max_concurrent_calls: int = Field(default=32, ge=1)
    """Of one session; one more is refused for now (429)."""
    session_max_age_s: float = Field(default=86400.0, gt=0)
    """A session that nobody closed is closed as an infrastructure failure, and its key dies."""
    call_timeout_s: float = Field(default=600.0, gt=0)
    """From the start of sampling to the last id; below the harness's own limit, above the engine's."""
    headers_after_s: float = Field(default=10.0, ge=0)
    """A stream's headers wait this long for the first sampled ids, so that an early failure is an HTTP status."""
    keep_alive_s: float = Field(default=10.0, gt=0)
    """A stream that has nothing to say says so this often, in the way of its format."""
    idle_timeout_s: float = Field(default=75.0, gt=0)
    """A connection that sends no whole request head for so long is closed, whether it is new or kept alive."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    write_timeout_s: float = Field(default=60.0, gt=0)
    """A client that takes nothing for so long has gone."""
    commit_timeout_s: float = Field(default=30.0, gt=0)
    close_timeout_s: float = Field(default=5.0, gt=0)
    """Closing a session waits this long for calls that are being cancelled."""
    weights_timeout_s: float = Field(default=600.0, gt=0)
    history_reasoning: Literal["template", "keep"] = "template"
    strip_system_lines: tuple[str, ...] = ()
    """Lines of the system prompt that change on every request and are left out of prompts (see tokens/)."""

    @field_validator("tls_key")
    @classmethod
    def _goes_with_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if (key is None) is not (info.data.get("tls_cert") is None):
            raise ValueError("tls_cert and tls_key go together: set both or neither")
        return key

    @field_validator("insecure_bind")
    @classmethod
    def _is_safe_or_wanted(cls, wanted: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "")
        if not (wanted or info.data.get("tls_cert") or is_loopback(host)):
            raise ValueError(
                f"host {host!r} is reached from other machines: set tls_cert and tls_key, "
                "or insecure_bind = true where you trust the network"
            )
        return wanted


def is_loopback(host: str) -> bool:
    """Any other name may be one of another interface."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Settings of the engines that are servers of their own: vllm, sglang, upstream. Imports no HTTP library."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from openforgerl.errors import ConfigError


class RemoteEngineConfig(BaseModel):
    """[engine] of a type that is reached by URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = ""
    """Where the server answers, with or without /v1."""
    base_urls: tuple[str, ...] = ()
    """Several servers of the same model: a session stays with one of them while that one is healthy."""
    model: str = ""
    """The model's name at the server; "": the first that it lists."""
    api_key_env: str = ""
    """Environment variable with the server's key; "": none is sent."""
    wire: Literal["openai", "anthropic"] = "openai"
    """Of type "upstream": Chat Completions or Anthropic Messages."""
    context_length: int | None = Field(default=None, ge=2)
    """Most ids of prompt + answer; None: what the server says, else the model folder."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    silence_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for the next part of an answer; the first one may stand in the server's queue."""
    update_drain_s: float = Field(default=60.0, ge=0)
    """How long a weight update waits for calls in flight. What still runs then is sampled on, from just the ids that
    it has, with the new weights."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Roots of the servers, without a slash and without /v1. Raises ConfigError."""
        if bool(self.base_url) == bool(self.base_urls):
            said = "both are given" if self.base_url else "neither is given"
            raise ConfigError(f"[engine] base_url, base_urls: {said}; name one server, or a list of several")
        field = "base_url" if self.base_url else "base_urls"
        urls = tuple(_root(field, url) for url in self.base_urls or (self.base_url,))
        if len(set(urls)) != len(urls):
            raise ConfigError(f"[engine] base_urls: {list(urls)} names a server twice")
        return urls


def _root(field: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"[engine] {field} = {url!r}: write a URL, e.g. http://127.0.0.1:8001")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")

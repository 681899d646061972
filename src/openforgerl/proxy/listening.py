"""The socket that the proxy listens on, and its certificate."""

from __future__ import annotations

import socket
import ssl

from openforgerl.errors import ConfigError
from openforgerl.proxy.config import ProxyConfig


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"[proxy] host, port: cannot listen on {host}:{port} ({error.strerror}); choose another"
        ) from None
    return listener


def tls_context(config: ProxyConfig) -> ssl.SSLContext | None:
    """None where no certificate is set. Raises ConfigError for one that cannot be used."""
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"[proxy] tls_cert, tls_key = {config.tls_cert}, {config.tls_key}: {why}; "
            "name a PEM certificate chain and its private key without a passphrase"
        ) from error
    return context

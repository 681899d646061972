"""What the HTTP server logs: never bytes of a request, for they hold keys (in a header, or as `?key=` in a URL)."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)


class _WithoutBytes(logging.Filter):
    """The error that a malformed request raises quotes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
            record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}", None
            return _log.isEnabledFor(logging.INFO)
        return True


def http_log() -> logging.Logger:
    if not _log.filters:
        _log.addFilter(_WithoutBytes())
    return _log

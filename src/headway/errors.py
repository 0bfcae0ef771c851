"""User-facing exceptions, mapped once to an HTTP status and a process exit code.

HeadwayError                     500  exit 1
├── InputError                   400  exit 2   the user can fix it; `hint` says how
│   ├── ConfigError                            a flag or a combination of flags
│   ├── ModelLoadError                         weights or tokenizer that cannot be read or are not supported
│   ├── WorkloadError                          a trace or workload file
│   └── RequestError                           one request; `param` names the field
│       └── ContextLengthError                 prompt too long (code context_length_exceeded)
├── AuthenticationError          401
├── ModelNotFoundError           404
├── QueueFullError               429
└── EngineDeadError              503           the engine stopped; nothing can be served
"""

from __future__ import annotations

from typing import ClassVar


class HeadwayError(Exception):
    """Base of every error meant for a user. `hint` is a second sentence: what to do about it.

    Example::

        >>> from headway import HeadwayError, plan
        >>> try:
        ...     plan("llama-3.1-8b", "h1000")
        ... except HeadwayError as error:
        ...     error.exit_code
        2
    """

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    error_type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class InputError(HeadwayError):
    """Something the user gave is wrong, and the user can put it right."""

    http_status = 400
    exit_code = 2
    error_type = "invalid_request_error"


class ConfigError(InputError):
    """A setting, or a combination of settings, that cannot work."""


class ModelLoadError(InputError):
    """Model files that are missing, damaged or of an unsupported kind."""


class WorkloadError(InputError):
    """A trace or workload file that cannot be used; the message names row and column."""


class RequestError(InputError):
    """One request is invalid; `param` names the offending field in OpenAI's spelling."""


class ContextLengthError(RequestError):
    """The prompt leaves no room to generate; the message says the limit and the count."""

    code = "context_length_exceeded"


class AuthenticationError(HeadwayError):
    """Missing or wrong API key."""

    http_status = 401
    error_type = "authentication_error"
    code = "invalid_api_key"


class ModelNotFoundError(HeadwayError):
    """The request names a model that this server does not serve."""

    http_status = 404
    error_type = "invalid_request_error"
    code = "model_not_found"


class QueueFullError(HeadwayError):
    """Too many requests are waiting; try again later."""

    http_status = 429
    error_type = "rate_limit_exceeded"
    code = "rate_limit_exceeded"


class EngineDeadError(HeadwayError):
    """The engine loop has stopped; the server must be restarted."""

    http_status = 503

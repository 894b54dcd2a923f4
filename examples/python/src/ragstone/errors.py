"""What a request can end with."""

from __future__ import annotations


class Error(Exception):
    """The service refused a request; the message says what to do."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        #: Of HTTP; None where no answer came, or where one broke off.
        self.status = status
        #: Such as `not_found` or `context_length_exceeded`.
        self.code = code
        #: The request's field at fault.
        self.param = param


class Overloaded(Error):
    """Too much waits: come back after `retry_after_s` seconds."""

    retry_after_s: float = 1.0


class Unreachable(Error):
    """Nobody answers at the address, or the connection was lost."""

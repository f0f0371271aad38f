"""
HTTP for clients that may be slow, though not for ever.

uvicorn waits without end for the rest of a request, and for somebody to read an answer. Here each
connection has so many seconds for its headers, for its body, and to read what lies ready;
how long an answer takes is not limited by any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


if TYPE_CHECKING:
    import asyncio


class PatientProtocol(H11Protocol):
    """
    HTTP/1.1 with limits of time.

    Attributes:
        head_seconds: for a request's line and headers.
        body_seconds: for its body.
        read_seconds: to take some of what was sent.
    """

    head_seconds = 20.0
    body_seconds = 300.0
    read_seconds = 120.0

    _coming: asyncio.TimerHandle | None = None  # the end of what is being received
    _going: asyncio.TimerHandle | None = None
    _phase: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        self._expect(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.IDLE or state is h11.SEND_BODY:
            self._expect(state)
        else:
            self._expect(None)

    def on_response_complete(self) -> None:
        """Go on with what was sent meanwhile; between requests uvicorn has its own limit."""
        self._expect(None)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._expect(None)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        if self._going is None:
            self._going = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        if self._going is not None:
            self._going.cancel()
            self._going = None
        super().resume_writing()

    def _expect(self, phase: object) -> None:
        """Wait for headers or a body from now on, or for none."""
        if phase is self._phase:
            return
        self._phase = phase
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None
        if phase is not None:
            seconds = self.head_seconds if phase is h11.IDLE else self.body_seconds
            self._coming = self.loop.call_later(seconds, self.transport.close)


__all__ = ["PatientProtocol"]

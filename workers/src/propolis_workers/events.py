"""Every event that the workers log; see :mod:`propolis.events`."""

from __future__ import annotations

from typing import Final

from propolis.events import Event


MODEL_LOADED: Final = Event(
    "model.loaded",
    "info",
    "the weights of a model are on their device",
    ("model", "device", "seconds"),
)
CONTEXT_CUT: Final = Event(
    "context.cut",
    "warning",
    "more tokens of context were asked for than the model was trained for: it has as many as that",
    ("asked", "used", "reason"),
)
ENGINE_ENDED: Final = Event(
    "engine.ended",
    "error",
    "the process that computes for a server ended; another is started after a pause in seconds",
    ("error", "pause"),
)
ENGINE_READY: Final = Event(
    "engine.ready",
    "info",
    "a server answers requests from now on",
    ("kind", "device", "seconds"),
)
ENGINE_FAILED: Final = Event(
    "engine.failed",
    "error",
    "a server's model cannot be loaded, or its process ended too often: no request is answered",
    ("error",),
)
HIVE_LOST: Final = Event(
    "hive.lost",
    "warning",
    "a heartbeat did not arrive at the hive: it is tried again; requests are answered as before",
    ("url", "error"),
)
HIVE_BACK: Final = Event(
    "hive.back",
    "warning",
    "heartbeats arrive at the hive again",
    ("url",),
)
HTTP_REQUEST: Final = Event(
    "http.request",
    "info",
    "a server answered a request, or its client went away (status 0 or 499); never what was asked",
    ("method", "path", "status", "seconds", "request"),
)
HTTP_ASKED: Final = Event(
    "http.asked",
    "info",
    "what a request asked, where a server was told to log that (--log-prompts)",
    ("request", "body"),
)
HTTP_FAILED: Final = Event(
    "http.failed",
    "error",
    "a fault of the server's own ended a request: its kind and where, never what was asked",
    ("error", "where", "request"),
)
ANSWER_FAILED: Final = Event(
    "answer.failed",
    "error",
    "an engine could not compute an answer, by a fault of the model, a kernel or the device: what "
    "it says",
    ("error", "reason"),
)
VAE_TILED: Final = Event(
    "vae.tiled",
    "warning",
    "a device has too little memory to decode an image at once: it is decoded in tiles of so many "
    "pixels",
    ("device", "tile", "reason"),
)
PROMPT_CUT: Final = Event(
    "prompt.cut",
    "warning",
    "a prompt has more tokens than the text encoder takes: the rest has no effect on the image",
    ("tokens", "limit"),  # and not what was cut: no prompt is logged
)

ALL: Final = tuple(value for value in globals().copy().values() if isinstance(value, Event))
"""Every event, in the order above."""

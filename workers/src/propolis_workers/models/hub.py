"""
The one part of Propolis that asks a hub: what a repository holds, and the bytes of a file.

The protocol, proxies, tokens and redirects are the ``huggingface_hub`` library's, which reads
``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``.  Its own downloads are not used: they throw
away what a cut connection left, give up where one is reset, and call themselves for each retry.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import httpx2
from huggingface_hub import HfApi
from huggingface_hub import constants
from huggingface_hub import get_session
from huggingface_hub import get_token
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.errors import GatedRepoError
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.errors import HFValidationError
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]
from huggingface_hub.utils.logging import set_verbosity_error

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis.wording import size_of
from propolis_workers.models.problems import PullError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from huggingface_hub import ModelInfo

_PATIENCE: Final = 30.0  # seconds for a list of files
_SHOWN: Final = 80
CHUNK = 1 << 20  # bytes: at most that many of those that came are lost where a connection is cut
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGITS: Final = 18  # of a number in a header; what has more says nothing
_SPAN = re.compile(rf"\s*bytes\s+(\d{{1,{_DIGITS}}})-", re.ASCII | re.IGNORECASE)
_SECRET = re.compile(r"//.*@")  # a user and a password in an address
_CUT: Final = (httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError)
_RETRIES: Final = 5  # more, in a row, that bring nothing
_LONGEST: Final = 300  # seconds of one wait that somebody asks for


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """
    A file of a repository.

    Attributes:
        name: its path in there.
        nbytes: its size.
        checksum: SHA-256 where it has 64 digits, else the SHA-1 that git gives its blob.
    """

    name: str
    nbytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Repository:
    """
    What a repository holds at one commit.

    Attributes:
        name: ``org/name``.
        revision: the commit, whose files never change.
        files: by name.
    """

    name: str
    revision: str
    files: dict[str, RemoteFile]


def endpoint() -> str:
    """The address of the hub."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _shown() -> str:
    """The address of the hub for people, without a password in it."""
    return _SECRET.sub("//", endpoint())


def look_up(name: str, say: Callable[[str], None]) -> Repository:
    """
    What a repository holds now.

    Args:
        name: its name.
        say: told for whom one waits, and how long.

    Raises:
        ModelError: there is none of that name, or none that this user may see.
        FileFormatError: it names a file that would lie outside of its folder.
        PullError: the hub cannot be reached, or refuses.
    """
    _prepare()
    with _explained(name):
        info = _listed(name, say)
    if not _is_hash(info.sha):
        raise _no_hub(name)
    files = {}
    siblings: list[Any] = [*(info.siblings or ())]
    for one in siblings:
        checksum = one.lfs.sha256 if one.lfs else one.blob_id
        if not isinstance(one.rfilename, str) or not isinstance(one.size, int) or one.size < 0:
            raise _no_hub(name)
        if not _is_hash(checksum):
            raise _no_hub(name)
        if not one.rfilename.isprintable() and not _CONTROL.search(one.rfilename):
            continue  # no file of a model has such a name, but pictures beside them may
        _expect_inside(name, one.rfilename)
        files[one.rfilename] = RemoteFile(one.rfilename, one.size, str(checksum))
    return Repository(name, str(info.sha), files)


def expect_given(repository: Repository, files: Iterable[RemoteFile]) -> None:
    """
    Check that the hub gives out files as large as these.

    Raises:
        PullError: one is too large.
    """
    most = constants.MAX_HTTP_DOWNLOAD_SIZE
    for file in files:
        if file.nbytes > most:
            msg = f"{file.name} of {repository.name} has {size_of(file.nbytes)}, and the hub gives "
            msg += f"out {size_of(most)} at once: take one with fewer bits a weight, or in parts"
            raise PullError(msg)


def _listed(name: str, say: Callable[[str], None]) -> ModelInfo:
    """What the hub says of a repository; one that is busy is asked again."""
    api = HfApi(endpoint=endpoint())
    failures = 0
    while True:
        try:
            return api.model_info(name, files_metadata=True, timeout=_PATIENCE)
        except HFValidationError:
            raise
        except HfHubHTTPError as exc:
            if not _is_busy(exc.response.status_code) or failures >= _RETRIES:
                raise
            _wait(name, exc.response, failures, say)
            failures += 1
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_hub(name) from None


def download(
    repository: Repository, file: RemoteFile, out: Any, say: Callable[[str], None]
) -> None:
    """
    Write what is missing of a file; connections that are cut are taken up where they ended.

    Args:
        repository: whose it is.
        file: it.
        out: where it goes, at its end: has ``write``, ``seek``, ``tell`` and ``truncate``.
        say: told for whom the download waits, and how long.

    Raises:
        ModelError: it is not there any more.
        PullError: the hub cannot be reached, or refuses, or the connection was cut too often.
        OSError: it cannot be written.
    """
    _prepare()
    what = f"{file.name} of {repository.name}"
    with _explained(what):
        place = {"revision": repository.revision, "endpoint": endpoint()}
        url = hf_hub_url(repository.name, file.name, **place)
        # Compressed bytes could not be resumed by the offset of plain ones.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        failures, parts = 0, True
        while (begun := out.tell()) < file.nbytes:
            ranged = {**headers, "Range": f"bytes={begun}-"}
            try:
                _stream(url, ranged if begun and parts else headers, out)
            except _CUT as exc:
                failures = 0 if out.tell() > begun else failures + 1
                if failures > _RETRIES:
                    raise
                parts = not isinstance(exc, _AnotherPartError)
                time.sleep(1)
            except HfHubHTTPError as exc:
                if not _is_busy(exc.response.status_code) or failures >= _RETRIES:
                    raise
                _wait(what, exc.response, failures, say)
                failures += 1
            else:
                return  # who asked sees whether that was all


class _AnotherPartError(httpx2.RemoteProtocolError):
    """A server answered with another part than was asked for."""


def _stream(url: str, headers: Mapping[str, str], out: Any) -> None:
    """Write what one connection brings."""
    patience = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=patience) as response:
        hf_raise_for_status(response)
        first = _first(response.headers) if response.status_code == 206 else 0
        if first not in (0, out.tell()):
            msg = f"bytes from {first} on are not those that were asked for"
            raise _AnotherPartError(msg)
        for chunk in response.iter_bytes(chunk_size=CHUNK):
            if first == 0 and out.tell():  # some servers know no parts: what is here comes again
                out.seek(0)
                out.truncate()
            first = None
            out.write(chunk)


def _is_busy(status: int) -> bool:
    return status in (408, 429) or status >= 500


def _wait(what: str, response: httpx2.Response, failures: int, say: Callable[[str], None]) -> None:
    """
    Wait as long as who answered asks for, or ever longer.

    Raises:
        PullError: it asks for too long a wait.
    """
    asked = _pause(response.headers)
    pause = 2**failures if asked is None else asked
    answer = f"{_shown()} answered {response.status_code}"
    if pause > _LONGEST:
        msg = f"{what} was asked for, and {answer}, and to ask again in {pause} s: pull again "
        msg += "then, which goes on where this ended"
        raise PullError(msg)
    say(f"{answer}: {what} is asked for again in {pause} s")
    time.sleep(pause)


def _pause(headers: Mapping[str, str]) -> int | None:
    """Seconds after which who answered wants to be asked again; None where it does not say."""
    try:
        limit = parse_ratelimit_headers(headers)
        if limit is not None and limit.remaining == 0:
            return int(limit.reset_in_seconds) + 1
        said = headers.get("Retry-After", "").strip()
        if said.isascii() and said.isdecimal():
            return int(said) if len(said) <= _DIGITS else None
        return max(0, math.ceil(parsedate_to_datetime(said).timestamp() - time.time()))
    except (ValueError, OverflowError):
        return None


def _first(headers: Mapping[str, str]) -> int | None:
    """The number of the first byte of a part; None where it is not said."""
    found = _SPAN.match(headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _prepare() -> None:
    """
    Have the library neither draw, nor log, nor tell what else is installed here, and connect.

    Raises:
        PullError: by the settings of the network nobody can be asked.
    """
    constants.HF_HUB_DISABLE_TELEMETRY = True
    disable_progress_bars()
    set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        get_session()
    except ImportError:
        msg = "a setting names a SOCKS proxy (ALL_PROXY, HTTPS_PROXY), which needs one package "
        msg += "more: pip install 'httpx2[socks]', or name an HTTP proxy"
        raise PullError(msg) from None
    except (ValueError, httpx2.InvalidURL):
        msg = "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY holds no proxy's address: set it to "
        msg += "http://HOST:PORT, or unset it"
        raise PullError(msg) from None
    except OSError as exc:
        name = "SSL_CERT_FILE" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_DIR"
        msg = f"{name}={os.environ.get(name)} cannot be used ({exc.strerror}): set it to a file of "
        msg += "certificates, or unset it"
        raise PullError(msg) from None


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _expect_inside(name: str, file: str) -> None:
    """Refuse what would lie elsewhere, or under another name than it seems to."""
    path = PurePosixPath(file)
    if (
        "\\" in file
        or _CONTROL.search(file)
        or path.is_absolute()
        or ".." in path.parts
        or path.as_posix() != file
    ):
        shown = repr(file[:_SHOWN])
        msg = f"{name} names a file {shown}, which would lie outside of the model's folder; "
        msg += "nothing was downloaded: take another repository"
        raise FileFormatError(msg)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors of the library as ours: its own have several lines, and addresses with secrets."""
    hub = _shown()
    try:
        yield
    except OfflineModeIsEnabled:
        msg = f"{what} was asked for, and HF_HUB_OFFLINE forbids to ask {hub}: unset it"
        raise PullError(msg) from None
    except GatedRepoError:
        msg = f"{what} is given to those who accepted its terms: accept them on its page at {hub}, "
        msg += _with_token("a token of that account")
        raise PullError(msg) from None
    except (RepositoryNotFoundError, HFValidationError):
        msg = f"{hub} has no {what}, or it is private: check the name, "
        msg += _with_token("a token that may read it")
        raise ModelError(msg) from None
    except EntryNotFoundError:
        msg = f"{hub} has no {what} any more: pull it again"
        raise ModelError(msg) from None
    except HfHubHTTPError as exc:
        msg = f"{what} was asked for, and {hub} answered {exc.response.status_code}: try it later"
        if exc.response.status_code in (401, 403):
            msg = f"{hub} refuses {what} ({exc.response.status_code}): "
            msg += _with_token("a token that may read it").removeprefix("and ")
        raise PullError(msg) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        if not hub.startswith(("http://", "https://")):
            msg = (
                f"HF_ENDPOINT is {hub!r}, no address of a hub: give one with https://, or unset it"
            )
            raise UsageError(msg) from None
        cut = isinstance(exc, httpx2.RemoteProtocolError | httpx2.ReadError)
        how = "the connection was cut" if cut else "it cannot be reached"
        msg = f"{what} was asked for at {hub}, and {how} ({type(exc).__name__}): check the network "
        msg += "and HTTPS_PROXY, then pull again, which goes on where this ended"
        raise PullError(msg) from None


def _with_token(which: str) -> str:
    """What to do about a token; it is never shown."""
    if get_token() is None:
        return f"and set HF_TOKEN to {which}"
    return f"and see that HF_TOKEN is {which}"


def _no_hub(what: str) -> PullError:
    msg = f"{what} was asked for, and what answers at {_shown()} is no hub: check HF_ENDPOINT"
    return PullError(msg)


__all__ = ["RemoteFile", "Repository", "download", "endpoint", "expect_given", "look_up"]

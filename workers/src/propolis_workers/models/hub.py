"""
The one part of Propolis that asks a hub: what a repository holds, and the bytes of a file.

The protocol, proxies, tokens and redirects are the ``huggingface_hub`` library's, which reads
``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``.  Its own downloads are not used: they throw
away what a cut connection left, so that each begins anew.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import httpx2
from huggingface_hub import HfApi
from huggingface_hub import constants
from huggingface_hub import get_token
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.errors import GatedRepoError
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.errors import HFValidationError
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
from huggingface_hub.utils.logging import set_verbosity_error

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis_workers.models.problems import PullError


if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE: Final = 30.0  # seconds for a list of files
_SHOWN: Final = 80
CHUNK = 1 << 20  # bytes: at most that many of those that came are lost where a connection is cut
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


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


def look_up(name: str) -> Repository:
    """
    What a repository holds now.

    Raises:
        ModelError: there is none of that name, or none that this user may see.
        FileFormatError: it names a file that would lie outside of its folder.
        PullError: the hub cannot be reached, or refuses.
    """
    _prepare()
    with _explained(name):
        api = HfApi(endpoint=endpoint())
        try:
            info = api.model_info(name, files_metadata=True, timeout=_PATIENCE)
        except HFValidationError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_hub(name) from None
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


def download(repository: Repository, file: RemoteFile, out: Any, begun: int) -> None:
    """
    Write what is missing of a file.

    Args:
        repository: whose it is.
        file: it.
        out: where it goes, at its end: has ``write``, ``seek``, ``tell`` and ``truncate``.
        begun: bytes that ``out`` holds already.

    Raises:
        ModelError: it is not there any more.
        PullError: the hub cannot be reached, or refuses, or the connection was cut too often.
        OSError: it cannot be written.
    """
    _prepare()
    if file.nbytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        most = constants.MAX_HTTP_DOWNLOAD_SIZE // 10**9
        msg = f"{file.name} of {repository.name} has {file.nbytes // 10**9} GB, and the hub gives "
        msg += f"out {most} at once: take one with fewer bits a weight"
        raise PullError(msg)
    what = f"{file.name} of {repository.name}"
    with _explained(what):
        place = {"revision": repository.revision, "endpoint": endpoint()}
        url = hf_hub_url(repository.name, file.name, **place)
        # Compressed bytes could not be resumed by the offset of plain ones.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        http_get(url, out, resume_size=begun, headers=headers, expected_size=file.nbytes)


def _prepare() -> None:
    """Have the library neither draw, nor log, nor tell what else is installed here."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    disable_progress_bars()
    set_verbosity_error()  # type: ignore[no-untyped-call]


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
    hub = endpoint()
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
        cut = isinstance(exc, httpx2.RemoteProtocolError | httpx2.ReadError)
        how = "the connection was cut" if cut else "it cannot be reached"
        msg = f"{what} was asked for at {hub}, and {how} ({type(exc).__name__}): check the network "
        msg += "and HTTPS_PROXY, then pull again, which goes on where this ended"
        raise PullError(msg) from None
    except OSError as exc:
        if exc.errno is not None:
            raise  # the disk's
        msg = f"{what} was asked for at {hub}, and ended too early: pull again, which goes on there"
        raise PullError(msg) from None


def _with_token(which: str) -> str:
    """What to do about a token; it is never shown."""
    if get_token() is None:
        return f"and set HF_TOKEN to {which}"
    return f"and see that HF_TOKEN is {which}"


def _no_hub(what: str) -> PullError:
    msg = f"{what} was asked for, and what answers at {endpoint()} is no hub: check HF_ENDPOINT"
    return PullError(msg)


__all__ = ["RemoteFile", "Repository", "download", "endpoint", "look_up"]

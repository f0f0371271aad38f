"""
The settings of a process: a TOML file, then ``PROPOLIS_*``, then the command line.

The file is the one that ``PROPOLIS_CONFIG`` names, else ``propolis/config.toml`` in
the user's configuration folder, if it exists.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import Literal

import pydantic
from pydantic import Field
from pydantic_settings import BaseSettings
from pydantic_settings import NoDecode
from pydantic_settings import PydanticBaseSettingsSource
from pydantic_settings import SettingsConfigDict
from pydantic_settings import TomlConfigSettingsSource

from propolis.errors import ConfigError
from propolis.files import expanded
from propolis.wording import did_you_mean
from propolis.wording import near_matches


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterator
    from collections.abc import Mapping
    from typing import Self

PREFIX = "PROPOLIS_"

# Read by the test suite and by Propolis before there is a configuration.
OUTSIDE_CONFIG = frozenset(
    {
        "PROPOLIS_CONFIG",
        "PROPOLIS_REQUIRE_NATIVE",
        "PROPOLIS_REQUIRE_ORACLES",
        "PROPOLIS_REQUIRE_ROCM",
        "PROPOLIS_TOKEN",
    }
)


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config") / "propolis"


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "propolis"


def state_home() -> Path:
    """
    The folder of what a process leaves to the next: ``propolis`` in the user's state folder.

    Raises:
        ConfigError: this user has no home folder.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / "propolis"


def data_home() -> Path:
    """
    The folder of what was got for a user to keep: ``propolis`` in the user's folder of data.

    Raises:
        ConfigError: this user has no home folder.
    """
    return Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local" / "share") / "propolis"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as exc:  # a container whose user has no name
        msg = "this user has no home folder: set HOME, or XDG_CONFIG_HOME and XDG_CACHE_HOME"
        raise ConfigError(msg) from exc


def _names(value: object) -> object:
    """Lists may be given as ``a,b`` in the environment and on command lines."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _overrides(value: object) -> object:
    """Overrides may be given as ``matmul=a,b;add=c`` in the environment."""
    if not isinstance(value, str):
        return value
    found: dict[str, list[str]] = {}
    for entry in filter(None, (part.strip() for part in value.split(";"))):
        op, equals, names = entry.partition("=")
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        if not equals or not op.strip() or not wanted:
            msg = f"{entry!r} is not OP=PLUGIN[,PLUGIN...]"
            raise ValueError(msg)
        if op.strip() in found:
            msg = f"{op.strip()} is given twice: list its plugins in one place, separated by commas"
            raise ValueError(msg)
        found[op.strip()] = wanted
    return found


Names = Annotated[list[str], NoDecode, pydantic.BeforeValidator(_names)]

Overrides = Annotated[dict[str, Names], NoDecode, pydantic.BeforeValidator(_overrides)]


class Config(BaseSettings):
    """All settings.  Each field's description is its documentation."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    plugins: Names | None = Field(
        None,
        description="Load only these plugins, comma-separated; empty for none. "
        "The CPU reference is always loaded.",
    )
    disable_plugins: Names = Field([], description="Never load these plugins, comma-separated.")
    strict: bool = Field(
        False, description="A plugin that fails to load is an error instead of a warning."
    )
    device: str = Field("cpu", description="The device that workers run on: `cpu`, `rocm:0`.")
    fallback: Literal["allow", "warn", "error"] = Field(
        "warn",
        description="A call that falls to the CPU on another device's worker: `allow` counts it, "
        "`warn` also logs it, `error` refuses it.",
    )
    fallback_max_calls: int | None = Field(
        None,
        ge=0,
        description="Calls, of all ops together, that may fall to the CPU; the next one is an "
        "error. None for no limit.",
    )
    fallback_max_bytes: int | None = Field(
        None,
        ge=0,
        description="Bytes that calls falling to the CPU may copy, all together; the call that "
        "would copy more is an error. None for no limit.",
    )
    ops: Overrides = Field(
        {},
        description="Plugins that go first, op by op, in that order: a table in the file, "
        "`matmul=a,b;add=c` in the environment. The others follow in their usual order.",
    )
    numerics: Literal["exact", "fast"] = Field(
        "fast",
        description="`exact` takes only implementations that compute with their inputs as they "
        "are; `fast` also those that round them further (activations to 8 bits).",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads that CPU implementations may use; 0 for one per core that this "
        "process may run on, or that the CPU quota of its control group allows, if that is fewer.",
    )
    memory_check: bool = Field(
        True,
        description="A model, context or image that needs more memory than is free is refused "
        "before any of it is taken. False tries all the same: with swap, or where the estimate "
        "is wrong.",
    )
    model: str | None = Field(
        None,
        description="The model that `propolis llm` runs: a GGUF file, a safetensors folder, or the "
        "name of a pulled model.",
    )
    sd_model: str | None = Field(
        None, description="The model that `propolis sd` runs: a folder in the layout of diffusers."
    )
    models_dir: Annotated[Path, pydantic.BeforeValidator(expanded)] | None = Field(
        None,
        description="Folder of pulled models. None: `propolis/models` in the user's folder of "
        "data (`$XDG_DATA_HOME`, or `~/.local/share`).",
    )
    chat_history: int = Field(
        1000,
        ge=0,
        le=100_000,
        description="Lines typed on a terminal that `propolis llm chat` keeps for the next chats, "
        "in `propolis/chat_history` of the user's state folder; 0 for none.",
    )
    probe_timeout: float = Field(
        20.0,
        gt=0,
        le=86_400,
        description="Seconds that a plugin's probe may take before it is rejected.",
    )
    cache_dir: Annotated[Path, pydantic.BeforeValidator(expanded)] = Field(
        default_factory=_cache_home,
        description="Folder of caches. Default: `propolis` in the user's cache folder.",
    )
    blas: Literal["auto", "rocblas", "hipblaslt"] = Field(
        "auto", description="What `rocm_blas` multiplies by; `auto`: rocBLAS, else hipBLASLt."
    )
    tune: bool = Field(
        False,
        description="Vendors' libraries measure their solutions for a shape that is new, seconds "
        "to minutes each, and keep the fastest. `propolis tune` does the same at another time.",
    )
    kernel_cache_mib: int = Field(
        512,
        ge=0,
        description="MiB that kernels compiled on this machine may take in the cache folder; "
        "those not used for longest go first.",
    )
    direct_allocations: bool = Field(
        False,
        description="Each tensor on a GPU is an allocation of its own and goes back at once, so "
        "that tools which watch memory see where it ends. Slow.",
    )
    save_failing_calls: Annotated[Path, pydantic.BeforeValidator(expanded)] | None = Field(
        None,
        description="Folder that keeps the call at which an implementation raised, with all its "
        "arguments, for `propolis replay`. None keeps nothing.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="The least severe log line that is printed, to standard error."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="`console` for people, `json` for machines, `auto`: console on a terminal.",
    )
    metrics: bool = Field(
        False,
        description="Count calls, bytes and seconds by op and plugin; they stand below the "
        "placement summary.",
    )
    debug: bool = Field(False, description="Errors end with a traceback.")

    toml_file: ClassVar[Path | None] = None
    given: ClassVar[Collection[str]] = ()  # by the command line

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, data: dict[str, Any], build: Callable[[Any], Self]) -> Self:
        try:
            return build(data)
        except pydantic.ValidationError as exc:
            raise ConfigError(_explain(exc, cls.toml_file, cls.given)) from exc

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line over environment over file; no other sources."""
        del dotenv_settings, file_secret_settings
        file = TomlConfigSettingsSource(settings_cls, cls.toml_file)
        return init_settings, env_settings, file

    @classmethod
    def load(cls, **overrides: Any) -> Config:
        """
        The settings of this process.

        Args:
            overrides: settings from the command line; None means not given.

        Raises:
            ConfigError: the file cannot be read, a setting is unknown, or a value is
                not one of those supported; names where it was set.
        """
        path = _config_file()
        given = {name: value for name, value in overrides.items() if value is not None}
        source = type("_Source", (cls,), {"toml_file": path, "given": given})
        try:
            loaded = source(**given)
        except (OSError, ValueError) as exc:
            msg = f"{path}: cannot be read as TOML settings: {exc}"
            raise ConfigError(msg) from exc
        return cls.model_construct(**dict(loaded))


def unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Set ``PROPOLIS_*`` variables that mean nothing, each with near matches."""
    known = {PREFIX + name.upper() for name in Config.model_fields} | OUTSIDE_CONFIG
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            yield name, near_matches(name, known - OUTSIDE_CONFIG)


def _config_file() -> Path | None:
    named = os.environ.get("PROPOLIS_CONFIG")
    path = Path(named) if named else _config_home() / "config.toml"
    if path.is_file() or not (named or path.exists()):
        return path if path.is_file() else None
    msg = f"PROPOLIS_CONFIG names {named}, which" if named else f"the settings file {path}"
    msg += " is not a file"
    raise ConfigError(msg)


def _explain(exc: pydantic.ValidationError, path: Path | None, given: Collection[str]) -> str:
    """Every wrong setting, each with the source that it was taken from."""
    lines = []
    for error in exc.errors():
        setting = str(error["loc"][0])
        name = ".".join(map(str, error["loc"]))
        variable = PREFIX + setting.upper()
        if setting in given:
            where = "the command line"
        elif any(known.upper() == variable for known in os.environ):
            where = variable
        else:
            where = str(path or "Config(...)")
        if error["type"] == "extra_forbidden":
            hint = did_you_mean(setting, Config.model_fields)
            text = f"unknown setting {setting!r} from {where}{hint and f'; {hint}'}"
        else:
            why = error["msg"].removeprefix("Value error, ")  # pydantic's word for what we raise
            text = f"{name} = {error['input']!r}: {why} (from {where}; see docs/configuration.md)"
        lines.append(text)
    return "; ".join(lines)

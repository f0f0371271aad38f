from __future__ import annotations

from pathlib import Path

import pytest

from propolis.config import OUTSIDE_CONFIG
from propolis.config import Config
from propolis.config import unknown_variables
from propolis.errors import ConfigError


@pytest.fixture
def toml(tmp_path, monkeypatch):
    """Write a settings file and name it in the environment."""

    def write(content, name="settings.toml"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.setenv("PROPOLIS_CONFIG", str(file))
        return file

    return write


def test_defaults():
    """What holds when nobody says anything."""
    config = Config.load()
    assert (config.plugins, config.disable_plugins, config.strict) == (None, [], False)
    assert (config.device, config.fallback, config.threads) == ("cpu", "warn", 0)
    assert (config.log_level, config.log_format, config.debug) == ("warning", "auto", False)


def test_every_setting_is_described():
    """The description is the documentation."""
    assert [n for n, f in Config.model_fields.items() if not f.description] == []


def test_the_order_of_sources(toml, monkeypatch):
    """File, then environment, then command line."""
    toml("threads = 1\nstrict = true\ndevice = 'rocm:1'\nplugins = ['a', 'b']\n")
    assert (Config.load().threads, Config.load().plugins) == (1, ["a", "b"])
    monkeypatch.setenv("PROPOLIS_THREADS", "2")
    assert Config.load().threads == 2
    config = Config.load(threads=3, device=None)
    assert (config.threads, config.device, config.strict) == (3, "rocm:1", True)


@pytest.mark.parametrize(
    ("text", "names"), [("", []), ("a", ["a"]), (" a, b ,,", ["a", "b"]), ("[x]", ["[x]"])]
)
def test_lists_in_the_environment(monkeypatch, text, names):
    """Comma-separated; empty is an empty list, which is not the same as none given."""
    monkeypatch.setenv("PROPOLIS_PLUGINS", text)
    monkeypatch.setenv("PROPOLIS_DISABLE_PLUGINS", text)
    config = Config.load()
    assert (config.plugins, config.disable_plugins) == (names, names)


def test_the_users_file(tmp_path, monkeypatch):
    """Without PROPOLIS_CONFIG, the file in the configuration folder is read, if there is one."""
    folder = tmp_path / "config-home" / "propolis"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("threads = 7")
    assert Config.load().threads == 7
    (folder / "config.toml").unlink()
    (folder / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"the settings file .*config\.toml is not a file"):
        Config.load()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Config.load().threads == 0


def test_folders(tmp_path, monkeypatch):
    """Caches are in the user's cache folder; ``~`` is the user's home in a file too."""
    assert Config.load().cache_dir == tmp_path / "cache-home" / "propolis"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config.load(cache_dir="~/here").cache_dir == tmp_path / "here"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Config.load().cache_dir == tmp_path / ".cache" / "propolis"


@pytest.mark.parametrize("name", ["CACHE_DIR", "MODELS_DIR", "SAVE_FAILING_CALLS"])
def test_no_folder(monkeypatch, name):
    """An empty path is refused: it would be whatever folder a command runs in."""
    monkeypatch.setenv(f"PROPOLIS_{name}", "")
    with pytest.raises(ConfigError, match="is no path: name a folder, or leave the setting out"):
        Config.load()
    with pytest.raises(ConfigError, match="5 is no path: name a folder"):
        Config.load(**{name.lower(): 5})


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "XDG_CONFIG_HOME"])
def test_a_user_without_a_home(monkeypatch, variable):
    """A container's nameless user is told which variables help."""

    def homeless():
        msg = "Could not determine home directory."
        raise RuntimeError(msg)

    monkeypatch.setattr(Path, "home", homeless)
    Config.load()
    monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match="no home folder: set HOME, or XDG_CONFIG_HOME and XDG_C"):
        Config.load()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "THREADS",
            "many",
            r"threads = 'many': .*valid integer.*\(from PROPOLIS_THREADS; see docs",
        ),
        ("THREADS", "-1", "threads = '-1': .*greater than or equal to 0"),
        ("THREADS", "1025", "threads = '1025': .*less than or equal to 1024"),
        ("STRICT", "perhaps", r"strict = 'perhaps': .*\(from PROPOLIS_STRICT"),
        ("FALLBACK", "never", "fallback = 'never': .*'allow', 'warn' or 'error'"),
        ("PROBE_TIMEOUT", "0", "probe_timeout = '0': .*greater than 0"),
        ("PROBE_TIMEOUT", "", "probe_timeout = ''"),
        ("LOG_LEVEL", "loud", "log_level = 'loud': .*'debug', 'info'"),
        ("LOG_FORMAT", "xml", "log_format = 'xml'"),
    ],
)
def test_wrong_values_in_the_environment(monkeypatch, variable, value, message):
    """The error names setting, value, what is supported, and the variable."""
    monkeypatch.setenv(f"PROPOLIS_{variable}", value)
    with pytest.raises(ConfigError, match=message):
        Config.load()


def test_wrong_values_name_the_source_they_came_from(toml, monkeypatch):
    """A file's mistake names the file, the command line's the command line."""
    file = toml("threads = 'many'\nplugins = [1]")
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert "threads = 'many': Input should be a valid integer" in str(caught.value)
    assert f"plugins.0 = 1: Input should be a valid string (from {file}; see" in str(caught.value)
    monkeypatch.setenv("PROPOLIS_THREADS", "2")
    with pytest.raises(ConfigError, match=r"^threads = 'x': .*\(from the command line;"):
        Config.load(threads="x", plugins="")


def test_several_mistakes_are_shown_together(monkeypatch):
    """Nobody should correct them one start at a time."""
    monkeypatch.setenv("PROPOLIS_THREADS", "many")
    monkeypatch.setenv("PROPOLIS_STRICT", "perhaps")
    with pytest.raises(ConfigError, match=r"strict = .*; threads = "):
        Config.load()


def test_unknown_settings_in_the_file(toml):
    """A typo is an error with near matches; a table is as unknown as a name."""
    file = toml("thraeds = 2")
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert str(caught.value) == f"unknown setting 'thraeds' from {file}; did you mean threads?"
    toml("[zzz]\na = 1")
    with pytest.raises(ConfigError, match=r"^unknown setting 'zzz' from .*settings\.toml$"):
        Config.load()


def test_an_unknown_setting_of_the_command_line():
    """As an option of a command might bring."""
    with pytest.raises(ConfigError, match="unknown setting 'thread' from the command line; did"):
        Config.load(thread=1)


@pytest.mark.parametrize("content", ["threads = ", "a", b"\xff\xfe", "a = 1\na = 2"])
def test_files_that_are_no_toml(toml, content):
    """The error names the file and where it stops making sense."""
    file = toml(content)
    with pytest.raises(ConfigError, match=f"^{file}: cannot be read as TOML settings: "):
        Config.load()


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_is_not_there(tmp_path, monkeypatch, name):
    """A file that was named must exist, unlike the default one."""
    monkeypatch.setenv("PROPOLIS_CONFIG", str(tmp_path / name))
    with pytest.raises(ConfigError, match=r"PROPOLIS_CONFIG names .*, which is not a file"):
        Config.load()


def test_settings_are_frozen_and_of_their_class():
    """A configuration is a value; how it was read leaves no trace."""
    config = Config.load(threads=2)
    assert type(config) is Config
    with pytest.raises(ValueError, match="frozen"):
        config.threads = 3


def test_no_other_sources(tmp_path, monkeypatch):
    """Neither .env files nor folders of secrets are read."""
    (tmp_path / ".env").write_text("PROPOLIS_THREADS=9")
    monkeypatch.chdir(tmp_path)
    assert Config.load().threads == 0


def test_unknown_variables():
    """Set variables that mean nothing, with near matches; those outside the model are known."""
    environ = {"PROPOLIS_THREDS": "1", "PROPOLIS_ZZZ": "", "PROPOLIS_STRICT": "1", "PATH": "x"}
    environ |= dict.fromkeys(OUTSIDE_CONFIG, "1")
    found = dict(unknown_variables(environ))
    assert list(found) == ["PROPOLIS_THREDS", "PROPOLIS_ZZZ"]
    assert found["PROPOLIS_THREDS"][0] == "PROPOLIS_THREADS"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"numerics": "half"}, "numerics = 'half': .*'exact' or 'fast'"),
        ({"fallbak": "error"}, "unknown setting 'fallbak'.*did you mean fallback"),
    ],
)
def test_what_python_gives_is_told_in_one_line(given, said, monkeypatch):
    """As what a file or a variable gives is, with where it came from."""
    with pytest.raises(ConfigError, match=said) as told:
        Config(**given)
    assert "from Config(...)" in str(told.value)
    assert "\n" not in str(told.value)
    monkeypatch.setenv("PROPOLIS_NUMERICS", "half")
    with pytest.raises(ConfigError, match="from PROPOLIS_NUMERICS"):
        Config()

"""Settings: where they come from, what is refused, and what is never shown."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from miniclaw_sessions.config import (
    Settings,
    config_path,
    flag_of,
    load_settings,
    masked,
    option_names,
    show_value,
    socket_path,
    value_of,
    variable_of,
)
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.secret import Secret, read_secret

SHIPPED = Path(__file__).resolve().parents[1] / "config" / "miniclaw.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "miniclaw.toml"


# --- the file that is shipped ----------------------------------------------------------------------------------------


def test_the_shipped_file_holds_exactly_the_defaults() -> None:
    assert load_settings(SHIPPED).settings == Settings()


def test_the_shipped_file_has_every_option() -> None:
    loaded = load_settings(SHIPPED)
    assert [name for name, source in loaded.sources.items() if source == "default"] == []


def test_every_option_of_the_shipped_file_is_explained() -> None:
    unexplained = []
    above = ""
    for line in SHIPPED.read_text().splitlines():
        if re.match(r"\w+ = ", line) and not above:
            unexplained.append(line)
        above = line
    assert unexplained == []


def test_the_shipped_files_lines_are_found_again() -> None:
    lines = SHIPPED.read_text().splitlines()
    for name, source in load_settings(SHIPPED).sources.items():
        number = int(source.rpartition(" ")[2])
        assert lines[number - 1].startswith(f"{name.rpartition('.')[2]} = ")


# --- precedence ------------------------------------------------------------------------------------------------------


def test_without_any_source_every_option_has_its_default() -> None:
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert list(loaded.sources) == option_names()


def test_the_file_wins_over_the_default_the_environment_over_the_file_and_the_flag_over_all(file: Path) -> None:
    file.write_text("[sessions]\nwindow = 10\nttl_days = 10\nflush_interval_s = 10\n")
    environ = {"MINICLAW_SESSIONS_TTL_DAYS": "20", "MINICLAW_SESSIONS_FLUSH_INTERVAL_S": "20"}
    loaded = load_settings(file, environ, {"sessions.flush_interval_s": 30})
    sessions = loaded.settings.sessions
    assert (sessions.window, sessions.ttl_days, sessions.flush_interval_s) == (10, 20.0, 30.0)
    assert loaded.sources["sessions.window"] == f"{file} line 2"
    assert loaded.sources["sessions.ttl_days"] == "environment MINICLAW_SESSIONS_TTL_DAYS"
    assert loaded.sources["sessions.flush_interval_s"] == "--flush-interval"
    assert loaded.sources["sessions.store"] == "default"


@pytest.mark.parametrize(
    ("text", "currency", "source"),
    [
        ("", "USD", "default"),
        ("[prices.a]\ninput = 1.0\n[prices.b]\ncurrency = 'EUR'\n", "EUR", "line 4"),
        ("[sessions]\ncurrency = 'CHF'\n[prices.b]\ninput = 1.0\n", "CHF", "line 2"),
    ],
)
def test_the_currency_of_costs_is_that_of_the_prices_unless_it_is_said(
    file: Path, text: str, currency: str, source: str
) -> None:
    file.write_text(text)
    loaded = load_settings(file)
    assert loaded.settings.sessions.currency == currency
    assert loaded.sources["sessions.currency"].endswith(source)


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert load_settings(overrides={"sessions.window": None}).settings == Settings()


@pytest.mark.parametrize("name", option_names())
def test_every_option_can_come_from_the_environment(name: str) -> None:
    default = value_of(Settings(), name)
    text: dict[type, str] = {int: str(default), float: str(default), bool: "false", tuple: "a, b", str: default or "x"}
    text |= {tuple: ", ".join(default) or "a, b"} if isinstance(default, tuple) else {}
    loaded = load_settings(environ={variable_of(name): text[type(default)]})
    expected: Any = {bool: False, tuple: default or ("a", "b"), str: default or "x"}.get(type(default), default)
    assert value_of(loaded.settings, name) == expected
    assert loaded.sources[name] == f"environment {variable_of(name)}"


def test_other_programs_variables_are_none_of_our_business() -> None:
    assert load_settings(environ={"PATH": "/bin", "MINICLAWS": "7", "OPENAI_API_KEY": "x"}).settings == Settings()


def test_flags_are_named_after_their_options() -> None:
    assert flag_of("workspace") == "--workspace"
    assert flag_of("sessions.flush_interval_s") == "--flush-interval"
    assert flag_of("listen.token_file") == "--token-file"
    assert flag_of("log.level") == "--log-level"


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("window = 1", "sessions.window is 1"),
        ("window = '50'", 'sessions.window is "50"'),
        ("window = 2.5", "sessions.window is 2.5"),
        ("flush_interval_s = 0", "sessions.flush_interval_s is 0"),
        ("flush_interval_s = inf", "sessions.flush_interval_s is inf"),
        ("flush_interval_s = nan", "sessions.flush_interval_s is nan"),
        ("ttl_days = -1", "sessions.ttl_days is -1"),
        ("archive_expired = 'no'", 'sessions.archive_expired is "no"'),
        ("store = ''", 'sessions.store is ""'),
        ("store = ['sqlite:']", 'sessions.store is ["sqlite:"]'),
        ("max_sessions = 0", "sessions.max_sessions is 0"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_line(file: Path, line: str, said: str) -> None:
    file.write_text(f"# a comment\n[sessions]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert str(caught.value).startswith(f"{said} ({file} line 3)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MINICLAW_SESSIONS_WINDOW", "many"),
        ("MINICLAW_SESSIONS_WINDOW", ""),
        ("MINICLAW_SESSIONS_FLUSH_INTERVAL_S", "nan"),
        ("MINICLAW_SESSIONS_ARCHIVE_EXPIRED", "perhaps"),
        ("MINICLAW_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused_by_its_name(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf'is "{value}" \(environment {variable}\)'):
        load_settings(environ={variable: value})


@pytest.mark.parametrize("level", ["'loud'", "['info']"])
def test_what_is_none_of_the_choices_is_refused_with_those_that_there_are(file: Path, level: str) -> None:
    file.write_text(f"[log]\nlevel = {level}\n")
    with pytest.raises(ConfigError, match="it must be debug, info, warning or error"):
        load_settings(file)


def test_a_wrong_flag_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"sessions\.window is 1 \(--window\)"):
        load_settings(overrides={"sessions.window": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[sessions]\nwindwo = 3\n",
            'unknown option "sessions.windwo" in {file} line 2; did you mean sessions.window?',
        ),
        ("window = 3\n", 'unknown option "window" in {file} line 1; did you mean sessions.window?'),
        ("[session]\nwindow = 3\n", 'unknown option "session" in {file} line 1; did you mean sessions?'),
        ("sessions = 3\n", 'unknown option "sessions" in {file} line 1; did you mean sessions?'),
        ("[sessions.window]\nx = 3\n", "sessions.window is {{"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_name(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert str(caught.value).startswith(said.format(file=file))


def test_the_value_of_an_unknown_key_is_not_shown_because_it_may_be_a_secret(file: Path) -> None:
    file.write_text("[model]\napi_key = 'sk-very-secret'\n")
    with pytest.raises(ConfigError, match=r"did you mean model\.api_key_") as caught:
        load_settings(file)
    assert "sk-very-secret" not in str(caught.value)


def test_an_unknown_variable_is_refused_with_the_nearest_right_name() -> None:
    with pytest.raises(ConfigError, match="did you mean MINICLAW_SESSIONS_WINDOW"):
        load_settings(environ={"MINICLAW_SESSION_WINDOW": "3"})


def test_a_file_that_is_not_toml_is_refused_with_the_place(file: Path) -> None:
    file.write_text("[sessions\n")
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 1"):
        load_settings(file)


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(file)


def test_a_named_file_that_does_not_exist_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load_settings(file)


# --- places ----------------------------------------------------------------------------------------------------------


def test_the_file_is_named_by_the_variable_else_it_is_the_one_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_path({}) is None
    usual = tmp_path / ".miniclaw" / "miniclaw.toml"
    usual.parent.mkdir()
    usual.touch()
    assert config_path({}) == usual
    assert config_path({"MINICLAW_CONFIG": "/elsewhere.toml"}) == Path("/elsewhere.toml")


def test_the_variable_that_names_the_file_is_no_option() -> None:
    assert load_settings(environ={"MINICLAW_CONFIG": "x"}).settings == Settings()


def test_the_workspace_may_be_written_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings().workspace == tmp_path / ".miniclaw" / "workspace"


def test_the_socket_lies_in_the_workspace_or_in_the_runtime_directory_or_where_it_is_set() -> None:
    loaded = load_settings(environ={"MINICLAW_WORKSPACE": "/w"})
    assert socket_path(loaded, {}) == Path("/w/miniclaw.sock")
    assert socket_path(loaded, {"RUNTIME_DIRECTORY": "/run/a:/run/b"}) == Path("/run/a/miniclaw.sock")
    chosen = load_settings(environ={"MINICLAW_LISTEN_SOCKET": "/s"})
    assert socket_path(chosen, {"RUNTIME_DIRECTORY": "/run/a"}) == Path("/s")
    assert socket_path(load_settings(environ={"MINICLAW_LISTEN_SOCKET": "none"}), {}) is None


# --- secrets ---------------------------------------------------------------------------------------------------------


def secret_file(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>20}", repr([secret]), f"{secret}"]
    assert not [text for text in shown if "hunter2" in text]


def test_a_secret_cannot_be_serialized() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret("hunter2"))
    with pytest.raises(TypeError):
        msgspec.json.encode(Secret("hunter2"))


def test_a_secret_comes_from_its_file_before_the_credential_before_the_variable(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "named", b"from file\n")
    secret_file(tmp_path / "token", b"from credential", 0o400)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "KEY": "from variable"}

    def read(file: str, credential: str) -> str | None:
        secret = read_secret(file, credential, environ, variable="KEY")
        return None if secret is None else secret.reveal()

    assert read(file, "token") == "from file"
    assert read("", "token") == "from credential"
    assert read("", "other") == "from variable"
    assert read_secret("", "other", environ) is None


def test_a_secret_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(secret_file(tmp_path / "open", b"x" * 20, 0o644), "token", {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b" \n", "is empty"),
        (b"two\nlines", "one line of printable ASCII"),
        (b"\xff\xfe", "one line of printable ASCII"),
        (b"x" * 70_000, "too large"),
    ],
)
def test_what_cannot_be_a_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_secret(secret_file(tmp_path / "odd", content), "token", {})
    assert "two" not in str(caught.value)


def test_a_named_secret_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "missing"), "token", {})
    with pytest.raises(ConfigError, match="KEY, which should hold a secret, is not set"):
        read_secret("", "token", {}, variable="KEY")


def test_a_password_in_a_url_is_masked_where_values_are_shown() -> None:
    assert show_value("postgresql://me:hunter2@host/db") == '"postgresql://me:***@host/db"'
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={"MINICLAW_SESSIONS_WINDOW": "postgresql://me:hunter2@host/db"})
    assert "hunter2" not in str(caught.value)


def test_a_secret_that_is_set_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secret `token` is no file; is it the secret itself") as caught:
        read_secret("hunter2", "token", {})
    assert "hunter2" not in str(caught.value)
    file = tmp_path / "config.toml"
    file.write_text('[mcp.files]\ncommand = "x"\nenv = "TOKEN=hunter2"\n')
    with pytest.raises(ConfigError, match=r"mcp\.files\.env is") as caught:
        load_settings(file, environ={})
    assert "hunter2" not in str(caught.value)


def test_what_is_secret_by_its_name_is_masked_where_values_are_shown() -> None:
    environment = {"GITHUB_TOKEN": "hunter2", "API_KEY": "hunter2", "LANG": "C"}
    assert show_value(environment) == '{"GITHUB_TOKEN" = "***", "API_KEY" = "***", "LANG" = "C"}'
    assert masked({"env": environment})["env"]["API_KEY"] == "***"
    assert show_value(environment, "mcp.files.env") == '{"GITHUB_TOKEN" = "***", "API_KEY" = "***", "LANG" = "***"}'
    assert show_value(("--api-key", "hunter2"), "mcp.files.args") == '["***", "***"]'
    assert show_value("https://host/mcp?api_key=hunter2&a=b") == '"https://host/mcp?api_key=***&a=b"'


@pytest.mark.parametrize(
    ("value", "shown"), [(True, "true"), (30.0, "30.0"), (("a",), '["a"]'), ("\x1b[31m", r'"\u001b[31m"')]
)
def test_values_are_shown_in_the_files_own_notation(value: Any, shown: str) -> None:
    assert show_value(value) == shown
    assert tomllib.loads(f"x = {shown}")["x"] == (list(value) if isinstance(value, tuple) else value)


# --- weight ----------------------------------------------------------------------------------------------------------


def test_the_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, types; package = types.ModuleType('miniclaw_sessions'); "
        "package.__path__ = [sys.argv[1]]; sys.modules['miniclaw_sessions'] = package; "
        "import miniclaw_sessions.config; "
        "print([n for n in ('asyncio', 'anyio', 'structlog', 'sqlalchemy', 'starlette', 'rich') if n in sys.modules])"
    )
    package = SHIPPED.parents[1] / "miniclaw_sessions"
    done = subprocess.run([sys.executable, "-c", code, str(package)], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"

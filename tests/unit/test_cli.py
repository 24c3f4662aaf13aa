"""The frame of the command line: help, options, errors and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from cdc_outbox import __version__, errors
from cdc_outbox.cli import Command, load_settings, main, run, settings_options
from cdc_outbox.cli.command import Program
from cdc_outbox.cli.failure import Reporter, gravest
from cdc_outbox.settings import DEFAULT_LISTEN
from tests.servers.cache import CHECKOUT

EXIT_CODES = [
    (errors.UsageError("bad flag", next="fix it"), 2),
    (errors.ConfigError("bad file", next="fix it"), 78),
    (errors.SlotMissing("no slot", next="init"), 78),
    (errors.PoisonEvent("bad row", next="look", reason="key"), 70),
    (errors.PostgresUnavailable("away", next="wait"), 1),
    (errors.DrainExceeded("late", next="start"), 1),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("CDC_OUTBOX_", "PG", "KAFKA_")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    return tmp_path


def invoke(*args: str, program: click.Command = main) -> Result:
    return CliRunner().invoke(program, args)


def program_with(command: click.Command, name: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program whose only command is this one."""
    program = Program("cdc-outbox", summaries={name: "A command."}, examples=("cdc-outbox",))
    monkeypatch.setattr(
        Program, "get_command", lambda _self, _context, asked: command if asked == name else None
    )
    return program


def failing(error: BaseException, name: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    @click.command(cls=Command, examples=("cdc-outbox start",))
    @settings_options("postgres")
    def command() -> NoReturn:
        """Fail."""
        load_settings()
        raise error

    return program_with(command, name, monkeypatch)


class TestHelp:
    def test_begins_with_examples(self) -> None:
        result = invoke("--help")
        assert result.exit_code == 0
        assert result.stdout.startswith("Examples:\n  cdc-outbox demo\n")
        assert "  start " in result.stdout

    @pytest.mark.parametrize("command", ["show", "validate", "schema"])
    def test_of_commands_begins_with_examples(self, command: str) -> None:
        result = invoke("config", command, "--help")
        assert result.stdout.startswith(f"Examples:\n  cdc-outbox config {command}")

    def test_without_arguments(self) -> None:
        assert invoke().stdout == invoke("--help").stdout

    def test_version(self) -> None:
        assert invoke("--version").stdout == f"cdc-outbox {__version__}\n"

    @pytest.mark.parametrize("args", [["--help"], ["config", "show", "--help"]], ids=" ".join)
    def test_imports_nothing_heavy(self, args: list[str]) -> None:
        """The reason why help answers at once."""
        code = (
            "import sys\nfrom cdc_outbox.cli import main\n"
            "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
            "heavy = {'asyncio', 'psycopg', 'aiokafka', 'orjson', 'ssl', 'tomllib', 'difflib'} & sys.modules.keys()\n"
            "print(sorted(heavy), file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
        assert done.stderr == "[]\n"

    def test_as_a_module(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "cdc_outbox", "config", "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Usage: cdc-outbox config " in done.stdout

    @pytest.mark.parametrize("args", [["--help"], ["config", "show", "--help"]], ids=" ".join)
    def test_is_ascii(self, args: list[str]) -> None:
        assert invoke(*args).stdout.isascii()


class TestUsage:
    @pytest.mark.parametrize(
        ("args", "error", "remedy"),
        [
            (("strat",), "error: no such command 'strat'; did you mean 'start'?", "next: cdc-outbox --help"),
            (
                ("status",),
                "error: no such command 'status'; did you mean 'health'?",
                "next: cdc-outbox --help",
            ),
            (("xyz",), "error: no such command 'xyz'", "next: cdc-outbox --help"),
            (
                ("config", "show", "--slto", "x"),
                "error: no such option",
                "next: cdc-outbox config show --help",
            ),
            (
                ("config", "show", "--slot"),
                "error: option '--slot' requires an argument",
                "next: cdc-outbox config --help",
            ),
            (
                ("config", "show", "--slot", "A B"),
                "error: --slot is 'A B': ",
                "next: write it like this: --slot outbox_slot",
            ),
            (
                ("config", "show", "extra"),
                "error: got unexpected extra argument",
                "next: cdc-outbox config show --help",
            ),
        ],
    )
    def test_two_lines_and_exit_code_2(
        self, here: Path, args: tuple[str, ...], error: str, remedy: str
    ) -> None:
        result = invoke(*args)
        first, second = result.stderr.splitlines()
        assert first.startswith(error)
        assert second.startswith(remedy)
        assert (result.exit_code, result.stdout) == (2, "")

    def test_health_answers_unknown(self) -> None:
        for error in (errors.UsageError("bad", next="fix"), click.UsageError("bad"), RuntimeError("bug")):
            assert Reporter("health").report(error) == 3
        assert Reporter("health").report(errors.ConfigError("bad", next="fix")) == 3


class TestErrors:
    @pytest.mark.parametrize(("error", "code"), EXIT_CODES, ids=lambda value: type(value).__name__)
    def test_two_lines(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, error: errors.CdcOutboxError, code: int
    ) -> None:
        result = invoke("peek", program=failing(error, "peek", monkeypatch))
        assert result.stderr == f"error: {error}\nnext: {error.next}\n"
        assert result.exit_code == code

    def test_one_off_commands_never_write_json(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = failing(errors.SlotMissing("no slot", next="init"), "peek", monkeypatch)
        result = invoke("peek", "--log-format", "json", program=program)
        assert result.stderr == "error: no slot\nnext: init\n"

    def test_start_with_json_logs(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CDC_OUTBOX_SLOTT", "x")
        program = failing(errors.SlotMissing("no slot", next="init"), "start", monkeypatch)
        result = invoke("start", "--log-format", "json", program=program)
        documents = [json.loads(line) for line in result.stderr.splitlines()]
        assert [document["level"] for document in documents] == ["warning", "error"]
        assert (documents[-1]["error"], documents[-1]["next"]) == ("no slot", "init")
        assert result.exit_code == 78

    def test_start_with_text_logs(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = failing(errors.SlotMissing("no slot", next="init"), "start", monkeypatch)
        result = invoke("start", "--log-format=text", program=program)
        assert result.stderr == "error: no slot\nnext: init\n"

    def test_start_names_the_page_on_poison(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        error = errors.PoisonEvent("bad row", next="look", reason="key")
        result = invoke("start", "--log-format=text", program=failing(error, "start", monkeypatch))
        assert result.stderr.startswith("error: bad row\nnext: look; each way out")
        page = result.stderr.split()[-1]
        assert (CHECKOUT / page).is_file()

    def test_start_with_the_format_of_the_file(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (here / "cdc-outbox.toml").write_text('[log]\nformat = "text"\n', encoding="utf-8")
        program = failing(errors.SlotMissing("no slot", next="init"), "start", monkeypatch)
        assert invoke("start", program=program).stderr == "error: no slot\nnext: init\n"

    @pytest.mark.parametrize(
        "args",
        [
            ("start", "--log-format", "json", "--slot", "Bad"),
            ("start", "--log-format", "json", "--nonsense"),
            ("start", "--log-format=json", "--config", "nowhere.toml"),
        ],
    )
    def test_json_before_the_settings_are_read(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
    ) -> None:
        result = invoke(*args, program=failing(AssertionError(), "start", monkeypatch))
        (line,) = result.stderr.splitlines()
        assert {"ts", "level", "event", "error", "next"} == json.loads(line).keys()

    @pytest.mark.parametrize(
        "error",
        [RuntimeError("a bug"), BrokenPipeError("a socket"), EOFError("0 bytes read"), OSError(5, "disk")],
    )
    def test_unexpected(self, here: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        """Click would end silently on a broken pipe and on the end of input, whatever they come from."""
        result = invoke("peek", program=failing(error, "peek", monkeypatch))
        first, second = result.stderr.splitlines()
        assert first == f"error: unexpected {type(error).__name__}: {error}"
        assert second == "next: run it again with --log-level debug, and report what it prints"
        assert result.exit_code == 1

    def test_traceback_only_in_debug(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        result = invoke(
            "peek", "--log-level", "debug", program=failing(RuntimeError("a bug"), "peek", monkeypatch)
        )
        assert result.stderr.startswith("Traceback")
        assert result.stderr.splitlines()[-2].startswith("error: unexpected RuntimeError: a bug")

    def test_several_lines_become_one(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        error = errors.MissingRight("permission denied\nDETAIL:  none", next="grant\n it")
        result = invoke("peek", program=failing(error, "peek", monkeypatch))
        assert result.stderr == "error: permission denied DETAIL: none\nnext: grant it\n"

    def test_what_a_row_holds_steers_no_terminal(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        error = errors.SetupError("row a\x1b[2J", next="see row \x07")
        result = invoke("peek", program=failing(error, "peek", monkeypatch))
        assert result.stderr == "error: row a\\x1b[2J\nnext: see row \\x07\n"

    @pytest.mark.parametrize("level", ["info", "debug"])
    def test_secrets_are_taken_out(self, here: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
        monkeypatch.setenv("CDC_OUTBOX_DSN", "postgresql://u:s3cr3t-Passw0rd@h/d")
        error = RuntimeError("server said s3cr3t-Passw0rd")
        result = invoke("peek", "--log-level", level, program=failing(error, "peek", monkeypatch))
        assert "s3cr3t" not in result.stderr
        assert "server said ***" in result.stderr

    def test_of_a_group_the_gravest(self) -> None:
        poison = errors.PoisonEvent("bad row", next="look", reason="key")
        group = ExceptionGroup(
            "tasks", [OSError(), ExceptionGroup("more", [errors.KafkaUnavailable("a", next="b"), poison])]
        )
        assert gravest(group) is poison
        first = OSError()
        assert gravest(ExceptionGroup("tasks", [first, ValueError()])) is first

    def test_interrupted(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        result = invoke("peek", program=failing(KeyboardInterrupt(), "peek", monkeypatch))
        assert result.exit_code == 130
        assert not result.stderr.strip()


class TestCommands:
    def test_answer_is_the_exit_code(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def work() -> int:
            return 5

        @click.command(cls=Command, examples=("cdc-outbox doctor",))
        def command() -> int:
            return run(work())

        assert invoke("doctor", program=program_with(command, "doctor", monkeypatch)).exit_code == 5

    def test_start_tells_where_it_listens_unless_told_otherwise(self, here: Path) -> None:
        help_ = " ".join(invoke("start", "--help").stdout.split())
        host, port = DEFAULT_LISTEN
        assert f"metrics and the status page. Default for start: {host}:{port}." in help_

    def test_options_reach_the_settings(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []

        @click.command(cls=Command, examples=("cdc-outbox start",))
        @settings_options("outbox", "http")
        def command() -> None:
            seen.append(load_settings())

        program = program_with(command, "start", monkeypatch)
        args = ("--table", "a", "--table", "b", "--header", "x=y", "--no-http", "--provenance-headers")
        assert invoke("start", *args, program=program).exit_code == 0
        (settings,) = seen
        assert [table.name for table in settings.outbox.tables] == ["a", "b"]
        assert settings.outbox.headers == (("x", "y"),)
        assert settings.outbox.provenance is True
        assert settings.http.listen is None

    def test_password_in_a_flag_is_warned_of(self, here: Path) -> None:
        result = invoke("config", "validate", "--dsn", "postgresql://u:s3cr3t-Passw0rd@h/d")
        assert result.exit_code == 0
        assert "CDC_OUTBOX_DSN or CDC_OUTBOX_DSN_FILE" in result.stderr
        assert "s3cr3t" not in result.output

    def test_head_may_close_the_pipe(self) -> None:
        shell = f"{sys.executable} -m cdc_outbox config schema | head -c 10"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        assert len(done.stdout) == 10
        assert done.stderr == ""


def shown(shell: str) -> subprocess.CompletedProcess[str]:
    """What bash makes of a line in which `cdc-outbox` is ours."""
    line = shell.replace("cdc-outbox", f"{sys.executable} -m cdc_outbox")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


NOWHERE = "--dsn 'host=127.0.0.1 port=9' --no-http"
"""Where no server is."""


class TestStreams:
    """Of the commands only such as need no server: what is shared has to answer for all."""

    @pytest.mark.parametrize(
        "args",
        [
            "config schema",
            "--help",
            "health --help",
            "--version",
            f"health --watch {NOWHERE}",
            f"health {NOWHERE}",
        ],
    )
    def test_without_a_reader_it_ends_as_other_programs_do(self, args: str, here: Path) -> None:
        """With 1, which means a warning, `health` ended."""
        reader, writer = os.pipe()
        os.close(reader)
        words = [sys.executable, "-m", "cdc_outbox", *shlex.split(args)]
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")

    @pytest.mark.parametrize(
        ("args", "code"),
        [
            (f"health {NOWHERE}", 2),
            ("config show", 0),
            ("--help", 0),
            ("nonsense", 2),
            ("health --json --no", 3),
        ],
    )
    @pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
    def test_closed_ones_change_nothing(self, args: str, code: int, closed: str, here: Path) -> None:
        done = shown(f"cdc-outbox {args} {closed}")
        assert done.returncode == code
        assert done.stdout == ""
        assert "unexpected" not in done.stderr

    def test_a_closed_ones_number_is_no_connections(self, here: Path) -> None:
        """Whatever is printed would go there."""
        code = (
            "import socket, sys; from cdc_outbox.cli.streams import open_closed; open_closed();"
            " sys.exit(socket.socket().fileno())"
        )
        done = shown(f"{sys.executable} -c '{code}' <&- >&- 2>&-")
        assert done.returncode > 2

    def test_nobody_can_be_asked_on_a_closed_one(self, here: Path) -> None:
        done = shown(f"cdc-outbox drop {NOWHERE.removesuffix(' --no-http')} <&-")
        assert done.returncode == 2
        assert "no terminal to ask on" in done.stderr

    @pytest.mark.parametrize("args", ["config show", "config schema", "--help"])
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_full_disk_is_told(
        self, args: str, unbuffered: str, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is more than a buffer fails at another place than what is less."""
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        done = shown(f"cdc-outbox {args} >/dev/full")
        assert done.returncode == 1
        assert done.stderr == (
            "error: the output can't be written: No space left on device\n"
            "next: make room where it goes, or send it elsewhere\n"
        )

    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ("cdc-outbox nonsense 2>/dev/full", 2),
            ("cdc-outbox config validate --nonsense 2>/dev/full", 2),
            ("cdc-outbox health --json --nonsense >/dev/full", 3),
            ("cdc-outbox health --json --nonsense 2>/dev/full >/dev/full", 3),
            ("set -o pipefail; cdc-outbox health --json --nonsense | true", 3),
            ("CDC_OUTBOX_LOG_FORMAT=json CDC_OUTBOX_HTTP=nonsense cdc-outbox start 2>/dev/full", 78),
        ],
    )
    def test_an_error_that_nobody_hears_has_its_code(
        self, line: str, code: int, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A supervisor goes by it; the interpreter has one of its own for what it could not write, 120."""
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        done = shown(line)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "ignored" not in done.stderr


class TestConfig:
    def test_show_json(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CDC_OUTBOX_DSN", "postgresql://u:s3cr3t-Passw0rd@h/d")
        monkeypatch.setenv("CDC_OUTBOX_KAFKA_SASL_PASSWORD", "s3cr3t-Passw0rd")
        for flag in (("--json",), ("--format", "json")):
            result = invoke("config", "show", *flag, "--slot", "mine")
            document = json.loads(result.stdout)
            assert document["schema_version"] == 1
            settings = {one["key"]: one for one in document["settings"]}
            assert settings["postgres.slot"] == {
                "key": "postgres.slot",
                "value": "mine",
                "origin": "flag --slot",
            }
            assert settings["postgres.dsn"]["value"] == "***"
            assert settings["kafka.client.sasl.password"]["value"] == "***"
            assert settings["http.listen"] == {
                "key": "http.listen",
                "value": "127.0.0.1:9464",
                "origin": "default",
            }
            assert settings["outbox.key"]["value"] is None
            assert "s3cr3t" not in result.output

    def test_show_text_can_be_pasted_into_the_file(self, here: Path) -> None:
        (here / "cdc-outbox.toml").write_text(
            '[outbox]\ntable = ["a", "b"]\nonly = { bus = "kafka" }\n[kafka.client]\nclient.id = "x"\n',
            encoding="utf-8",
        )
        shown = invoke("config", "show").stdout
        assert "  # file cdc-outbox.toml" in shown
        (here / "copy.toml").write_text(shown, encoding="utf-8")
        again = json.loads(invoke("config", "show", "--json", "--config", "copy.toml").stdout)["settings"]
        first = json.loads(invoke("config", "show", "--json").stdout)["settings"]
        assert [(one["key"], one["value"]) for one in again] == [(one["key"], one["value"]) for one in first]

    def test_validate(self, here: Path) -> None:
        (here / "cdc-outbox.toml").write_text('[postgres]\nslto = "x"\n', encoding="utf-8")
        result = invoke("config", "validate")
        assert result.exit_code == 78
        assert result.stderr.splitlines() == [
            "error: unknown key 'postgres.slto' in cdc-outbox.toml",
            "next: the nearest known key is 'postgres.slot'; write that, or remove the line",
        ]
        (here / "cdc-outbox.toml").unlink()
        assert invoke("config", "validate").exit_code == 0

    def test_schema(self) -> None:
        document = json.loads(invoke("config", "schema").stdout)
        assert document["properties"]["postgres"]["properties"]["slot"]["default"] == "outbox_slot"

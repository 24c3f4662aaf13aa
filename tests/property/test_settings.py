"""Settings under any input: the right value or one of our errors, and never a secret."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from psycopg import pq

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.settings import SETTINGS, Setting, load, parameter
from cdc_outbox.settings.dsn import parse_dsn
from cdc_outbox.settings.secret import Redactor
from cdc_outbox.settings.units import format_duration, format_size, parse_duration, parse_size

NOWHERE = Path("/nonexistent")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
SECRET = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
)


@given(st.integers(0, 10**10))
def test_durations_come_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.integers(0, 2**50))
def test_sizes_come_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.sampled_from([setting for setting in SETTINGS if setting.flag]), TEXT)
def test_a_flag_is_read_or_refused(setting: Setting, text: str) -> None:
    assert setting.flag is not None
    with suppress(CdcOutboxError):
        load("start", {parameter(setting.flag): (text,)}, {}, NOWHERE)


@given(st.sampled_from([name for setting in SETTINGS for name in setting.variables]), TEXT)
def test_a_variable_is_read_or_refused(variable: str, text: str) -> None:
    with suppress(CdcOutboxError):
        load("start", {}, {variable: text}, NOWHERE)


@given(st.from_regex(r"CDC_OUTBOX_(KAFKA_|OUTBOX_|HEALTH_WARNING_|)[A-Z_]{0,20}", fullmatch=True), TEXT)
def test_a_stray_variable_is_a_notice_or_refused(variable: str, text: str) -> None:
    with suppress(CdcOutboxError):
        load("start", {}, {variable: text}, NOWHERE)


TOML_VALUES = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def spell(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{spell(name)} = {spell(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spell, value)) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f")


@given(st.sampled_from(SETTINGS), TOML_VALUES)
def test_a_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, setting: Setting, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(f"{setting.key} = {spell(value)}\n", encoding="utf-8")
    with suppress(CdcOutboxError):
        load("start", {"config": str(path)}, {}, NOWHERE)


@given(
    st.dictionaries(
        st.sampled_from(["host", "user", "password", "dbname", "application_name", "sslpassword"]),
        SECRET,
        max_size=6,
    )
)
def test_words_are_read_as_libpq_reads_them(given_words: dict[str, str]) -> None:
    escaped = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in given_words.items()}
    text = " ".join(f"{name}='{value}'" for name, value in escaped.items())
    dsn = parse_dsn(text)
    theirs = {option.keyword.decode(): option.val for option in pq.Conninfo.parse(dsn.text.encode())}
    for name, value in given_words.items():
        found = theirs[name]
        assert found is not None
        assert found.decode() == value
        assert (value in dsn.secrets) >= (name in ("password", "sslpassword"))


@given(
    st.text("abc:/@?=&%2[]' \\postgresql+,.", max_size=30).map("postgresql://".__add__)
    | st.text("hostuserport= '\\1a", max_size=25)
)
@example("postgresql://[a]b")
def test_what_we_accept_libpq_accepts(text: str) -> None:
    try:
        dsn = parse_dsn(text)
    except ValueError:
        return
    try:
        pq.Conninfo.parse(dsn.text.encode())
    except psycopg.Error as error:
        pytest.fail(f"{text!r} is malformed for libpq: {error}")


@given(SECRET, TEXT, TEXT)
def test_a_secret_never_survives(secret: str, before: str, after: str) -> None:
    assume(len(secret) >= 8)
    clean = Redactor([secret]).redact(before + secret + after)
    assert secret not in clean.replace("***", "") or secret in "***"


@given(st.text("abcdefghijklmnop%@:/?' ", min_size=8, max_size=20))
def test_a_password_never_leaves_through_an_error_or_a_record(password: str) -> None:
    assume(password.strip() == password)
    for dsn in (
        f"postgresql://relay:{password}@db.example.org/app",
        f"host=db.example.org password={password}",
    ):
        try:
            settings = load("start", {"dsn": dsn}, {}, NOWHERE)
            said = [repr(settings), settings.redactor.redact(f"could not connect with {dsn}")]
        except CdcOutboxError as error:
            said = [str(error), error.next]
        assert not [text for text in said if password in text]

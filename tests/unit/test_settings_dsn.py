"""Connection strings, and the redactor. libpq is the judge of what is well formed."""

from __future__ import annotations

import pytest
from psycopg import pq

from cdc_outbox.settings.dsn import WORDS, Dsn, parse_dsn
from cdc_outbox.settings.secret import Redactor


@pytest.mark.parametrize(
    ("given", "text", "secrets"),
    [
        ("", "", ()),
        (" postgresql:// ", "postgresql://", ()),
        ("postgres://u:p%40ss@h:5433/d", "postgres://u:p%40ss@h:5433/d", ("p%40ss", "p@ss")),
        ("postgresql+asyncpg://u:pw@h/d", "postgresql://u:pw@h/d", ("pw",)),
        ("postgresql+asyncpg://h/d?ssl=require", "postgresql://h/d?sslmode=require", ()),
        ("postgresql://a:1,b:2,[::1]:3/d?x=y".replace("x=y", "sslmode=allow"),) * 2 + ((),),
        ("postgresql:///d?host=/run/pg&password=pw", "postgresql:///d?host=/run/pg&password=pw", ("pw",)),
        ("host=h password = 'it\\'s' port=5432", "host=h password = 'it\\'s' port=5432", ("it's",)),
        ("password=a\\ b user=u", "password=a\\ b user=u", ("a b",)),
        ("password=p%E9", "password=p%E9", ("p%E9",)),
        ("service=orders", "service=orders", ()),
        (
            "sslpassword=one oauth_client_secret=two",
            "sslpassword=one oauth_client_secret=two",
            ("one", "two"),
        ),
    ],
)
def test_well_formed(given: str, text: str, secrets: tuple[str, ...]) -> None:
    dsn = parse_dsn(given)
    assert (dsn.text, dsn.secrets) == (text, secrets)
    if "oauth" not in given or pq.version() >= 180_000:  # which is the first that knows the word
        pq.Conninfo.parse(dsn.text.encode())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("mydb", "neither a URL"),
        ("h:5432/d", "neither a URL"),
        ("mysql://h/d", "its scheme is 'mysql'"),
        ("host='h", "a quote in it is not closed"),
        ("host=h extra", "neither a URL"),
        ("postgresql://h:abc/d", "its port is not a number"),
        ("port=0", "its port is not a number"),
        ("postgresql://h:1,i:99999/d", "its port is not a number"),
        ("postgresql://u:p@ss@h/d", "isn't written as %40"),
        ("postgresql://u:1/2@h/d", "isn't written as %40"),
        ("postgresql://u:50%@h/d", "a '%' in it"),
        ("postgresql://h/d%00", "a '%' in it"),
        ("postgresql://[::1/d", "the brackets"),
        ("postgresql://h h/d", "a blank"),
        ("postgresql://h/d?sslmode", "name=value"),
        (
            "postgresql://h/d?sslmod=allow",
            "libpq doesn't know 'sslmod'; the nearest that it knows is 'sslmode'",
        ),
        ("hots=h", "libpq doesn't know 'hots'; the nearest that it knows is 'host'"),
        ("host=\0", "NUL"),
        ("postgresql://u:p%E9@h/d", "UTF-8"),
        ("postgresql://u:p\udce9@h/d", "UTF-8"),
        ("password=p\udce9", "UTF-8"),
    ],
)
def test_malformed(given: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_dsn(given)


def test_all_parameters_of_the_installed_libpq_are_known() -> None:
    assert {option.keyword.decode() for option in pq.Conninfo.get_defaults()} <= WORDS


def test_a_dsn_does_not_print_itself() -> None:
    assert "pw" not in repr(parse_dsn("password=pw"))
    assert repr(Dsn("x", (), ())) == "Dsn(***)"


class TestRedactor:
    def test_values(self) -> None:
        redact = Redactor(["hunter22"], whole=["host=h password=hunter22"]).redact
        assert redact('bad DSN "host=h password=hunter22"') == 'bad DSN "***"'
        assert redact("got hunter22!") == "got ***!"
        assert redact("nothing here") == "nothing here"

    def test_short_secrets_are_masked_as_words(self) -> None:
        redact = Redactor(["app"]).redact
        assert redact("app application app.") == "*** application ***."

    def test_the_longest_first(self) -> None:
        assert Redactor(["secret-secret", "secret-secret-more"]).redact("secret-secret-more") == "***"

    def test_as_repr_writes_it(self) -> None:
        secret = 'it\'s\n"quoted"'
        assert Redactor([secret]).redact(f"value {secret!r} and {secret}").count("***") == 2

    def test_a_password_that_is_also_the_users_name(self) -> None:
        redact = Redactor(["postgres"], ["postgres"]).redact
        assert redact('role "postgres" does not exist') == 'role "postgres" does not exist'
        assert redact("postgresql://postgres:postgres@h/d") == "postgresql://postgres:***@h/d"
        assert redact("user=postgres password=postgres") == "user=postgres password=***"

    @pytest.mark.parametrize("secret", ["relay", "relay-secret", "kafka"])
    def test_a_path_is_no_secret_whatever_words_are_in_it(self, secret: str) -> None:
        path = f"/etc/kafka/{secret}.pem"
        redact = Redactor([secret], paths=[path, "/", "relative.pem", secret]).redact
        assert redact(f"ssl.key.location is {path}, which can't be read") == (
            f"ssl.key.location is {path}, which can't be read"
        )
        assert redact(f"see {path}. {secret} /var/{secret} {path}.old") == (
            f"see {path}. *** /var/*** {path.replace(secret, '***')}.old"
        )
        assert redact(f"sasl.password={path}") == "sasl.password=***"

    def test_a_secret_that_looks_like_a_path_is_one(self) -> None:
        assert Redactor(["/etc/x"], paths=["/etc/x"]).redact("is /etc/x") == "is ***"

    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("postgresql://u:unknown@h/d", "postgresql://u:***@h/d"),
            ("kafka://u:a@b@h", "kafka://u:***@h"),
            ("password='a b' user=u", "password=*** user=u"),
            ("sasl.password=abc, next", "sasl.password=***, next"),
            ("PASSWORD = abc", "PASSWORD = ***"),
            ("http://h:9464/livez", "http://h:9464/livez"),
            ("postgresql://user:password@host/db", "postgresql://user:password@host/db"),
        ],
    )
    def test_shapes_of_secrets_that_nobody_told(self, text: str, clean: str) -> None:
        assert Redactor().redact(text) == clean

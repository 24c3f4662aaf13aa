"""Where settings come from, which source wins, and what is said about a wrong value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_outbox.errors import CdcOutboxError, ConfigError, UsageError
from cdc_outbox.event import TableName
from cdc_outbox.settings import SETTINGS, Settings, load, parameter
from cdc_outbox.settings.entries import Entries

Load = Callable[..., Settings]


@pytest.fixture
def load_with(tmp_path: Path) -> Load:
    """Load with flags as keywords, and perhaps the environment and the text of a file."""

    def load_with(
        environ: dict[str, str] | None = None, file: str = "", command: str = "start", **flags: object
    ) -> Settings:
        if file:
            (tmp_path / "cdc-outbox.toml").write_text(file, encoding="utf-8")
        return load(command, flags, environ or {}, tmp_path)

    return load_with


class TestPrecedence:
    FILE = '[postgres]\nslot = "from_file"\n'

    def test_defaults(self, load_with: Load) -> None:
        settings = load_with()
        assert settings.postgres.slot == "outbox_slot"
        assert settings.postgres.publication == "outbox_pub"
        assert settings.outbox.tables == (TableName("public", "outbox"),)
        assert settings.kafka.bootstrap_servers == "localhost:9092"
        assert settings.limits.inflight_bytes == 32 * 1024 * 1024
        assert settings.retry.initial == 0.2
        assert settings.origins["postgres.slot"] == "default"
        assert settings.log.format is None
        assert not settings.notices

    def test_file_before_default(self, load_with: Load) -> None:
        settings = load_with(file=self.FILE)
        assert settings.postgres.slot == "from_file"
        assert settings.origins["postgres.slot"] == "file cdc-outbox.toml"

    def test_environment_before_file(self, load_with: Load) -> None:
        settings = load_with({"CDC_OUTBOX_POSTGRES_SLOT": "from_env"}, self.FILE)
        assert settings.postgres.slot == "from_env"
        assert settings.origins["postgres.slot"] == "environment CDC_OUTBOX_POSTGRES_SLOT"

    def test_short_name_before_long_name(self, load_with: Load) -> None:
        settings = load_with({"CDC_OUTBOX_POSTGRES_SLOT": "long", "CDC_OUTBOX_SLOT": "short"})
        assert settings.postgres.slot == "short"
        assert settings.origins["postgres.slot"] == "environment CDC_OUTBOX_SLOT"

    def test_flag_before_environment(self, load_with: Load) -> None:
        settings = load_with({"CDC_OUTBOX_SLOT": "from_env"}, self.FILE, slot="from_flag")
        assert settings.postgres.slot == "from_flag"
        assert settings.origins["postgres.slot"] == "flag --slot"

    def test_empty_variable_is_not_set(self, load_with: Load) -> None:
        assert load_with({"CDC_OUTBOX_SLOT": ""}, self.FILE).postgres.slot == "from_file"

    def test_entries_of_a_table_are_merged_one_by_one(self, load_with: Load) -> None:
        settings = load_with(
            {"CDC_OUTBOX_KAFKA_CLIENT_ID": "env", "CDC_OUTBOX_KAFKA_BATCH_SIZE": "2"},
            '[kafka.client]\nclient.id = "file"\ncompression.type = "gzip"\n',
            kafka=("batch.size=3",),
        )
        assert settings.kafka.client == {"client.id": "env", "compression.type": "gzip", "batch.size": "3"}
        assert settings.origins["kafka.client.client.id"] == "environment CDC_OUTBOX_KAFKA_CLIENT_ID"
        assert settings.origins["kafka.client.compression.type"] == "file cdc-outbox.toml"
        assert settings.origins["kafka.client.batch.size"] == "flag --kafka"

    def test_every_setting_has_its_long_variable(self, load_with: Load) -> None:
        for setting in SETTINGS:
            variable = "CDC_OUTBOX_" + setting.key.upper().replace(".", "_")
            settings = load_with({variable: setting.kind.example})
            origin = f"environment {variable}"
            assert any(one.key.startswith(setting.key) and one.origin == origin for one in settings.shown), (
                variable
            )
            assert not any("unknown" in notice.text for notice in settings.notices)

    def test_every_flag_is_read(self, load_with: Load) -> None:
        for setting in SETTINGS:
            if setting.flag is None:
                continue
            given: object = True if setting.switch else setting.kind.example
            settings = load_with(**{parameter(setting.flag): (given,) if setting.repeated else given})
            origin = f"flag {setting.flag}"
            assert any(one.key.startswith(setting.key) and one.origin == origin for one in settings.shown), (
                origin
            )


class TestConfigFile:
    def test_named_by_flag_before_variable(self, tmp_path: Path) -> None:
        (tmp_path / "flag.toml").write_text('[postgres]\nslot = "flag"\n', encoding="utf-8")
        (tmp_path / "env.toml").write_text('[postgres]\nslot = "env"\n', encoding="utf-8")
        environ = {"CDC_OUTBOX_CONFIG": "env.toml"}
        assert load("start", {}, environ, tmp_path).postgres.slot == "env"
        settings = load("start", {"config": "flag.toml"}, environ, tmp_path)
        assert settings.postgres.slot == "flag"
        assert settings.origins["postgres.slot"] == "file flag.toml"

    def test_missing(self, load_with: Load) -> None:
        with pytest.raises(ConfigError, match=r"'nowhere\.toml' can't be read: No such file"):
            load_with(config="nowhere.toml")

    def test_a_directory(self, load_with: Load, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="can't be read"):
            load_with(config=str(tmp_path))

    def test_not_toml(self, load_with: Load) -> None:
        with pytest.raises(ConfigError, match=r"isn't TOML: .*line 2"):
            load_with(file="[postgres]\nslot = \n")

    @pytest.mark.parametrize("line", ["dsn = postgresql://a:hidden@b/c", "slot = outbox", " slot=/x # note"])
    def test_text_without_quotes(self, load_with: Load, line: str) -> None:
        with pytest.raises(ConfigError, match=r"isn't TOML: .*line 2") as told:
            load_with(file=f"[postgres]\n{line}\n")
        name = line.partition("=")[0].strip()
        assert (
            told.value.next
            == f'correct cdc-outbox.toml at that place: text stands in quotes, as in {name} = "…"'
        )

    @pytest.mark.parametrize("line", ['slot = "x', 'slot = "x" y', "slot = [outbox]", "slot ="])
    def test_other_faults_of_toml_say_nothing_of_quotes(self, load_with: Load, line: str) -> None:
        with pytest.raises(ConfigError, match="isn't TOML") as told:
            load_with(file=f"[postgres]\n{line}\n")
        assert told.value.next == "correct cdc-outbox.toml at that place"

    def test_not_utf8(self, load_with: Load, tmp_path: Path) -> None:
        (tmp_path / "cdc-outbox.toml").write_bytes(b'[postgres]\nslot = "\xff"\n')
        with pytest.raises(ConfigError, match="isn't UTF-8"):
            load_with()

    @pytest.mark.parametrize(
        ("file", "key", "near"),
        [
            ('[postgres]\nslto = "a"\n', "postgres.slto", "postgres.slot"),
            ('slot = "a"\n', "slot", "postgres.slot"),
            ('[kafak]\npartitioner = "crc32"\n', "kafak", "kafka"),
            ("[kafka.topics]\npartition = 3\n", "kafka.topics.partition", "kafka.topics.partitions"),
            (
                '[kafka.client]\nsecurity.protcol = "SSL"\n',
                "kafka.client.security.protcol",
                "kafka.client.security.protocol",
            ),
            (
                '[outbox.columns]\naggregateid = "a"\n',
                "outbox.columns.aggregateid",
                "outbox.columns.aggregate_id",
            ),
        ],
    )
    def test_unknown_key_names_the_nearest(self, load_with: Load, file: str, key: str, near: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_with(file=file)
        assert str(caught.value) == f"unknown key {key!r} in cdc-outbox.toml"
        assert f"{near!r}" in caught.value.next
        assert caught.value.exit_code == 78

    @pytest.mark.parametrize(
        ("file", "message", "example"),
        [
            ("postgres = 1\n", "postgres in cdc-outbox.toml is an integer", "[postgres]"),
            (
                "[postgres]\nslot = 1\n",
                "postgres.slot in cdc-outbox.toml is '1': it is an integer",
                'slot = "outbox_slot"',
            ),
            (
                "[limits]\ndrain = 20\n",
                "limits.drain in cdc-outbox.toml is '20': it is an integer",
                'drain = "20s"',
            ),
            ('[kafka.topics]\ncreate = "yes"\n', "is 'yes': it is text, not true or false", "create = true"),
            ("[kafka.topics]\npartitions = 0\n", "between 1 and 100000, or -1", "partitions = 12"),
            (
                "[outbox]\ntable = []\n",
                "it is not a table's name, or a list of names",
                'table = "public.outbox"',
            ),
            ("[outbox]\nheader = 1\n", "it has to be a table of NAME = COLUMN", "[outbox.header]"),
            (
                "[outbox.header]\na = 1\n",
                "outbox.header.a in cdc-outbox.toml is '1': it is an integer",
                "a = ",
            ),
            ("[outbox.only]\na = []\n", "the list of accepted values is empty", "a = "),
            ('[outbox.only]\na = ["b", "\\u0000"]\n', "no text of PostgreSQL's holds a zero byte", "a = "),
            ("[log]\nlevel = 2024-01-01\n", "it is a date or time", 'level = "debug"'),
        ],
    )
    def test_malformed_value(self, load_with: Load, file: str, message: str, example: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_with(file=file)
        assert message in str(caught.value)
        assert example in caught.value.next


class TestMalformed:
    FLAGS = (
        ("slot", "Bad", "--slot is 'Bad': a slot's name is made of"),
        ("slot", "x" * 56, "it has 56 bytes; at most 55 leave room for '<slot>_pending'"),
        ("publication", "p" * 64, "--publication is"),
        ("table", ("a.b.c",), "--table is 'a.b.c': it is not a table's name"),
        ("http", "localhost", "--http is 'localhost': an address is HOST:PORT"),
        ("http", "localhost:70000", "an address is HOST:PORT"),
        ("drain", "20", "--drain is '20': a duration is a number and a unit"),
        ("drain", "2h", "it must be between 0s and 1h"),
        ("inflight_bytes", "32 MiBi", "a size is a number"),
        ("inflight_bytes", "1B", "it must be between 64KiB and 16GiB"),
        ("max_events_per_second", "0", "it must be a positive number, or none"),
        ("max_events_per_second", "many", "it must be a positive number, or none"),
        ("partitioner", "md5", "it must be murmur2 or crc32"),
        ("on_poison", "skip", "it must be stop or block"),
        ("log_level", "loud", "it must be debug, info, warning or error"),
        ("bootstrap_servers", "kafka://a", "it is not a list of HOST:PORT"),
        ("bootstrap_servers", "me:pw@a:9092", "--bootstrap-servers: there is an '@' in it"),
        ("bootstrap_servers", "a:9092,,b:9092", "it is not a list of HOST:PORT"),
        ("bootstrap_servers", "a..b:9092", "a host's name has parts of 1 to 63 letters"),
        ("bootstrap_servers", f"{'a' * 64}.example.org:9092", "a host's name has parts of 1 to 63 letters"),
        ("key", "payload:order_id", "what follows 'payload:' is not a JSON pointer"),
        ("key", " ", "it is empty"),
        ("column", ("payload",), "--column is 'payload': it is not of the form ROLE=NAME"),
        ("column", ("pyaload=a",), "--column: unknown name 'pyaload'"),
        ("header", ("=a",), "the name is empty"),
        ("warning", ("Bad-Signal=1",), "unknown name 'Bad-Signal'"),
        ("kafka", ("batch.size=many",), "--kafka batch.size is 'many': it must be a whole number"),
        ("kafka", ("security.protcol=SSL",), "--kafka: unknown name 'security.protcol'"),
        ("kafka", ("sasl.oauthbearer.token.provider=x",), "module:callable"),
    )

    @pytest.mark.parametrize(("flag", "value", "message"), FLAGS)
    def test_flag_is_wrong_usage(self, load_with: Load, flag: str, value: object, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            load_with(**{flag: value})
        assert message in str(caught.value)
        assert caught.value.exit_code == 2
        assert caught.value.next

    def test_variable_is_wrong_configuration(self, load_with: Load) -> None:
        with pytest.raises(ConfigError) as caught:
            load_with({"CDC_OUTBOX_SLOT": "Bad"})
        assert str(caught.value).startswith("CDC_OUTBOX_SLOT is 'Bad': a slot's name")
        assert caught.value.next == "write it like this: CDC_OUTBOX_SLOT=outbox_slot"
        assert caught.value.exit_code == 78

    @pytest.mark.parametrize(
        ("flag", "value", "instead"),
        [
            ("on_poison", "dead-letter", "stop or block"),
            ("on_poison", "park", "stop or block"),
            ("profile", "debezium", "auto, none, masstransit"),
        ],
    )
    def test_what_comes_later_says_so(self, load_with: Load, flag: str, value: str, instead: str) -> None:
        with pytest.raises(ConfigError, match="comes with a later version") as caught:
            load_with(**{flag: value})
        assert caught.value.next.startswith(f"choose {instead}")

    def test_retry_bounds_contradict_each_other(self, load_with: Load) -> None:
        with pytest.raises(ConfigError, match=r"retry\.max is 2s, less than retry\.initial, which is 5s"):
            load_with(file='[retry]\ninitial = "5s"\n')

    def test_flag_and_its_opposite(self, load_with: Load) -> None:
        with pytest.raises(UsageError, match="--http and --no-http contradict"):
            load_with(http="localhost:1", no_http=True)

    def test_a_name_that_is_like_none_gets_all_of_them(self, load_with: Load) -> None:
        with pytest.raises(UsageError) as like_one:
            load_with(warning=("retaned=5%",))
        assert like_one.value.next == "the nearest known name is 'retained'; write that, or leave it out"
        with pytest.raises(UsageError) as like_none:
            load_with(warning=("foo=3",))
        assert like_none.value.next.startswith("the known names are retained, retained_bytes, ")
        with pytest.raises(UsageError) as of_many:
            load_with(kafka=("foo=3",))
        assert of_many.value.next == "no known name is like it; all of them are in: cdc-outbox config schema"
        with pytest.raises(UsageError) as like_one_of_many:
            load_with(kafka=("acsk=all",))
        assert "the nearest known name is 'acks'" in like_one_of_many.value.next

    def test_a_password_in_the_brokers_addresses_is_not_quoted(self, load_with: Load) -> None:
        servers = "me:hunter2@kafka:9092"
        with pytest.raises(UsageError) as by_flag:
            load_with(bootstrap_servers=servers)
        with pytest.raises(ConfigError) as by_variable:
            load_with({"KAFKA_BOOTSTRAP_SERVERS": servers})
        with pytest.raises(ConfigError) as by_file:
            load_with(file=f'[kafka]\nbootstrap_servers = ["other:9092", "{servers}"]\n')
        for caught in (by_flag, by_variable, by_file):
            said = f"{caught.value} {caught.value.next}"
            assert "hunter2" not in said
            assert "sasl.username and sasl.password" in said

    def test_long_values_are_cut(self, load_with: Load) -> None:
        with pytest.raises(UsageError) as caught:
            load_with(partitioner="x" * 1000)
        assert len(str(caught.value)) < 200


class TestTables:
    def test_flag_repeated(self, load_with: Load) -> None:
        tables = load_with(table=("outbox", '"Big"."Box"')).outbox.tables
        assert tables == (TableName("public", "outbox"), TableName("Big", "Box"))

    def test_variable_with_commas(self, load_with: Load) -> None:
        tables = load_with({"CDC_OUTBOX_TABLE": 'a, "b,c"'}).outbox.tables
        assert tables == (TableName("public", "a"), TableName("public", "b,c"))

    @pytest.mark.parametrize("spelled", ['"orders.Outbox"', '["orders.Outbox"]'])
    def test_file(self, load_with: Load, spelled: str) -> None:
        assert load_with(file=f"[outbox]\ntable = {spelled}\n").outbox.tables == (
            TableName("orders", "outbox"),
        )


class TestEntries:
    def test_flags(self, load_with: Load) -> None:
        outbox = load_with(
            column=("payload=body", "ID=key=1"),
            header=("tenant=tenant_id", "x=y"),
            only=("bus=kafka", "bus=Kafka", "region=eu"),
        ).outbox
        assert outbox.columns == {"payload": "body", "id": "key=1"}
        assert outbox.headers == (("tenant", "tenant_id"), ("x", "y"))
        assert outbox.only == {"bus": ("kafka", "Kafka"), "region": ("eu",)}

    def test_file(self, load_with: Load) -> None:
        outbox = load_with(
            file='[outbox]\nonly = { bus = "kafka", shard = [1, 2], live = true }\nstatic_headers = { a = 1 }\n'
        ).outbox
        assert outbox.only == {"bus": ("kafka",), "shard": ("1", "2"), "live": ("true",)}
        assert outbox.static_headers == (("a", "1"),)

    def test_variable_of_the_whole(self, load_with: Load) -> None:
        outbox = load_with(
            {
                "CDC_OUTBOX_OUTBOX_HEADER": "a=b,c=d",
                "CDC_OUTBOX_OUTBOX_ONLY": '{"bus": ["a,b", "c"]}',
                "CDC_OUTBOX_OUTBOX_COLUMNS": "payload=whole,id=whole",
                "CDC_OUTBOX_OUTBOX_COLUMNS_PAYLOAD": "single",
            }
        ).outbox
        assert outbox.headers == (("a", "b"), ("c", "d"))
        assert outbox.only == {"bus": ("a,b", "c")}
        assert outbox.columns == {"payload": "single", "id": "whole"}

    def test_broken_json(self, load_with: Load) -> None:
        with pytest.raises(ConfigError, match=r"^CDC_OUTBOX_OUTBOX_ONLY: it begins as a JSON object"):
            load_with({"CDC_OUTBOX_OUTBOX_ONLY": '{"bus": '})

    def test_thresholds_are_kept(self, load_with: Load) -> None:
        health = load_with(
            {"CDC_OUTBOX_HEALTH_CRITICAL_RETAINED_BYTES": "5GiB"}, warning=("retained_bytes=1GiB",)
        ).health
        assert health.warning == {"retained_bytes": "1GiB"}
        assert health.critical == {"retained_bytes": "5GiB"}

    def test_topic_settings(self, load_with: Load) -> None:
        topics = load_with(
            {"CDC_OUTBOX_KAFKA_TOPICS_CONFIG_CLEANUP_POLICY": "compact"},
            "[kafka.topics]\nreplication_factor = 3\nconfig.retention.ms = 5\n",
            create_topics=True,
        ).kafka.topics
        assert topics.create is True
        assert (topics.partitions, topics.replication_factor) == (1, 3)
        assert topics.config == {"retention.ms": "5", "cleanup.policy": "compact"}


class TestHttp:
    def test_on_for_start_only(self, load_with: Load) -> None:
        assert load_with(command="start").http.listen == ("127.0.0.1", 9464)
        assert load_with(command="peek").http.listen is None
        assert not load_with(command="start").http.explicit

    def test_explicit(self, load_with: Load) -> None:
        http = load_with({"CDC_OUTBOX_HTTP": "[::1]:0"}).http
        assert http.listen == ("::1", 0)
        assert http.explicit

    @pytest.mark.parametrize("off", [{"no_http": True}, {"http": "off"}])
    def test_off(self, load_with: Load, off: dict[str, object]) -> None:
        assert load_with(file='[http]\nlisten = "0.0.0.0:1"\n', **off).http.listen is None

    def test_token_file_starts_at_the_working_directory(self, load_with: Load, tmp_path: Path) -> None:
        assert load_with({"CDC_OUTBOX_HTTP_TOKEN_FILE": "token"}).http.token_file == tmp_path / "token"


class TestUnknownVariables:
    def test_named_with_the_nearest(self, load_with: Load) -> None:
        (notice,) = load_with({"CDC_OUTBOX_SLOTT": "x"}).notices
        assert notice.text == "unknown environment variable"
        assert notice.fields == {"variable": "CDC_OUTBOX_SLOTT", "nearest": "CDC_OUTBOX_SLOT"}

    def test_client_option(self, load_with: Load) -> None:
        (notice,) = load_with({"CDC_OUTBOX_KAFKA_SECURTY_PROTOCOL": "SSL"}).notices
        assert notice.fields["nearest"] == "CDC_OUTBOX_KAFKA_SECURITY_PROTOCOL"

    def test_kubernetes_and_ours_are_ignored(self, load_with: Load) -> None:
        environ = {
            "CDC_OUTBOX_SERVICE_HOST": "10.0.0.1",
            "CDC_OUTBOX_SERVICE_PORT_HTTP": "1",
            "CDC_OUTBOX_PORT": "tcp://10.0.0.1:1",
            "CDC_OUTBOX_PORT_9464_TCP_ADDR": "10.0.0.1",
            "CDC_OUTBOX_TEST_SERVERS": "x",
            "CDC_OUTBOX_FAULT": "x",
        }
        assert not load_with(environ).notices


class TestOtherToolsNames:
    def test_kafka(self, load_with: Load) -> None:
        environ = {"KAFKA_BOOTSTRAP_SERVERS": "theirs:1", "CDC_OUTBOX_BOOTSTRAP_SERVERS": "ours"}
        assert load_with(environ).kafka.bootstrap_servers == "ours:9092"
        del environ["CDC_OUTBOX_BOOTSTRAP_SERVERS"]
        assert load_with(environ).kafka.bootstrap_servers == "theirs:1"

    def test_database_url(self, load_with: Load) -> None:
        environ = {"DATABASE_URL": "postgresql+asyncpg://u@h/d"}
        settings = load_with(environ)
        assert settings.postgres.dsn == "postgresql://u@h/d"
        assert settings.postgres.admin_dsn == "postgresql://u@h/d"
        assert settings.origins["postgres.dsn"] == "environment DATABASE_URL"
        assert load_with(environ | {"CDC_OUTBOX_DSN": "host=ours"}).postgres.dsn == "host=ours"

    def test_database_url_of_another_database(self, load_with: Load) -> None:
        with pytest.raises(ConfigError, match="DATABASE_URL: its scheme is 'mysql', not 'postgresql'"):
            load_with({"DATABASE_URL": "mysql://u:secret@h/d"})

    def test_libpq_variables_are_an_origin(self, load_with: Load) -> None:
        settings = load_with({"PGHOST": "h", "PGUSER": "u"})
        assert settings.postgres.dsn == ""
        assert settings.origins["postgres.dsn"] == "environment PGHOST, PGUSER"


class TestSecretFiles:
    def test_dsn(self, load_with: Load, tmp_path: Path) -> None:
        (tmp_path / "dsn").write_text("postgresql://u:pw@h/d\n", encoding="utf-8")
        settings = load_with({"CDC_OUTBOX_DSN_FILE": str(tmp_path / "dsn")})
        assert settings.postgres.dsn == "postgresql://u:pw@h/d"
        assert settings.origins["postgres.dsn"] == "environment CDC_OUTBOX_DSN_FILE"
        assert not settings.notices

    def test_kafka_password(self, load_with: Load, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("hunter22\r\n", encoding="utf-8")
        settings = load_with({"CDC_OUTBOX_KAFKA_SASL_PASSWORD_FILE": "password"})
        assert settings.kafka.client["sasl.password"] == "hunter22"

    @pytest.mark.parametrize("variable", ["CDC_OUTBOX_DSN", "CDC_OUTBOX_KAFKA_SASL_PASSWORD"])
    def test_both(self, load_with: Load, tmp_path: Path, variable: str) -> None:
        (tmp_path / "secret").write_text("host=x", encoding="utf-8")
        with pytest.raises(ConfigError, match=f"both {variable} and {variable}_FILE are set"):
            load_with({variable: "host=x", f"{variable}_FILE": "secret"})

    def test_missing(self, load_with: Load) -> None:
        with pytest.raises(
            ConfigError, match="CDC_OUTBOX_DSN_FILE names the file 'gone', which can't be read"
        ):
            load_with({"CDC_OUTBOX_DSN_FILE": "gone"})

    def test_empty(self, load_with: Load, tmp_path: Path) -> None:
        (tmp_path / "dsn").write_text("\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="which is empty"):
            load_with({"CDC_OUTBOX_DSN_FILE": "dsn"})

    def test_not_text(self, load_with: Load, tmp_path: Path) -> None:
        (tmp_path / "dsn").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="isn't UTF-8 text"):
            load_with({"CDC_OUTBOX_DSN_FILE": "dsn"})


class TestSecretsStayIn:
    SECRET = "s3cr3t-Passw0rd"

    def test_records_and_origins(self, load_with: Load) -> None:
        settings = load_with(
            {
                "CDC_OUTBOX_KAFKA_SASL_PASSWORD": self.SECRET,
                "CDC_OUTBOX_ADMIN_DSN": f"password={self.SECRET}",
            },
            dsn=f"postgresql://u:{self.SECRET}@h/d",
        )
        assert settings.kafka.client["sasl.password"] == self.SECRET
        for shown in (
            repr(settings),
            str(settings),
            str(settings.kafka.client),
            str(settings.shown),
            str(settings.origins),
        ):
            assert self.SECRET not in shown
        assert {one.key: one.value for one in settings.shown}["postgres.dsn"] == "***"

    def test_password_in_a_flag_is_warned_of(self, load_with: Load) -> None:
        notices = load_with(
            dsn=f"host=h password={self.SECRET}", kafka=(f"sasl.password={self.SECRET}",)
        ).notices
        uses = [notice.fields["use"] for notice in notices if "password in a flag" in notice.text]
        assert uses == [
            "CDC_OUTBOX_DSN or CDC_OUTBOX_DSN_FILE",
            "CDC_OUTBOX_KAFKA_SASL_PASSWORD or CDC_OUTBOX_KAFKA_SASL_PASSWORD_FILE",
        ]

    def test_dsn_without_password_is_not_warned_of(self, load_with: Load) -> None:
        assert not load_with(dsn="postgresql://u@h/d").notices

    @pytest.mark.parametrize(
        "flags",
        [
            {"dsn": f"u:{SECRET}@h/d"},
            {"dsn": f"postgresql://u:{SECRET}/{SECRET}@h/d"},
            {"dsn": f"postgresql://u:{SECRET}@@h/d"},
            {"dsn": f"mysql://u:{SECRET}@h/d"},
            {"dsn": f"host=h password='{SECRET}"},
            {"admin_dsn": f"host=h {SECRET}=1"},
            {"kafka": (f"sasl.password:{SECRET}",)},
            {"kafka": (f"sasl.pasword={SECRET}",)},
            {"kafka": (f"sasl.jaas.config=x password={SECRET};",)},
        ],
    )
    def test_complaints(self, load_with: Load, flags: dict[str, object]) -> None:
        with pytest.raises(CdcOutboxError) as caught:
            load_with(**flags)
        assert self.SECRET not in str(caught.value)
        assert self.SECRET not in caught.value.next


def test_declarations_are_unambiguous() -> None:
    flags = [flag for setting in SETTINGS for flag in (setting.flag, setting.off) if flag]
    variables = [name for setting in SETTINGS for name in setting.variables]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))


def test_defaults_are_values_that_may_be_given() -> None:
    for setting in SETTINGS:
        if not isinstance(setting.kind, Entries) and setting.default is not None and not setting.secret:
            assert setting.kind.toml(setting.kind.show(setting.default)) == setting.default, setting.key

"""The status page of a real relay in a real browser, while its servers are well, go, and come back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.sql import SQL
from selenium.webdriver.common.keys import Keys

from tests.integration.conftest import Database
from tests.servers.browser import PHONE, WIDE, Browser
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


def opened(browser: Browser, relay: RelayProcess) -> Browser:
    """The browser on the relay's page."""
    browser.open(f"http://127.0.0.1:{relay.http_port}/")
    return browser


@pytest.mark.patient
def test_a_relay_that_delivers_and_is_killed(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], browser: Browser
) -> None:
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    relay = pipeline.start()
    page = opened(browser, relay)
    page.sees("Streaming", "#state")
    page.sees("No event published since the start.", "#topics")
    pipeline.writer().write(30)
    page.sees(f"{pipeline.topic}\n30", "#topics")
    page.sees("all that came is confirmed", "#waiting")
    page.sees("kept", "#loss")
    page.find("main > details > summary").click()
    page.sees("the slot is there and usable", "#checks")
    page.sees("public.outbox", "#facts")
    # The history's first points are ten seconds apart.
    eventually(
        lambda: "now, at most" in (page.find("#lags > svg").get_attribute("aria-label") or ""),
        PATIENCE,
        relay.text,
    )
    for size in (PHONE, WIDE):
        page.look(size)
        assert page.run("return document.documentElement.scrollWidth") <= size[0]
    assert not page.complaints()
    relay.kill()
    page.sees("The relay has not answered since", "#lost-title")
    assert page.title.startswith("No answer")
    assert pipeline.topic in page.text("#topics")


@pytest.mark.patient
def test_a_broker_that_goes_and_comes_back(
    outbox: Database, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline], browser: Browser
) -> None:
    pipeline = make_pipeline(outbox, own_kafka).prepare().init()
    page = opened(browser, pipeline.start())
    page.sees("Streaming", "#state")
    own_kafka.kill()
    pipeline.writer().write(5)
    page.sees("Next:", "#errors")
    page.sees("Held", "#state")
    page.sees("Kafka", "#reason")
    assert page.find(".sign .warning, .sign .critical").is_displayed()
    eventually(lambda: "Nothing" not in page.text("#waiting"), PATIENCE, page.text)
    own_kafka.start()
    page.sees(f"{pipeline.topic}\n5", "#topics")
    page.sees("Streaming", "#state")


@pytest.mark.patient
def test_a_slot_near_its_limit_for_somebody_elses_transaction(
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
    browser: Browser,
) -> None:
    server = make_postgres(settings={"max_slot_wal_keep_size": "64MB"})
    pipeline = make_pipeline(server, kafka).prepare().init()
    relay = pipeline.start()
    page = opened(browser, relay)
    page.sees("of 64 MiB kept", "#loss")
    pipeline.sql(SQL("create table other (filling text)"))
    with server.connect(pipeline.dbname) as forgetful, server.connect(pipeline.dbname) as busy:
        forgetful.autocommit = False
        forgetful.execute("insert into other values ('forgotten')")
        pid = forgetful.info.backend_pid

        def critical() -> bool:
            if page.run("return document.body.dataset.level") == "critical":
                return True
            if page.run("return document.querySelector('#lags text.limit') === null"):
                busy.execute(
                    "insert into other select repeat(md5(n::text), 60) from generate_series(1, 3000) n"
                )
                busy.execute("select pg_log_standby_snapshot()")
            return False

        eventually(critical, PATIENCE, page.text)
        page.sees("Critical", "#verdict-title")
        page.sees(f"What holds WAL back: pid {pid}", "#verdict")
        page.sees(f"select pg_terminate_backend({pid});", "#next-step code")
        assert page.text("#state") == "Streaming"


def test_a_token_that_a_relay_wants(
    outbox: Database,
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
    browser: Browser,
    tmp_path: Path,
) -> None:
    token = secrets.token_hex(16)
    file = tmp_path / "token"
    file.write_text(token + "\n")
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    relay = pipeline.start(env={"CDC_OUTBOX_HTTP_TOKEN_FILE": str(file)})
    page = opened(browser, relay)
    page.sees("This relay asks for a token", "#door")
    page.find("#token").send_keys("not this one", Keys.ENTER)
    page.find("#token").clear()
    page.find("#token").send_keys("wrong", Keys.ENTER)
    page.sees("The relay refused that token.", "#refused")
    page.find("#token").send_keys(token, Keys.ENTER)
    page.sees("Streaming", "#state")
    page.reload()
    page.sees("Streaming", "#state")

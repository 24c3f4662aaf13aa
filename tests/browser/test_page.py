"""The status page in a real browser: what a person reads in each situation, and what it never does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import scenes
from tests.browser.stage import Stage
from tests.servers.browser import PHONE, WIDE, Browser
from tests.servers.wait import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def show(browser: Browser, stage: Stage):
    """Play a status and open the page on it."""

    def opened(status: dict[str, Any]) -> Browser:
        stage.play(status)
        browser.open(stage.address)
        browser.sees("live", "#live")
        return browser

    return opened


def test_a_relay_that_is_well(show):
    page = show(scenes.healthy())
    assert page.text("#state") == "Streaming"
    assert page.text("#reason") == "Events reach Kafka as they are committed."
    assert page.text("#since") == "for 3 d 5 h"
    assert page.text("#loss") == "Time to loss\nNot in sight\n18 MiB of 4 GiB kept"
    assert page.text("#waiting") == "Oldest waiting\nNothing\nall that came is confirmed"
    assert page.text("#throughput") == "Throughput\n432/s\n118,203,902 since the start"
    assert page.text("#latency") == "Latency\n2.1 ms\nmedian; 99 % within 8.3 ms"
    assert page.text("#topics").splitlines()[:2] == ["outbox.event.order", "71,530,219"]
    assert page.text("#errors") == "None since the start."
    assert not page.find("#verdict").is_displayed()
    assert page.text("#culprit") == ""
    assert page.title == "Streaming · outbox_slot"
    assert page.find(".sign .ok").is_displayed()


def test_the_broker_is_away(show):
    page = show(scenes.broker_away())
    assert page.text("#state") == "Held"
    assert page.text("#reason").startswith("No Kafka broker answers at kafka-1.example.org:9092")
    assert page.text("#verdict-title") == "Warning"
    assert "The oldest commit without an acknowledgement is 4m old" in page.text("#findings")
    assert page.text("#next-step").startswith("Next: see what the relay says")
    assert page.text("#waiting") == "Oldest waiting\n4 min\n61,440 events, 32 MiB on the way"
    assert page.text("#latency") == "Latency\n\N{EN DASH}\nno event lately"
    first, second = page.text("#errors ol").split("\n")[::2]
    assert "no Kafka broker answers" in first
    assert "PostgreSQL ended the connection" in second
    assert page.title == "Warning: Held · outbox_slot"
    assert page.find(".sign .warning").is_displayed()


def test_a_slot_near_its_limit_names_who_holds_wal_back(show):
    page = show(scenes.near_limit())
    assert page.text("#verdict-title") == "Critical"
    assert page.text("#loss").startswith("Time to loss\n35 min\n3.2 GiB of 4 GiB kept")
    assert page.text("#findings").splitlines() == [
        "Active, caught up",
        f"What holds WAL back: {scenes.HOLDER}",
        "WAL kept 3.2 GiB of 4.0 GiB (79 %), lost in about 35m at 420.0 KiB/s",
        "wal_status is extended",
    ]
    assert page.text("#culprit") == ""
    assert page.text("#verdict .next code") == "select pg_terminate_backend(20817);"
    assert page.text("#lags text.limit") == "limit: the slot is lost"
    assert page.title == "Critical: Streaming · outbox_slot"
    assert page.find(".sign .critical").is_displayed()


@pytest.mark.parametrize(
    ("remedy", "commands"),
    [
        ("cdc-outbox start --slot s", ["cdc-outbox start --slot s"]),
        (
            "after a look at it: cdc-outbox start --slot s --accept-gap",
            ["cdc-outbox start --slot s --accept-gap"],
        ),
        (
            'recover: export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && cdc-outbox drop --yes && cdc-outbox audit',
            ['export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && cdc-outbox drop --yes && cdc-outbox audit'],
        ),
        ("let it end, or end it: select pg_terminate_backend(7);", ["select pg_terminate_backend(7);"]),
        (
            "set it: alter system set max_slot_wal_keep_size = '4GB'; select pg_reload_conf();",
            ["alter system set max_slot_wal_keep_size = '4GB';", "select pg_reload_conf();"],
        ),
        (
            "grant Describe and Write on it: kafka-acls.sh --add --allow-principal User:NAME --topic t",
            ["kafka-acls.sh --add --allow-principal User:NAME --topic t"],
        ),
        ("upgrade it: cdc-outbox supports PostgreSQL 15 to 18", []),
        ("drop the slot, or create the topic", []),
    ],
)
def test_what_can_be_pasted_is_set_apart(remedy: str, commands: list[str], show):
    status = scenes.near_limit()
    status["health"]["next"] = remedy
    page = show(status)
    assert page.text("#next-step") == f"Next: {remedy}"
    assert (
        page.run("return [...document.querySelectorAll('#next-step code')].map(c => c.textContent)")
        == commands
    )


def test_advice_is_told_quietly(show):
    status = scenes.healthy()
    status["health"]["advice"] = "without max_slot_wal_keep_size a slot that nobody reads fills the disk"
    page = show(status)
    assert page.text("#advice") == f"Advice: {status['health']['advice']}"
    assert not page.find("#verdict").is_displayed()


@pytest.mark.parametrize(
    ("outlook", "words"), [("now", "Any moment"), ("never", "Not in sight"), ("unknown", "\N{EN DASH}")]
)
def test_the_outlook_in_words(outlook: str, words: str, show):
    status = scenes.healthy()
    status["health"]["forecast"] |= {"loss": outlook, "seconds_to_loss": 0 if outlook == "now" else None}
    assert show(status).text("#loss").splitlines()[1] == words


def test_a_server_that_could_not_be_asked(show):
    status = scenes.healthy()
    health = status["health"]
    health |= {"status": "critical", "summary": "the relay could not ask PostgreSQL for 14 s", "next": "wait"}
    health["slot"] = dict.fromkeys(health["slot"]) | {"name": "outbox_slot"}
    health["limits"] = dict.fromkeys(health["limits"])
    health["forecast"] = {"loss": "unknown", "seconds_to_loss": None}
    page = show(status)
    assert page.text("#loss") == "Time to loss\n\N{EN DASH}\nnot known now"
    assert page.text("#findings") == "The relay could not ask PostgreSQL for 14 s"


def test_findings_that_the_summary_tells_are_not_told_twice(show):
    status = scenes.near_limit()
    status["health"]["summary"] = "lost in about 35m at 420.0 KiB/s; wal_status is extended"
    page = show(status)
    assert page.text("#findings").splitlines() == [
        "Lost in about 35m at 420.0 KiB/s",
        "wal_status is extended",
        "WAL kept 3.2 GiB of 4.0 GiB (79 %)",
    ]
    assert page.text("#culprit").startswith("What holds WAL back: pid 20817")


def test_who_holds_wal_back_is_told_while_all_is_well_too(show):
    status = scenes.healthy()
    status["health"]["culprit"] = scenes.near_limit()["health"]["culprit"]
    page = show(status)
    assert page.text("#culprit").startswith("What holds WAL back: pid 20817 (user reporting")
    assert not page.find("#verdict").is_displayed()


def test_what_the_state_says_is_not_said_again(show):
    status = scenes.broker_away()
    status["reason"] = "no Kafka broker answers; it was there before"
    status["health"]["summary"] = f"held ({status['reason']}); 103.0 MiB not confirmed"
    status["health"]["checks"] = [
        scenes.check("relay", "warning", f"the relay says held: {status['reason']}"),
        scenes.check("stalled", "warning", "103.0 MiB not confirmed"),
    ]
    page = show(status)
    assert page.text("#findings") == "103.0 MiB not confirmed"


def test_a_relay_that_has_just_started(show):
    page = show(scenes.starting())
    assert page.text("#state") == "Connecting"
    assert page.text("#loss") == "Time to loss\n\N{EN DASH}\nnot measured yet"
    assert page.text("#waiting") == "Oldest waiting\n\N{EN DASH}\nnot known"
    assert page.text("#topics") == "No event published since the start."
    assert page.text("#lags > svg text:last-child") == "The first point comes after 10 s."
    assert "nothing known" in page.find("#lags > svg").get_attribute("aria-label")


@pytest.mark.parametrize(
    ("state", "words", "sign"),
    [
        ("connecting", "Connecting", "warning"),
        ("standby", "Standing by", "ok"),
        ("streaming", "Streaming", "ok"),
        ("held", "Held", "warning"),
        ("blocked", "Blocked", "critical"),
        ("draining", "Draining", "ok"),
        ("stopped", "Stopped", "critical"),
    ],
)
def test_each_state_has_its_words_and_its_sign(state: str, words: str, sign: str, show):
    page = show(scenes.healthy() | {"state": state})
    assert page.text("#state") == words
    assert page.text("#reason")
    assert page.find(f".sign .{sign}").is_displayed()


def test_a_slot_without_a_limit_and_one_that_is_lost(show, stage: Stage):
    status = scenes.healthy()
    status["health"]["limits"]["max_slot_wal_keep_bytes"] = None
    status["health"]["forecast"]["loss"] = "unknown"
    page = show(status)
    assert page.text("#loss") == "Time to loss\nNo limit\n18 MiB kept, until the disk is full"
    status["health"]["slot"]["wal_status"] = "lost"
    stage.play(status)
    page.sees("Lost\nPostgreSQL has removed WAL that this slot needs", "#loss")


def test_fault_points_are_told(show):
    page = show(scenes.healthy() | {"faults": ["settle"]})
    assert page.text("#faults") == "Fault points are switched on: settle"


def test_it_updates_itself(show, stage: Stage):
    page = show(scenes.healthy())
    stage.play(scenes.broker_away())
    page.sees("Held", "#state")
    stage.play(scenes.healthy())
    page.sees("Streaming", "#state")
    page.sees("None since the start.", "#errors")


def test_a_relay_that_is_gone_is_said_with_its_time_and_comes_back(show, stage: Stage):
    page = show(scenes.healthy())
    heard = page.text("#live").removeprefix("live, ")
    stage.leave()
    page.sees("The relay has not answered since", "#lost-title")
    since = page.text("#lost-title").removeprefix("The relay has not answered since ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", since)
    assert since >= heard
    assert "may not be any more" in page.text("#lost-text")
    assert page.text("#since") == "when last heard of"
    assert page.title == "No answer · outbox_slot"
    assert page.find(".sign .unknown").is_displayed()
    stage.play(scenes.healthy())
    page.sees("live", "#live")
    assert page.text("#lost") == ""
    assert page.find(".sign .ok").is_displayed()


def test_a_relay_that_is_frozen_is_as_good_as_gone(show, stage: Stage):
    page = show(scenes.healthy())
    stage.awake.clear()
    page.sees("The relay has not answered since", "#lost-title")
    stage.awake.set()
    page.sees("live", "#live")


def test_one_question_without_an_answer_is_no_alarm(show, stage: Stage):
    page = show(scenes.healthy())
    page.run(
        """window.told = [];
        const [live, lost] = ["live", "lost"].map((id) => document.getElementById(id));
        const seen = new MutationObserver(() => told.push([live.textContent.split(",")[0], !lost.hidden]));
        for (const each of [live, lost]) seen.observe(each, {attributes: true, childList: true, characterData: true})"""
    )
    stage.once = 500

    def over() -> bool:
        words = [word for word, _ in page.run("return told")]
        return "asking again" in words and words[-1] == "live"

    eventually(over, PATIENCE, lambda: page.run("return told"))
    assert not any(lost for _, lost in page.run("return told"))


def test_a_refusal_of_the_relay_is_told(browser: Browser, stage: Stage):
    stage.code = 403
    stage.play({})
    browser.open(stage.address)
    browser.sees("The relay has not answered since", "#lost-title")
    assert "It answers 403 to /status." in browser.text("#lost-text")
    assert "What is below" not in browser.text("#lost-text")
    assert browser.text("#main") == ""


def test_the_token_is_asked_for_once_and_kept_in_the_tab(browser: Browser, stage: Stage):
    stage.token = "right"
    stage.play(scenes.healthy())
    browser.open(stage.address)
    browser.sees("This relay asks for a token", "#door")
    assert browser.run("return document.activeElement.id") == "token"
    assert browser.title == "Token needed · cdc-outbox"
    asked = stage.asked.count("/status")
    browser.find("#token").send_keys("wrong", Keys.ENTER)
    browser.sees("The relay refused that token.", "#refused")
    assert stage.asked.count("/status") == asked + 1
    browser.find("#token").send_keys(" right ", Keys.ENTER)
    browser.sees("Streaming", "#state")
    assert browser.text("#door") == ""
    browser.reload()
    browser.sees("Streaming", "#state")
    assert "right" not in browser.text()
    assert browser.run("return localStorage.length + document.cookie.length") == 0
    stage.token = "another"
    browser.sees("The relay refused that token.", "#refused")


@pytest.mark.parametrize(("title", "names"), [("#lags", 2), ("#rates", 1), ("#latencies", 2)])
def test_lines_are_drawn_and_told(title: str, names: int, show):
    page = show(scenes.healthy())
    lines = page.run(
        f"return [...document.querySelectorAll('{title} > svg .line')].map(p => p.getAttribute('d'))"
    )
    assert len(lines) == names
    assert all(line.count("L") == 360 for line in lines)
    label = page.find(f"{title} > svg").get_attribute("aria-label")
    assert label.count("now, at most") == names


def test_a_line_has_gaps_where_nothing_is_known(show):
    page = show(scenes.broker_away())
    assert (
        page.run("return document.querySelector('#latencies > svg .line.one').getAttribute('d')").count("M")
        == 1
    )
    status = scenes.healthy()
    points = status["history"]["points"]
    status["history"]["points"] = points[:100] + points[110:200] + points[250:]
    page = show(status)
    assert (
        page.run("return document.querySelector('#lags > svg .line.one').getAttribute('d')").count("M") == 3
    )


def test_the_lines_are_read_with_pointer_and_keys(show):
    status = scenes.healthy()
    status["history"]["points"][-2]["unconfirmed_bytes"] = 7 * scenes.MIB
    page = show(status)
    time = status["history"]["points"][-2]["at"][11:19]
    page.find("#lags > svg").send_keys(Keys.ARROW_LEFT)
    page.sees(f"at {time}", "#lags .when")
    assert "7 MiB" in page.text("#lags .legend")
    page.find("#lags > svg").send_keys(Keys.ESCAPE)
    assert page.text("#lags .when") == ""
    page.run(
        """const plot = document.querySelector("#lags > svg"), box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 6, clientY: box.top + 20}))"""
    )
    page.sees(f"at {status['history']['points'][-1]['at'][11:19]}", "#lags .when")


def test_many_topics_are_folded_until_somebody_wants_them(show, stage: Stage):
    status = scenes.healthy()
    status["topics"] = {f"topic-{n}": n for n in range(1, 26)}
    page = show(status)
    assert page.text("#topics").startswith("topic-25\n25\n")
    assert page.text("#topics").endswith("15 more")
    page.find("#topics summary").click()
    page.sees("topic-1\n1", "#topics")
    status["topics"]["topic-1"] = 5
    stage.play(status)
    page.sees("topic-1\n5", "#topics")


def test_the_evidence_is_there_for_who_asks(show):
    page = show(scenes.near_limit())
    page.find("main > details > summary").click()
    page.sees("Critical\nretained: WAL kept 3.2 GiB of 4.0 GiB (79 %)", "#checks")
    facts = page.text("#facts")
    assert "confirmed up to 3A/92CF1A40" in facts
    assert "left out: only 509" in facts
    assert "slot active, pid 41822, WAL extended" in facts
    assert "key from aggregate_id" in facts


HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def test_what_the_relay_says_is_text_and_never_markup(show):
    status = scenes.near_limit()
    status |= {"reason": HOSTILE, "slot": HOSTILE, "topics": {HOSTILE: 1}, "mapping": {HOSTILE: HOSTILE}}
    status["errors"] = [{"at": scenes.moment(), "error": HOSTILE, "next": HOSTILE}]
    status["health"] |= {"summary": HOSTILE, "next": HOSTILE}
    status["health"]["culprit"] |= {"message": HOSTILE}
    page = show(status)
    page.find("main > details > summary").click()
    page.sees(HOSTILE, "#facts")
    assert page.run("return document.querySelectorAll('img, body script').length") == 0
    for selector in ("#reason", "#slot", "#topics", "#errors", "#findings", "#facts"):
        assert HOSTILE in page.text(selector)


@pytest.mark.parametrize("scene", [scenes.healthy, scenes.broker_away, scenes.near_limit, scenes.starting])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_it_fits_its_screen_and_can_be_read(scene, dark: bool, size: tuple[int, int], show, browser: Browser):
    browser.look(size, dark=dark)
    page = show(scene())
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    page.find("main > details > summary").click()
    page.sees("Positions and counts", "main > details")
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    faint = page.run(CONTRASTS)
    assert not faint
    assert not page.complaints()


def test_long_words_do_not_widen_a_phone(show, browser: Browser):
    browser.look(PHONE)
    status = scenes.near_limit()
    status |= {"slot": "s" * 63, "reason": "r" * 200, "topics": {"t" * 249: 10**12}}
    status["errors"] = [{"at": scenes.moment(90_000), "error": "e" * 300, "next": "psql -c " + "n" * 200}]
    page = show(status)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE[0]


def test_it_asks_nobody_else(show, stage: Stage):
    page = show(scenes.healthy())
    addresses = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert {address.removeprefix(stage.address) for address in addresses} <= {
        "status",
        "style.css",
        "page.js",
        "icon.svg",
    }
    assert set(stage.asked) <= {"/", "/status", "/style.css", "/page.js", "/icon.svg"}


def test_nothing_is_said_again_that_has_not_changed(show, stage: Stage):
    page = show(scenes.near_limit())
    page.run(
        """window.changes = [];
        const seen = new MutationObserver((list) => changes.push(...list.map((one) => one.target.id)));
        for (const id of ["state", "reason", "verdict", "topics", "errors", "culprit", "facts"])
          seen.observe(document.getElementById(id), {childList: true, characterData: true, subtree: true})"""
    )
    asked = stage.asked.count("/status")
    eventually(lambda: stage.asked.count("/status") >= asked + 3, PATIENCE, "asked three times")
    assert page.run("return window.changes") == []


@pytest.mark.parametrize(("minutes", "clocks"), [(1, 5), (7, 4), (30, 3), (60, 4)])
def test_a_short_history_fills_the_width(minutes: int, clocks: int, show):
    status = scenes.healthy()
    status["history"]["points"] = status["history"]["points"][-6 * minutes :]
    page = show(status)
    first = page.run("return document.querySelector('#rates > svg .line').getBBox().x")
    edge = page.run("return document.querySelector('#rates > svg .base').getBBox().x")
    assert (first - edge < 12) == (minutes >= 5)
    shown = page.run(
        "return [...document.querySelectorAll('#lags > svg text')].filter(t => t.textContent.includes(':')).length"
    )
    assert clocks - 1 <= shown <= clocks + 1


CONTRASTS = """
const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
const light = (colour) => {
  const [red, green, blue] = parts(colour).map(channel);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if ((parts(colour)[3] ?? 1) === 1) return colour;
  }
  return "rgb(255, 255, 255)";
};
const faint = [];
for (const node of document.querySelectorAll("body *")) {
  const said = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!said || !node.checkVisibility()) continue;
  const style = getComputedStyle(node);
  const [one, two] = [light(node instanceof SVGElement ? style.fill : style.color), light(ground(node))];
  const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  if (contrast < 4.5) faint.push(`${node.tagName} ${node.id} ${node.textContent.trim()}: ${contrast.toFixed(2)}`);
}
return faint;
"""
"""The text that stands out from its ground by less than WCAG 2 asks for (4.5 to 1)."""

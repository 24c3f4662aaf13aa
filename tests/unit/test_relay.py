"""The relay's sessions from outside: which end of one is the process's end, and in what order a session is taken down.

Server, bus and flow are played; `Flow` itself has tests of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cdc_outbox import relay as module
from cdc_outbox.acknowledge import Ledger
from cdc_outbox.backoff import Backoff
from cdc_outbox.errors import (
    CdcOutboxError,
    ConfigError,
    DecodingFailed,
    DrainExceeded,
    GapFound,
    Held,
    PasswordRefused,
    PoisonEvent,
    PostgresUnavailable,
    PublicationUnseen,
)
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.backend import Backend
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.publisher import BusRefused, StartOver
from cdc_outbox.relay import Relay
from cdc_outbox.settings import load
from cdc_outbox.state import State

OURS = Backend(7, "100.5")
SETTINGS = load("start", {}, {}, Path("/nonexistent"))


class Stage:
    """A relay whose servers always answer. `flow` is what its session does; `taken_down` what ended, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flow: Callable[[], Awaitable[None]]
        self.taken_down: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}
        """What happens while a part is being closed."""
        self.suspect: tuple[int, int] | None = None
        self.cut_short = False
        self.relay = Relay(SETTINGS)
        monkeypatch.setattr(module, "Admission", lambda *_: self._admission())
        monkeypatch.setattr(module, "KafkaPublisher", self._publisher)
        monkeypatch.setattr(module, "Settlement", lambda *_, **__: SimpleNamespace(close=self._ends("round")))
        monkeypatch.setattr(module, "Intake", lambda *_: Mock(received=3, skipped={"bus": 1}))
        monkeypatch.setattr(module, "Flow", self._made_flow)

    def _made_flow(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run=self._flow, suspect=self.suspect, cut_short=self.cut_short)

    async def _flow(self, *_: object) -> None:
        await self.flow()

    def _ends(self, what: str) -> Callable[..., Awaitable[None]]:
        async def end(**_: object) -> None:
            self.taken_down.append(what)
            self.at.get(what, lambda: None)()
            # Long enough for a cancellation to arrive within.
            for _turn in range(5):
                await asyncio.sleep(0)

        return end

    def _admission(self) -> SimpleNamespace:
        async def nothing(*_: object, **__: object) -> None:
            return

        async def stream() -> SimpleNamespace:
            return SimpleNamespace(
                close=self._ends("stream"),
                confirmed=LSN(0),
                taken=True,
                keepalives=2,
                status_updates=5,
                backend=OURS,
            )

        return SimpleNamespace(
            open=nothing,
            check=nothing,
            stand_by=nothing,
            stream=stream,
            close=self._ends("control connection"),
            control=SimpleNamespace(run=nothing),
            server=SimpleNamespace(system_identifier="1", timeline=1, version=180000, started="1.5"),
            position=LSN(0),
            ours=nothing,
            was_set_back=lambda _delivered: False,
            remedied=lambda unseen: unseen,
        )

    def _publisher(self, _settings: object, ledger: Ledger, *_: object) -> SimpleNamespace:
        async def nothing() -> None:
            return

        self.ledger = ledger
        return _Bus(ledger, start=nothing, stop=self._ends("producer"))


class _Bus(SimpleNamespace):
    """It has yet to answer for all that the ledger has pinned."""

    def __init__(self, ledger: Ledger, **parts: object) -> None:
        super().__init__(**parts)
        self._ledger = ledger

    @property
    def unanswered(self) -> int:
        return self._ledger.unsettled


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def run(relay: Relay) -> None:
    asyncio.run(asyncio.wait_for(relay.run(), 30))


POISON = PoisonEvent("bad", next="mend it", reason="no_key", lsn=0x100, seq=0, event_id="a")


@pytest.mark.parametrize(
    "error",
    [POISON, GapFound("moved", next="recover"), DrainExceeded("late", next="start")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("during", ["round", "producer", "stream", "control connection"])
def test_a_stop_during_clean_up_hides_no_error(stage: Stage, error: Exception, during: str) -> None:
    async def flow() -> None:
        raise error

    stage.flow = flow
    stage.at[during] = stage.relay.stop
    with pytest.raises(type(error)) as raised:
        run(stage.relay)
    assert raised.value is error
    assert stage.taken_down[-1] == "control connection"


@pytest.mark.parametrize("left", ["nothing", "rows under way"])
def test_a_server_that_goes_while_a_stop_comes_is_its_failure_only_where_rows_would_come_again(
    stage: Stage, left: str
) -> None:
    gone = PostgresUnavailable("gone", next="wait")

    async def flow() -> None:
        if left == "rows under way":
            stage.ledger.begin(0x100)
            stage.ledger.pin()
        stage.relay.stop()
        raise gone

    stage.flow = flow
    if left == "nothing":
        run(stage.relay)
        return
    with pytest.raises(PostgresUnavailable) as raised:
        run(stage.relay)
    assert raised.value is gone


@pytest.mark.parametrize("later", ["nothing", "less", "all of it"])
def test_a_stop_between_two_sessions_is_clean_only_where_the_bus_has_told_what_it_has(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """`later`: what another session has settled since."""
    sessions = 0

    async def flow() -> None:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            stage.ledger.begin(0x100)
            stage.ledger.pin()
        else:
            stage.ledger.idle(0x80 if later == "less" else 0x108)
        raise PostgresUnavailable("gone", next="wait")

    def say(_error: CdcOutboxError) -> None:
        if sessions == (1 if later == "nothing" else 2):
            stage.relay.stop()

    monkeypatch.setattr(stage.relay._setbacks, "say", say)
    stage.flow = flow
    if later == "all of it":
        run(stage.relay)
        return
    with pytest.raises(DrainExceeded, match="Kafka didn't say"):
        run(stage.relay)


def targets_of(stage: Stage, arrives: Callable[[], None], taken: int) -> list[LSN | None]:
    """Up to where each session reads: one in which a stop comes when row 7 at 0x300 was delivered, and the last.

    `arrives`: what else has by then. `taken`: what the last session has PostgreSQL take.
    """
    relay = stage.relay
    targets: list[LSN | None] = []

    async def flow() -> None:
        targets.append(relay._target)
        if len(targets) == 1:
            relay._carried.deliveries.settle("topic", 0, (0x300, 7))
            arrives()
            relay.stop()
            raise PostgresUnavailable("gone", next="wait")
        relay._carried.memory.taken = LSN(taken)

    stage.flow = flow
    run(relay)
    return targets


def test_an_end_that_confirms_what_was_delivered_reads_on_over_what_the_bus_may_have(stage: Stage) -> None:
    def arrives() -> None:
        stage.ledger.begin(0x400)
        stage.ledger.pin()

    assert targets_of(stage, arrives, 0x408) == [None, 0x401]


def test_an_end_that_confirms_what_was_delivered_reads_on_to_the_commit_of_what_has_arrived(
    stage: Stage,
) -> None:
    """A large transaction is sent a while after what came before it: that being confirmed is not enough."""

    def arrives() -> None:
        stage.relay.status._confirmable = LSN(0x208)

    assert targets_of(stage, arrives, 0x308) == [None, 0x301]


@pytest.mark.parametrize("comes", ["as the connection is lost", "between two sessions", "after poison"])
def test_a_stop_owes_the_rest_of_a_transaction_of_which_a_part_has_arrived(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """All before it is confirmed. Where one of its rows can't be published, no other session would get further."""
    relay = stage.relay
    targets: list[LSN | None] = []
    if comes != "as the connection is lost":
        monkeypatch.setattr(relay._setbacks, "say", lambda _error: relay.stop())

    async def flow() -> None:
        targets.append(relay._target)
        if len(targets) == 1:
            relay._carried.memory.taken = relay.status._confirmable = LSN(0x208)
            relay._carried.deliveries.settle("topic", 0, (0x300, 7))
            if comes == "as the connection is lost":
                relay.stop()
            raise PostgresUnavailable("gone", next="wait")
        relay._carried.memory.taken = LSN(0x308)

    stage.flow = flow
    stage.suspect = (0x300, 8) if comes == "after poison" else None
    run(relay)
    assert targets == ([None] if comes == "after poison" else [None, 0x301])


@pytest.mark.parametrize("waits", [False, True], ids=["on its way", "waits for a topic"])
def test_a_stop_as_the_next_stream_begins_owes_the_rest_of_a_transaction_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """It ends in order before the transaction has come again: its BEGIN takes as long as its decoding."""
    relay = stage.relay
    targets: list[LSN | None] = []

    async def flow() -> None:
        targets.append(relay._target)
        if len(targets) == 1:
            relay._carried.deliveries.settle("topic", 0, (0x300, 7))
            raise PostgresUnavailable("gone", next="wait")
        if len(targets) == 2:
            relay.stop()
            relay.status.change(State.DRAINING)
        else:
            relay._carried.memory.taken = LSN(0x308)

    monkeypatch.setattr(Backoff, "seconds", lambda _: 0.0)
    stage.cut_short = waits
    stage.flow = flow
    run(relay)
    assert targets == ([None, None] if waits else [None, None, 0x301])


@pytest.mark.parametrize("state", [State.HELD, State.DRAINING], ids=lambda state: state.value)
def test_a_stop_as_the_next_stream_begins_is_not_clean_either_where_the_bus_may_have_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    sessions = 0

    async def flow() -> None:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            stage.ledger.begin(0x100)
            stage.ledger.pin()
            raise PostgresUnavailable("gone", next="wait")
        stage.relay.stop()
        stage.relay.status.change(state)

    monkeypatch.setattr(Backoff, "seconds", lambda _: 0.0)
    stage.flow = flow
    with pytest.raises(DrainExceeded, match="Kafka didn't say"):
        run(stage.relay)


@pytest.mark.parametrize("hidden", [False, True], ids=["by the bus", "by the publication"])
def test_a_stop_while_held_is_not_clean_where_what_was_delivered_comes_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """Rows of another partition, say, behind one that is refused. What a publication hid forbids to confirm any."""
    relay = stage.relay

    async def flow() -> None:
        relay._carried.deliveries.settle("topic", 0, (0x300, 7))
        if hidden:
            state = PublicationState("outbox_pub", "it is gone", "make it", identity=None, insert_lsn=None)
            relay._carried.memory.watch.look(state, LSN(0x200))
        raise Held("not allowed", next="grant it")

    monkeypatch.setattr(relay._setbacks, "say", lambda _error: relay.stop())
    stage.flow = flow
    if hidden:
        run(relay)
        return
    with pytest.raises(DrainExceeded, match="0/300 could not be confirmed to PostgreSQL: not allowed"):
        run(relay)


def test_an_end_that_may_not_confirm_what_was_delivered_says_why(stage: Stage) -> None:
    """Not that nothing is lost, where the slot was moved past what wasn't sent."""
    moved = GapFound("moved", next="recover")
    sessions = 0

    async def flow() -> None:
        nonlocal sessions
        sessions += 1
        if sessions > 1:
            raise moved
        stage.relay._carried.deliveries.settle("topic", 0, (0x300, 7))
        stage.relay.stop()
        raise PostgresUnavailable("gone", next="wait")

    stage.flow = flow
    with pytest.raises(GapFound) as raised:
        run(stage.relay)
    assert raised.value is moved


def test_a_session_that_would_start_over_is_no_clean_end_of_a_stop(stage: Stage) -> None:
    """What it would have sent once more isn't confirmed; without a stop it simply begins again."""
    again = StartOver("a batch was refused: it goes out in halves")

    async def flow() -> None:
        if "stream" in stage.taken_down:
            stage.relay.stop()
        raise again

    stage.flow = flow
    with pytest.raises(DrainExceeded, match="goes out in halves"):
        run(stage.relay)
    assert stage.taken_down.count("stream") == 2


def test_rows_of_a_time_without_the_publication_hold_once_and_end_it_the_second_time(stage: Stage) -> None:
    """Decoding never gets beyond them. At another place it is another matter."""
    places = ["LSN 0/1", "LSN 0/2", "LSN 0/2"]
    states: list[State] = []

    async def flow() -> None:
        states.append(stage.relay.status.state)
        raise PublicationUnseen(places.pop(0), next="recover")

    stage.flow = flow
    with pytest.raises(PublicationUnseen, match="0/2"):
        run(stage.relay)
    assert places == []
    assert states[1:] == [State.HELD, State.HELD]


def test_wal_that_fails_to_decode_at_the_same_place_again_is_no_outage(stage: Stage) -> None:
    states: list[State] = []

    async def flow() -> None:
        states.append(stage.relay.status.state)
        if len(states) == 4:
            stage.relay.stop()
        raise DecodingFailed("LSN 0/1", next="see the log")

    stage.flow = flow
    with pytest.raises(DecodingFailed):
        run(stage.relay)
    assert stage.relay.status.state is State.HELD
    assert states[:2] == [State.STREAMING, State.STREAMING]
    assert states[2:] == [State.HELD, State.HELD]


@pytest.mark.parametrize("admitted", [False, True])
def test_a_password_that_was_asked_for_and_is_refused_ends_a_start_and_holds_who_was_let_in(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    """Also a standby, which has never streamed."""
    stage.relay.status.admitted = admitted
    admission, states = stage._admission, []

    def refuses() -> SimpleNamespace:
        async def refuse() -> None:
            states.append(stage.relay.status.state)
            if len(states) == 2:
                stage.relay.stop()
            raise PasswordRefused("wrong", next="look it up")

        return SimpleNamespace(**{**vars(admission()), "open": refuse})

    monkeypatch.setattr(stage, "_admission", refuses)
    if admitted:
        run(stage.relay)
        assert states[1] is State.HELD
    else:
        with pytest.raises(PasswordRefused):
            run(stage.relay)
    assert len(states) == (2 if admitted else 1)


@pytest.mark.parametrize("at", ["making", "starting"])
@pytest.mark.parametrize("stood_by", [False, True])
def test_what_the_bus_has_against_us_ends_a_start_and_holds_who_stood_by(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, at: str, stood_by: bool
) -> None:
    """A standby has never streamed, and may be met by a key that is being replaced as the server goes."""
    publisher, sessions = stage._publisher, 0
    wrong: Exception = BusRefused("no", next="mend") if at == "starting" else ConfigError("no", next="mend")

    async def refused() -> None:
        raise wrong

    def made(*arguments: Any) -> SimpleNamespace:
        nonlocal sessions
        sessions += 1
        if sessions == 3:
            stage.relay.stop()
        if sessions == 1 and stood_by:
            return publisher(*arguments)
        if at == "making":
            raise wrong
        return SimpleNamespace(**{**vars(publisher(*arguments)), "start": refused, "start_later": Mock()})

    async def goes(_standing_by: object) -> None:
        raise PostgresUnavailable("gone", next="wait")

    admission = stage._admission()
    admission.stand_by = goes
    monkeypatch.setattr(module, "Admission", lambda *_: admission)
    monkeypatch.setattr(module, "KafkaPublisher", made)
    if stood_by:
        run(stage.relay)
        assert str(wrong) in [trouble.error for trouble in stage.relay.status.errors]
    else:
        with pytest.raises(type(wrong)):
            run(stage.relay)
    assert sessions == (3 if stood_by else 1)


def test_a_stop_before_the_stream_ends_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the stop cancels whatever is waited for, and that is no error."""
    began = asyncio.Event()

    async def never(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    admission = stage._admission()
    admission.stand_by = never
    monkeypatch.setattr(module, "Admission", lambda *_: admission)

    async def test() -> None:
        running = asyncio.create_task(stage.relay.run())
        await began.wait()
        stage.relay.stop()
        await running

    asyncio.run(asyncio.wait_for(test(), 30))
    assert stage.taken_down == ["producer", "control connection"]


@pytest.mark.parametrize("began", ["100.5", "200.5", None])
def test_our_own_last_walsender_is_no_other_relay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, began: str | None
) -> None:
    """Its number may be another's by now, also that of a process of another role, which hides when it began."""
    holders = iter((Backend(7, began), Backend(7, began), Backend(8, "100.5")))
    seen: list[tuple[State, str]] = []
    admission = stage._admission()

    async def stand_by(standing_by: Callable[[Backend], None]) -> None:
        if not seen:
            seen.append((stage.relay.status.state, ""))
            return
        for holder in holders:
            standing_by(holder)
            seen.append((stage.relay.status.state, stage.relay.status.reason))
        stage.relay.stop()

    admission.stand_by = stand_by
    monkeypatch.setattr(module, "Admission", lambda *_: admission)

    async def flow() -> None:
        if not stage.relay._stop.is_set():
            raise PostgresUnavailable("gone", next="wait")

    stage.flow = flow
    run(stage.relay)
    ours = began == OURS.began
    own = State.CONNECTING if ours else State.STANDBY
    assert [state for state, _ in seen[1:]] == [own, own, State.STANDBY]
    assert ("of this relay's last session" in seen[1][1]) is ours


@pytest.mark.parametrize("timeline", [1, 2])
def test_positions_of_another_timeline_are_forgotten(stage: Stage, timeline: int) -> None:
    """Those of a standby that was promoted may be lower."""
    admission: Any = stage._admission()
    stage.relay._carried.meet(admission)
    stage.relay.status._received = stage.relay.status._confirmable = LSN(0x9000)
    admission.server = SimpleNamespace(**{**vars(admission.server), "timeline": timeline})
    stage.relay._carried.meet(admission)
    assert stage.relay.status.confirmable == (0x9000 if timeline == 1 else 0)


def test_a_stray_cancellation_is_no_clean_end(stage: Stage) -> None:
    """A session that nobody cancelled ended somewhere in its midst: what it had to confirm isn't."""

    async def flow() -> None:
        raise asyncio.CancelledError

    stage.flow = flow
    with pytest.raises(asyncio.CancelledError):
        run(stage.relay)


def test_the_producer_ends_before_the_slot_is_free(stage: Stage) -> None:
    """Else what it still has could reach the bus behind what the next relay sends; rounds end before both."""

    async def flow() -> None:
        stage.relay.stop()

    stage.flow = flow
    run(stage.relay)
    first = [stage.taken_down.index(part) for part in ("round", "producer", "stream", "control connection")]
    assert first == sorted(first)

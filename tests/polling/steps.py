"""The cut-over and the way back, step by step as the documents have them, while the shop writes."""

from __future__ import annotations

import random
import subprocess
import time

from tests.polling.books import sender
from tests.polling.scene import LEAVE, RETURN, Scene
from tests.servers.process import Process
from tests.servers.wait import eventually


def prepare(scene: Scene) -> None:
    """The day before: settings, publication, role, checks."""
    scene.run("settings")
    if scene.table.partitioner == "consistent_random":
        scene.run("partitioner")
    scene.run("prepare", typed=f"{scene.password}\n" * 2)


def begin(scene: Scene, *, events: int) -> None:
    """The shop writes and the old relay sends; some rows it failed to send long ago."""
    scene.fail_some()
    scene.shop.start()
    scene.shop.wait_written(events)


def end(scene: Scene) -> None:
    """The shop closes, and whoever relays now sends the rest."""
    scene.shop.stop()
    if scene.old.running:
        scene.wait_sent()
        scene.old.stop()
    else:
        scene.wait_streamed()
        scene.stop_ours()


def leave(
    scene: Scene,
    *,
    slot_first: bool = True,
    kill_old: bool = False,
    backlog: int = 0,
    kills: int = 0,
    chance: random.Random | None = None,
) -> subprocess.CompletedProcess[str] | None:
    """From the old relay to ours; what `init` said, unless backfill is to make the slot (not `slot_first`).

    `kill_old`: the old relay is killed instead of stopped. `backlog`: so many events are written before the old
    relay's rows are sent by backfill, which is killed up to `kills` times at random points, and run again.
    """
    shop, facts = scene.shop, scene.circumstances
    init = make_slot(scene) if slot_first else None
    if kill_old:
        scene.old.kill()
    else:
        stop_old(scene)
    shop.wait_written(backlog)
    facts.open_at_stop = scene.unsent()
    if init is None:
        facts.slot_from = time.time()
    if init is None or init.returncode:
        backfill(scene, _backfill_of(scene, kill_old=kill_old), kills, chance or random.Random())
    scene.launch("start")
    scene.wait_streamed()
    return init


def make_slot(scene: Scene) -> subprocess.CompletedProcess[str]:
    """`init` under load: rows that wait leave the slot pending, and without any it has its name."""
    scene.circumstances.slot_from = time.time()
    init = scene.run("slot", code=None)
    assert init.returncode in (0, 78), init.stderr
    return init


def stop_old(scene: Scene) -> None:
    """SIGTERM to the old relay, as the document has it."""
    scene.run("stop-old")
    scene.old.wait_stopped()


def retreat(scene: Scene) -> None:
    """A cut-over that is given up before our relay has started: the old one goes on."""
    make_slot(scene)
    stop_old(scene)
    scene.run("retreat")
    assert not scene.slots()
    scene.poll_on()
    scene.run("prepare", typed=f"{scene.password}\n" * 2)


def _backfill_of(scene: Scene, *, kill_old: bool) -> str:
    """The block for this table and its relay's end."""
    if scene.undelivered:
        return "backfill-given-up"
    return "backfill-killed" if kill_old and scene.table.letter == "a" else "backfill"


def backfill(scene: Scene, block: str, kills: int, chance: random.Random) -> None:
    """Send what the old relay left; killed and run again, until it comes to its end.

    A backfill that is to be killed is made slow, so that it lasts about as long as the time to choose from.
    """
    facts = scene.circumstances
    slowly = f"export CDC_OUTBOX_LIMITS_MAX_EVENTS_PER_SECOND={len(facts.open_at_stop) // 3 + 100}\n"
    for _ in range(kills):
        facts.backfills += 1
        running = scene.shell.launch(slowly + LEAVE[block])
        began, lives = time.monotonic(), chance.uniform(0.1, 3.0)

        def over(end: float = began + lives, process: Process = running.process) -> bool:
            return time.monotonic() >= end or not process.running

        eventually(over, lives + 10, "the moment of the kill")
        if running.process.exit_code is not None:
            assert running.process.exit_code == 0, running.log.read_text()
            scene.killed_at.append(f"not at all: it was finished before {lives:.2f} s")
            return
        running.process.kill()
        sent = sum(sender(record) == "backfill" for record in scene.records())
        scene.killed_at.append(f"after {lives:.2f} s, {sent} of {len(facts.open_at_stop)} rows were sent")
        if "outbox_slot" in scene.slots():
            return
    facts.backfills += 1
    scene.run(block)


def go_back(scene: Scene, *, kill_ours: bool = False) -> None:
    """From our relay to the old one; `kill_ours`: ours is killed instead of stopped."""
    scene.run("grant", page=RETURN)
    scene.stop_ours()
    scene.launch("mark", page=RETURN)
    scene.shop.wait_written(100)
    scene.run("marked", page=RETURN)
    if kill_ours:
        scene.kill_ours()
    else:
        scene.stop_ours()
    scene.poll_again()
    scene.run("drop", page=RETURN)

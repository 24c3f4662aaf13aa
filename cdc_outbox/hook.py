"""A callable of the user's that a setting names as `module:callable`: where secrets come from that live for minutes.

What it says when it fails is never shown, since it may hold a secret; its type is, and the words of our own errors.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import reduce
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction, signature
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.errors import CdcOutboxError, ConfigError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable


AT_ONCE: Final = 64
"""Calls that may run at the same time: more brokers than that aren't met at once, and one that hangs is asked again."""

_room = BoundedSemaphore(AT_ONCE)


def find(setting: str, path: str, *, answers: str, by_name: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The callable that a setting names, which takes these arguments by name and `answers` a token, say.

    Raises ConfigError where there is none, and what a module of ours has against being loaded.
    """
    module, _, name = path.partition(":")
    takes = f" and takes {', '.join(by_name[:-1])} and {by_name[-1]} by name" if by_name else ""
    remedy = f"name a callable that returns a {answers}{takes}, as module:callable"
    try:
        function = reduce(getattr, name.split("."), import_module(module))
    except CdcOutboxError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting} is {path!r}, which can't be imported: {error}", next=remedy) from error
    if not callable(function):
        raise ConfigError(f"{setting} is {path!r}, which can't be called", next=remedy)
    try:
        signature(function).bind(**dict.fromkeys(by_name))
    except TypeError as error:
        raise ConfigError(f"{setting} is {path!r}, which can't be called so: {error}", next=remedy) from error
    except ValueError:
        pass  # it is made in C, and doesn't tell what it takes
    return function


async def answer(function: Callable[..., Any], **arguments: object) -> Any:
    """What it answers. A plain one runs in a thread, since it may wait for a server. Raises what it raises."""
    if iscoroutinefunction(function):
        return await function(**arguments)
    answered = await _in_thread(lambda: function(**arguments))
    return await answered if isawaitable(answered) else answered


def why(path: str, error: Exception) -> str:
    """What may be said of its failure."""
    return str(error) if isinstance(error, CdcOutboxError) else f"{path} failed with {type(error).__name__}"


async def _in_thread(function: Callable[[], Any]) -> Any:
    """What a function answers that may block. Unlike the loop's own threads, nobody waits for this one at the end.

    Raises Unavailable while too many hang.
    """
    if not _room.acquire(blocking=False):
        raise Unavailable(
            f"{AT_ONCE} calls of it hang", next="mend it: it has to answer, or to fail, within seconds"
        )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()

    def settle(answered: Any, failure: Exception | None) -> None:
        if not done.done():
            done.set_result((answered, failure))

    def work() -> None:
        answered, failure = None, None
        try:
            answered = function()
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
        _room.release()
        with suppress(RuntimeError):  # the loop is closed, and nobody is interested any more
            loop.call_soon_threadsafe(settle, answered, failure)

    Thread(target=work, name="hook", daemon=True).start()
    answered, failure = await done
    if failure is not None:
        raise failure
    return answered

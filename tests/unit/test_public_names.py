"""What applications may import: the names are there, their types are known, and no library comes along unasked."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import cdc_outbox

NAMES = {
    **{
        f"cdc_outbox.enqueue.{library}": {"Event", "Outbox", "enqueue", "enqueue_many"}
        for library in ("psycopg", "asyncpg", "sqlalchemy", "django")
    },
    **{
        f"cdc_outbox.inbox.{library}": {"first_time"}
        for library in ("psycopg", "asyncpg", "sqlalchemy", "django")
    },
    "cdc_outbox.inbox": {"event_id"},
    "cdc_outbox.errors": {"CallRefused", "EventTooLarge", "EventUnfit", "OutsideTransaction"},
    "cdc_outbox": {"__version__"},
}


@pytest.mark.parametrize("module", NAMES)
def test_the_contract(module: str) -> None:
    loaded = import_module(module)
    assert set(loaded.__all__) == NAMES[module]
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if callable(thing) and not isinstance(thing, type):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not inspect.Signature.empty
            for each in signature.parameters.values():
                assert each.annotation is not inspect.Parameter.empty, f"{module}.{name}({each.name})"
            assert inspect.getdoc(thing)


def test_the_package_itself_loads_nothing() -> None:
    script = "import cdc_outbox, sys; print(*(name for name in sys.modules if name.startswith('cdc_outbox')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cdc_outbox"]
    assert cdc_outbox.__version__

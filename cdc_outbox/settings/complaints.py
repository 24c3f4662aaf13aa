"""All that is wrong with the settings, gathered from flags, environment and file, so that one run tells it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_outbox.errors import ConfigError, UsageError, numbered


class Complaints:
    """What was wrong so far. Reading goes on after each, with what is left."""

    def __init__(self) -> None:
        self._found: list[UsageError | ConfigError] = []

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Keep the error that the block raises."""
        try:
            yield
        except (UsageError, ConfigError) as error:
            self._found.append(error)

    def require_none(self) -> None:
        """Raise what was found: a single error as it is, several as one, wrong usage where all of them are."""
        found = self._found
        if len(found) == 1:
            raise found[0]
        if found:
            usage = all(isinstance(each, UsageError) for each in found)
            raise (UsageError if usage else ConfigError)(
                f"{len(found)} settings are wrong: {numbered(map(str, found))}",
                next=numbered(each.next for each in found),
            )

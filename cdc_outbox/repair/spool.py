"""Millions of small records on disk, a bucket at a time in memory.

Records have one fixed size and begin with a key. Equal keys come into the same bucket, and each bucket gives its
records back in the order in which they were put. One file holds everything: it has no name, so that it is gone with the
process however that ends. What waits to be written is bounded, whatever the number of buckets.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from binascii import unhexlify
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from uuid import UUID

from cdc_outbox.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from struct import Struct

IN_BUCKET: Final = 8_000
"""Records that a bucket has on average where their number was foreseen."""

WAITING: Final = 4 << 20
"""Bytes of a spool that wait to be written, at most."""

_FEWEST, _MOST = 16, 8192
_SMALLEST, _LARGEST = 1 << 10, 64 << 10


def buckets_for(records: int) -> int:
    """The number of buckets for so many records: a power of two."""
    wanted = max(1, records // IN_BUCKET)
    return min(_MOST, max(_FEWEST, 1 << (wanted - 1).bit_length()))


def kept_in(directory: Path | None) -> Path | str:
    """Where records are kept: there, or in the system's own place. Raises SetupError where a read-only one has none."""
    try:
        return directory or tempfile.gettempdir()
    except OSError as error:
        raise SetupError(
            "records can't be kept, for the system has no directory that may be written",
            next="give a container one: docker run --tmpfs /tmp; or name one with --spool DIR",
        ) from error


class Spool:
    """Records of one form, whose first field is the key, as bytes."""

    def __init__(self, form: Struct, buckets: int, directory: Path | None) -> None:
        """`buckets` is a power of two; `directory`: where the file lies, None for the system's own place."""
        self._form = form
        self._mask = buckets - 1
        block = min(_LARGEST, max(_SMALLEST, WAITING // buckets))
        self._block = max(1, block // form.size) * form.size
        self._waiting = [bytearray() for _ in range(buckets)]
        self._blocks = [array("Q") for _ in range(buckets)]
        self._file = _Unnamed(directory)
        self.count = 0

    def __len__(self) -> int:
        """The number of buckets."""
        return len(self._waiting)

    def put(self, key: bytes, *fields: Any) -> None:
        """Keep a record. Raises SetupError when the disk is full."""
        at = hash(key) & self._mask
        waiting = self._waiting[at]
        waiting += self._form.pack(key, *fields)
        self.count += 1
        if len(waiting) >= self._block:
            self._blocks[at].append(self._file.append(waiting))
            waiting.clear()

    def at(self, key: bytes) -> int:
        """The bucket of a key."""
        return hash(key) & self._mask

    def bucket(self, at: int) -> Iterator[tuple[Any, ...]]:
        """The records of a bucket, each as the tuple of its fields."""
        unpack = self._form.iter_unpack
        for position in self._blocks[at]:
            yield from unpack(self._file.read(position, self._block))
        yield from unpack(bytes(self._waiting[at]))

    def close(self) -> None:
        """Forget everything."""
        self._file.close()


class Ids:
    """Event ids as keys of 16 bytes, and back.

    A UUID is its own key. Of any other text the key is a hash (BLAKE2b with 128 bits: two ids of ten million share one
    with a chance of 1 in 10^24), and the text is kept on disk.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = _Unnamed(directory)
        self._waiting = bytearray()
        self._next = 1

    def enter(self, text: bytes) -> tuple[bytes, int]:
        """The key of an id, and where its text is: 0 where the key is the text."""
        if len(text) == 36 and text[8:24:5] == b"----" and text == text.lower():
            try:
                key = unhexlify(text.replace(b"-", b""))
            except ValueError:
                pass
            else:
                if len(key) == 16:
                    return key, 0
        where = self._next
        self._waiting += len(text).to_bytes(4)
        self._waiting += text
        self._next += 4 + len(text)
        if len(self._waiting) >= _LARGEST:
            self._file.append(self._waiting)
            self._waiting.clear()
        return blake2b(text, digest_size=16).digest(), where

    def text(self, key: bytes, where: int) -> bytes:
        """The id of a key."""
        if where == 0:
            return str(UUID(bytes=key)).encode()
        if self._waiting:
            self._file.append(self._waiting)
            self._waiting.clear()
        length = int.from_bytes(self._file.read(where - 1, 4))
        return self._file.read(where + 3, length)

    def close(self) -> None:
        """Forget everything."""
        self._file.close()


class _Unnamed:
    """A file without a name, written at its end."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = kept_in(directory)
        try:
            self._file: BinaryIO = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - see close
        except OSError as error:
            raise _unusable(self._directory, error) from error
        self._end = 0

    def append(self, data: bytearray) -> int:
        """Write at the end; where it begins."""
        position = self._end
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise _unusable(self._directory, error) from error
        finally:
            left.release()
        self._end += len(data)
        return position

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)

    def close(self) -> None:
        self._file.close()


def _unusable(directory: Path | str, error: OSError) -> SetupError:
    reason = (error.strerror or str(error)).lower()
    return SetupError(
        f"records can't be kept in {directory}: {reason}",
        next="name a directory with more room: --spool DIR",
    )

"""A Python that only Debian's next release has, unpacked into the cache with the C library that it wants.

It is Debian's own build, fetched by apt-get into a place of its own: nothing of this machine is changed, and the
packages of this machine's release stay the only ones that it knows. The interpreter is told by patchelf where its
loader and its libraries are; what it starts runs on the machine's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.servers.cache import CHECKOUT, Missing, cache_root, cached, download, run

SUITE: Final = "forky"
VERSION: Final = "3.14"
MIRROR: Final = "http://deb.debian.org/debian"
PATCHELF: Final = CHECKOUT / ".cache" / "release" / "bin" / "patchelf"
PACKAGES: Final = (
    *(f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libssl3t64", "libffi8", "libsqlite3-0"),
    *("liblzma5", "libbz2-1.0", "libuuid1", "libzstd1", "libncursesw6", "libtinfo6", "libreadline8t64"),
)
"""The interpreter, what its modules are linked against, and what those of wheels may be."""


def interpreter(version: str) -> Path | None:
    """A Python of that version; None where Debian isn't here, or has none. Raises Missing where it can't be fetched."""
    if version != VERSION or shutil.which("apt-get") is None:
        return None
    home = cache_root() / "python" / f"{SUITE}-{version}"
    return cached(home, lambda draft: _fetch(draft, home)) / "usr" / "bin" / f"python{version}"


def _fetch(draft: Path, home: Path) -> None:
    what = f"Python {VERSION} of Debian {SUITE}"
    apt = draft / "apt"
    for directory in ("lists/partial", "cache/archives/partial", "parts", "packages"):
        (apt / directory).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb {MIRROR} {SUITE} main\n")
    options = [
        *("-o", f"Dir::Etc::sourcelist={apt}/sources.list", "-o", f"Dir::Etc::sourceparts={apt}/parts"),
        *("-o", f"Dir::State::lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache"),
        *(("-o", "APT::Sandbox::User=root") if os.geteuid() == 0 else ()),
    ]
    download(["apt-get", *options, "-q", "update"], what=what)
    download(["apt-get", *options, "-q", "download", *PACKAGES], what=what, cwd=apt / "packages")
    for package in (apt / "packages").glob("*.deb"):
        run(["dpkg-deb", "--extract", package, draft], what=what)
    shutil.rmtree(apt)
    loader = next(draft.glob("usr/lib*/ld-linux*.so.*"), None)
    library = next(draft.glob("usr/lib/*-linux-gnu"), None)
    if loader is None or library is None:
        raise Missing(f"{what}: its packages aren't laid out as expected")
    # Of the two ways to say where libraries are, only the older one counts for those that libraries want, too.
    where: list[str | Path] = ["--force-rpath", "--set-rpath", home / library.relative_to(draft)]
    where += ["--set-interpreter", home / loader.relative_to(draft)]
    run([PATCHELF, *where, draft / "usr" / "bin" / f"python{VERSION}"], what=what)

"""Puts together what a container of the relay needs: `python3 assemble.py VENV IMAGE`, in the build.

Those are the interpreter with its standard library but for tests, windows and installers; the virtual environment; the
shared libraries that any of them is linked against, as ldd(1) finds them; certificates, time zones, and one user. What
is compiled is compiled here, for nothing can be written later.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = shutil.ignore_patterns(
    "__pycache__",
    "config-*",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
    "_tkinter*",
    "turtle*",
    "_test*",
    "xxlimited*",
)
AS_THEY_ARE = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/share/zoneinfo",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
USER = "65532"


def place(image: Path, path: Path) -> Path:
    """Where a path of the build stands in the image."""
    return image / path.relative_to("/")


def copy(image: Path, path: Path) -> None:
    """Copy a file, or a directory as it is."""
    target = place(image, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True)
    elif not target.exists():
        shutil.copy2(path, target)


def libraries(binary: Path) -> set[Path]:
    """The shared libraries that a program or library is linked against, the loader among them, by the names it uses."""
    told = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
    assert "not found" not in told, f"{binary}:\n{told}"
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE)}


def main(venv: Path, image: Path) -> None:
    """Fill the directory `image`."""
    image.mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        if (merged := Path("/", name)).is_symlink():
            (image / merged.readlink()).mkdir(parents=True)
            (image / name).symlink_to(merged.readlink())
    interpreter = Path(sys.executable).resolve()
    copy(image, interpreter)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, place(image, library), symlinks=True, ignore=LEFT_OUT)
    shutil.copytree(venv, place(image, venv), symlinks=True)
    for name in ("python", "python3", interpreter.name):
        link = place(image, venv) / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(interpreter)
    binaries = [interpreter, *library.glob("lib-dynload/*.so"), *venv.rglob("*.so*")]
    wanted = {each for binary in binaries if place(image, binary).exists() for each in libraries(binary)}
    for each in sorted(wanted):
        if not each.is_relative_to(venv):
            copy(image, each)
    for name in AS_THEY_ARE:
        copy(image, Path(name))
    subprocess.run(["ldconfig", "-r", image], check=True)
    (image / "etc" / "passwd").write_text(f"cdc-outbox:x:{USER}:{USER}::/:/nonexistent\n")
    (image / "etc" / "group").write_text(f"cdc-outbox:x:{USER}:\n")
    (image / "etc" / "nsswitch.conf").write_text("hosts: files dns\n")
    # What is mounted there has its mode: a tmpfs of Docker's, an unnamed volume.
    (image / "tmp").mkdir()
    (image / "tmp").chmod(0o1777)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for directory in (place(image, library), place(image, venv)):
        assert compileall.compile_dir(
            directory, quiet=1, stripdir=image, prependdir="/", invalidation_mode=unchecked
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Which ascendnpu-ir compiler runs, where its programs lie, and where results are cached.

Several versions can be used side by side: the installed wheel, and others unpacked into the cache folder
(`ascend-perf compilers add 1.1.0`).  Two are never installed in one environment.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = re.compile(r"\d+(\.\d+){1,3}([a-z0-9.]*)")


class ToolchainError(RuntimeError):
    """A compiler is missing or unusable; the message says what to do."""


def cache_dir() -> Path:
    """Folder of compiled code and unpacked compilers: `ASCEND_PERF_CACHE`; in a project with an asv.conf.json its
    `.asv/cache`; else the user's cache folder."""
    given = os.environ.get("ASCEND_PERF_CACHE")
    if given:
        return Path(given)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "asv.conf.json").is_file():
            return folder / ".asv" / "cache"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "ascend-perf"


def keep(place: Path, data: bytes) -> None:
    """Put a file into the cache: a reader sees all of it or nothing.  A cache that cannot be written, or is full,
    keeps nothing, which costs time and decides nothing."""
    name = ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, place)
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)


def require_cache() -> None:
    """Raise ToolchainError unless the cache folder can be written: without it every run compiles everything."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"-")
    except OSError as error:
        raise ToolchainError(
            f"the cache folder {folder} cannot be written ({error.strerror}); set ASCEND_PERF_CACHE to another"
        ) from error


def installed_version() -> str | None:
    """Version of the ascendnpu-ir wheel in this environment, or None."""
    try:
        return importlib.metadata.version("ascendnpu-ir")
    except importlib.metadata.PackageNotFoundError:
        return None


def triton_ascend_version() -> str | None:
    """Version of triton-ascend in this environment, or None."""
    try:
        return importlib.metadata.version("triton-ascend")
    except importlib.metadata.PackageNotFoundError:
        return None


def default_version() -> str:
    """The version used when none is named: `ASCEND_PERF_COMPILER`, else the installed wheel."""
    version = os.environ.get("ASCEND_PERF_COMPILER") or installed_version()
    if not version:
        raise ToolchainError(
            "no Ascend compiler here: install the extra `model` (Python 3.10 or 3.11), "
            "or run `ascend-perf compilers add 1.2.0`"
        )
    return version


def unpacked_versions() -> list[str]:
    """Versions unpacked in the cache folder, oldest first."""
    folder = cache_dir() / "compilers"
    found = [p.name for p in folder.iterdir() if VERSION.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=version_key)


def available_versions() -> list[str]:
    """Every version that can be used now, oldest first."""
    installed = installed_version()
    return sorted({*unpacked_versions(), *([installed] if installed else [])}, key=version_key)


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a version string; text after the numbers is ignored."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def compiler_bin(version: str | None = None) -> Path:
    """Folder that holds `bishengir-compile` of that version.

    Raises ToolchainError when the version is not here, with the command that fetches it.
    """
    version = version or default_version()
    if not VERSION.fullmatch(version):
        raise ToolchainError(f"{version!r} is not a compiler version; expected something like 1.2.0")
    if version == installed_version():
        files = importlib.metadata.files("ascendnpu-ir") or []
        for file in files:
            if file.name == "bishengir-compile":
                return Path(str(file.locate())).resolve().parent
    folder = cache_dir() / "compilers" / version
    for path in sorted(folder.rglob("bishengir-compile")):
        return path.resolve().parent
    have = ", ".join(available_versions()) or "none"
    raise ToolchainError(
        f"ascendnpu-ir {version} is not here (available: {have}); fetch it with "
        f"`ascend-perf compilers add {version}`"
    )


def add_compiler(version: str, wheel: str | os.PathLike[str] | None = None) -> Path:
    """Unpack ascendnpu-ir `version` into the cache folder; download the wheel with pip when none is given.

    The programs do not depend on the Python version, so any CPython's wheel will do.  Returns the folder of
    the programs.  Raises ToolchainError with pip's words when the download fails.
    """
    if not VERSION.fullmatch(version):
        raise ToolchainError(f"{version!r} is not a compiler version; expected something like 1.2.0")
    target = cache_dir() / "compilers" / version
    if any(target.rglob("bishengir-compile")):
        return compiler_bin(version)
    require_cache()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if wheel is None:
            wheel = _download(version, scratch)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        programs = [p for p in unpacked.rglob("bishengir-*") if p.is_file()]
        if not programs:
            raise ToolchainError(f"{os.fspath(wheel)} holds no bishengir-compile: not an ascendnpu-ir wheel?")
        for program in programs:
            program.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    return compiler_bin(version)


def _download(version: str, folder: str) -> Path:
    base = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--only-binary=:all:",
        "-d",
        folder,
    ]
    wanted = f"ascendnpu-ir=={version}"
    done = subprocess.run([*base, wanted], capture_output=True, text=True)
    if done.returncode:
        # Outside CPython 3.10-3.13 no wheel matches the running interpreter; any of them holds the programs.
        done = subprocess.run([*base, "--python-version", "3.11", wanted], capture_output=True, text=True)
    wheels = sorted(Path(folder).glob("*.whl"))
    if done.returncode or not wheels:
        words = done.stderr.strip().splitlines()[-1:] or ["pip gave no reason"]
        raise ToolchainError(f"could not download ascendnpu-ir {version}: {words[0]}")
    return wheels[0]

"""Put one commit's kernels into an asv environment, measured with the suite of today.

    python -m dashboards.specimen BUILD_DIR ENV_DIR PACKAGE [--keep SUBPACKAGE ...]
    python -m dashboards.specimen BUILD_DIR ENV_DIR --repository PATH ...

PACKAGE is copied out of the commit's checkout.  A kept subpackage (the harness that gives verdicts and times)
stays that of the host: an old commit's kernels are the specimen, the instrument is the same for all of them.

With --repository the checkout itself is put on the import path, before the host's packages: kernels and what they
import come from the commit, this suite from the host.  PATHs say what in it decides the kernels: commits that
leave all of them as they are need no measurement.  Nothing is built, so an install takes milliseconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINK = "specimen"  # in the environment: the checkout that is measured
ON_PATH = "aa-specimen.pth"  # sorts before the file that adds the host's packages


def place(build_dir: Path, env_dir: Path, package: str, keep: tuple[str, ...] = ()) -> Path:
    """Copy `package` from a checkout into an environment; the folder it now lies in.

    Raises FileNotFoundError when the commit has no such package or the host no such kept subpackage.
    """
    source = build_dir / package
    if not (source / "__init__.py").is_file():
        raise FileNotFoundError(f"this commit has no package {package} (looked for {source.name}/__init__.py)")
    base = str(env_dir)
    target = Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base})) / package
    remove(target)
    host = importlib.util.find_spec(package) if keep else None
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", *keep))
    for name in keep:
        kept = Path(host.origin).parent / name if host and host.origin else None
        if kept is None or not kept.is_dir():
            raise FileNotFoundError(f"{package}.{name} is to be kept, but the host has none")
        (target / name).symlink_to(kept, target_is_directory=True)
    return target


def link(build_dir: Path, env_dir: Path) -> Path:
    """Put a checkout on the environment's import path; the link to it, by which descriptions find it."""
    source = build_dir.resolve()
    if not source.is_dir():
        raise FileNotFoundError(f"no checkout {build_dir.name}")
    target = env_dir / LINK
    remove(target)
    target.symlink_to(source, target_is_directory=True)
    base = str(env_dir)
    packages = Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))
    roots = [one for one in (source, source / "src") if one.is_dir()]
    (packages / ON_PATH).write_text("".join(f"{one}\n" for one in roots))
    return target


def paths_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """What decides a commit's kernels, as git pathspecs, from an asv configuration's install command.

    Nothing where it installs in another way, so that every commit counts.
    """
    commands = settings.get("install_command") or []
    for command in [commands] if isinstance(commands, str) else commands:
        words = shlex.split(command)
        if "dashboards.specimen" not in words:
            continue
        given, _ = _parser().parse_known_args(words[words.index("dashboards.specimen") + 1 :])
        # asv installs from the top of a checkout
        if given.repository:
            return tuple(f":(top){one}" for one in given.repository)
        if given.package:
            kept = (f":(top,exclude){given.package}/{one}" for one in given.keep)
            return (f":(top){given.package}", *kept)
    return ()


def remove(target: Path) -> None:
    """Take an earlier commit's copy away; a kept subpackage is a link and only the link goes."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dashboards.specimen", description=__doc__.splitlines()[0])
    parser.add_argument("build_dir", type=Path)
    parser.add_argument("env_dir", type=Path)
    parser.add_argument("package", nargs="?")
    parser.add_argument("--keep", action="extend", nargs="+", default=[], metavar="SUBPACKAGE")
    parser.add_argument("--repository", action="extend", nargs="+", metavar="PATH")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit code 1 with one sentence when the commit cannot be installed."""
    given = _parser().parse_args(arguments)
    try:
        if given.repository:
            link(given.build_dir, given.env_dir)
        elif given.package:
            place(given.build_dir, given.env_dir, given.package, tuple(given.keep))
        else:
            raise FileNotFoundError("name a PACKAGE, or --repository and the paths that decide the kernels")
    except FileNotFoundError as error:
        print(f"specimen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

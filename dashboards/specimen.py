"""Put one commit's kernels into an asv environment, measured with the suite of today.

    python -m dashboards.specimen BUILD_DIR ENV_DIR PACKAGE [--keep SUBPACKAGE ...]

PACKAGE is copied out of the commit's checkout.  A kept subpackage (the harness that gives verdicts and times)
stays that of the host: an old commit's kernels are the specimen, the instrument is the same for all of them.
Nothing is built, so an install takes milliseconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


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


def remove(target: Path) -> None:
    """Take an earlier commit's copy away; a kept subpackage is a link and only the link goes."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit code 1 with one sentence when the commit cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.specimen", description=__doc__.splitlines()[0])
    parser.add_argument("build_dir", type=Path)
    parser.add_argument("env_dir", type=Path)
    parser.add_argument("package")
    parser.add_argument("--keep", action="append", default=[], metavar="SUBPACKAGE")
    given = parser.parse_args(arguments)
    try:
        place(given.build_dir, given.env_dir, given.package, tuple(given.keep))
    except FileNotFoundError as error:
        print(f"specimen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

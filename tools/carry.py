"""Take the suite to a machine without a network, measure there, and bring the results home.

    python tools/carry.py pack FOLDER --last 12 --python 3.12     # here: wheels, commits, script
    FOLDER/run.sh OUT [run options]                               # there, with torch and triton in its python3
    python tools/carry.py bring OUT/results.tar.gz .asv/results   # here again: a plain copy

The machine needs python3 with torch and triton (or torch_npu and triton-ascend), a driver and tar; git as well for
`ascend-perf run`, while `FOLDER/run.sh OUT --no-asv` measures the same commits with tools/gpu_history.py instead,
which needs none.  Exit code: 0 done, 1 a file here differs and was left alone, 4 usage or environment.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_history
import run_files

ROOT = Path(__file__).resolve().parent.parent
# What the suite needs beside torch, triton and numpy, which the machine has.
WANTED = ("asv==0.6.6", "asv_runner==0.3.2", "rich>=13", "ml_dtypes>=0.4", "xxhash>=3")
LEAVE_OUT = ("numpy", "torch", "triton")
GLIBCS = (28, 17, 12, 5)
KINDS = (".json", ".jsonl", ".gz")
MOST_BYTES = 2 << 30


class CarryError(Exception):
    """What cannot be done, and what to do about it."""


def pack(given: argparse.Namespace) -> None:
    """Fill a folder with everything the other machine needs."""
    folder: Path = given.folder
    if folder.exists() and any(folder.iterdir()):
        raise CarryError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    commits = gpu_history.log(given.last, given.revisions)
    if not commits:
        raise CarryError("no commit in that range touches kernels")
    kept = gpu_history.extract(commits, folder / "specimens")
    head = git("rev-parse", "HEAD").strip()
    (folder / "head").write_text(head + "\n")
    (folder / "commits").write_text("".join(commit.hash + "\n" for commit in kept))
    # Every named commit may lie off the branch, so that each gets a name of its own in the bundle.
    names = []
    try:
        for commit in kept:
            names.append(f"refs/carry/{commit.hash}")
            git("update-ref", names[-1], commit.hash)
        git("bundle", "create", "--quiet", str(folder.resolve() / "commits.bundle"), "HEAD", *names)
    finally:
        for name in names:
            git("update-ref", "-d", name)
    tree(folder / "tree.tar")
    script = folder / "run.sh"
    shutil.copyfile(Path(__file__).resolve().parent / "carry_run.sh", script)
    script.chmod(0o755)
    if not given.no_wheels:
        wheels(folder / "wheels", given.python, given.machine)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    count = f"{len(kept)} commit{'' if len(kept) == 1 else 's'}"
    print(f"{folder}: {count}, {size / (1 << 20):.0f} MiB; there: {folder.name}/run.sh OUT")


def git(*arguments: str) -> str:
    """What git says, or CarryError with its words."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise CarryError(f"git {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def tree(place: Path) -> None:
    """The working tree as it is here, without what git ignores."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    with tarfile.open(place, "w") as archive:
        for name in filter(None, names):
            if (ROOT / name).is_file():
                archive.add(ROOT / name, arcname=name, recursive=False)


def wheels(folder: Path, python: str, machine: str) -> None:
    """Download what the suite needs, for the other machine's Python."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "-d", str(folder)]
    command += ["--implementation", "cp", "--python-version", python]
    for glibc in GLIBCS:
        command += ["--platform", f"manylinux_2_{glibc}_{machine}"]
    command += ["--platform", f"manylinux2014_{machine}", "--platform", f"manylinux1_{machine}"]
    done = subprocess.run([*command, *WANTED], capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or ["pip gave no reason"]
        raise CarryError(f"the wheels cannot be downloaded: {words[0]}")
    for wheel in folder.glob("*.whl"):
        if wheel.name.split("-")[0].lower() in LEAVE_OUT:
            wheel.unlink()


def bring(archive: Path, results: Path) -> tuple[int, list[str]]:
    """Copy the results of an archive into a results folder: how many files, and which were left alone because
    there is another file of that name (`ascend-perf results merge` puts such folders together)."""
    results.mkdir(parents=True, exist_ok=True)
    copied, other = 0, []
    with tempfile.TemporaryDirectory(dir=results.parent) as scratch:
        unpack(archive, Path(scratch))
        for path in sorted(Path(scratch).rglob("*")):
            if not path.is_file():
                continue
            name = path.relative_to(scratch)
            target = results / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                copied += 1
            elif filecmp.cmp(path, target, shallow=False):
                continue
            elif name.name == "benchmarks.json":
                copied += _join_json(path, target)
            elif name.suffix == ".jsonl":
                copied += _join_lines(path, target)
            else:
                other.append(str(name))
    return copied, other


def unpack(archive: Path, folder: Path) -> None:
    """Files of a results archive and nothing else: no links, no devices, no path outside the folder."""
    total = 0
    with _whole(archive), tarfile.open(archive) as packed:
        for member in packed:
            name = PurePosixPath(member.name)
            if member.isdir():
                continue
            if not member.isfile() or name.is_absolute() or ".." in name.parts or name.suffix not in KINDS:
                raise CarryError(f"{archive.name} holds {member.name[:80]!r}, which is no results file")
            total += member.size
            if total > MOST_BYTES:
                raise CarryError(f"{archive.name} holds more than {MOST_BYTES >> 30} GiB")
            source = packed.extractfile(member)
            assert source is not None
            place = folder.joinpath(*name.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "wb") as out:
                shutil.copyfileobj(source, out)


@contextlib.contextmanager
def _whole(archive: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise CarryError(f"{archive} is not whole, so nothing was copied; fetch it again ({error})") from None


def _join_json(path: Path, target: Path) -> int:
    """Benchmarks that the other machine knows and this one does not."""
    new, old = json.loads(path.read_text()), json.loads(target.read_text())
    joined = {**new, **old}
    if joined == old:
        return 0
    target.write_text(json.dumps(joined, indent=4, sort_keys=True) + "\n")
    return 1


def _join_lines(path: Path, target: Path) -> int:
    have = set(target.read_text().splitlines())
    lines = [line for line in path.read_text().splitlines() if line not in have]
    with open(target, "a") as file:
        file.writelines(line + "\n" for line in lines)
    return 1 if lines else 0


def main(arguments: list[str] | None = None) -> int:
    parser = run_files.Parser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("pack", help="fill a folder with everything the other machine needs")
    one.add_argument("folder", type=Path)
    one.add_argument("revisions", nargs="*", help="commits, or ranges as git log takes them")
    one.add_argument("--last", type=int, default=1, metavar="N", help="the last N that touch kernels (default: 1)")
    one.add_argument("--python", default="3.12", help="the other machine's Python (default: 3.12)")
    one.add_argument("--machine", default=platform.machine(), help="its processor (default: this one's)")
    one.add_argument("--no-wheels", action="store_true", help="the other machine has asv and rich")
    two = verbs.add_parser("bring", help="copy results that came back into a results folder")
    two.add_argument("archive", type=Path)
    two.add_argument("results", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.verb == "pack":
            pack(given)
            return 0
        copied, other = bring(given.archive, given.results)
    except (CarryError, OSError, tarfile.TarError, ValueError, subprocess.CalledProcessError) as error:
        print(f"carry: {error}", file=sys.stderr)
        return 4
    print(f"{copied} files into {given.results}")
    for name in other:
        print(f"left alone, another file is there: {name}")
    return 1 if other else 0


if __name__ == "__main__":
    os.environ.setdefault("GIT_TERMINAL_PROMPT", "0")
    sys.exit(main())

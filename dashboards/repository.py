"""Reading a git repository: revisions, first-parent order, subjects; runs nothing a repository names."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FULL_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")

# A repository's own configuration may name programs; none of them is to run while reading a log.
_SAFE = ("-c", "log.showSignature=false", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


class RepositoryError(Exception):
    """The repository cannot answer: not a repository, no such revision, git missing."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit; `date` is the committer's clock in milliseconds, 0 where it is not known."""

    hash: str
    subject: str = ""
    author: str = ""
    date: int = 0


def git(repo: str | Path, *arguments: str) -> str:
    """Output of one git command in `repo`; RepositoryError with git's last words when it fails."""
    environment = dict(os.environ, GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0", LC_ALL="C")
    command = ["git", "-C", str(repo), "--no-pager", *_SAFE, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=300, check=False)
    except FileNotFoundError:
        raise RepositoryError("git or the repository's folder is not there") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise RepositoryError(f"git could not be run: {error}") from None
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RepositoryError(words[-1] if words else f"git ended with {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def resolve(repo: str | Path, revision: str) -> str:
    """Full hash of a revision; RepositoryError naming the revision where there is none."""
    if not revision or "\0" in revision:
        raise RepositoryError(f"not a revision: {revision!r}")
    try:
        out = git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
    except RepositoryError as error:
        if is_shallow(repo):
            raise RepositoryError(
                f"unknown revision {revision!r}: the clone is shallow, fetch more of its history "
                "(git fetch --unshallow)"
            ) from None
        reason = str(error)
        if revision == "HEAD" and reason.startswith("git ended"):
            raise RepositoryError("there is no commit here yet: git commit first") from None
        raise RepositoryError(
            f"unknown revision {revision!r}" + ("" if reason.startswith("git ended") else f": {reason}")
        ) from None
    found = out.split()[-1] if out.split() else ""
    if not FULL_HASH.match(found):
        raise RepositoryError(f"unknown revision {revision!r}")
    return found


def is_shallow(repo: str | Path) -> bool:
    """Whether the clone's history was cut off."""
    try:
        return git(repo, "rev-parse", "--is-shallow-repository").strip() == "true"
    except RepositoryError:
        return False


def first_parents(repo: str | Path, revision: str = "HEAD") -> list[Commit]:
    """Commits of the first-parent line that ends at `revision`, oldest first."""
    tip = resolve(repo, revision)
    return _commits(git(repo, "log", "--first-parent", "-z", "--format=%H%x00%an%x00%ct%x00%s", tip, "--"))


def _commits(text: str) -> list[Commit]:
    """Commits of a log, oldest first."""
    fields = text.split("\0")
    rows = [fields[at : at + 4] for at in range(0, len(fields) - 3, 4)]
    return [Commit(h, subject, author, _milliseconds(when)) for h, author, when, subject in reversed(rows)]


def line_through(repo: str | Path, base: str, head: str) -> list[Commit]:
    """First-parent line of `base`, then the commits of `head`'s line that `base` does not contain."""
    before = first_parents(repo, base)
    ours = git(repo, "rev-list", "--first-parent", resolve(repo, head), "^" + resolve(repo, base), "--")
    wanted = set(ours.split())
    return before + [commit for commit in first_parents(repo, head) if commit.hash in wanted]


def line_between(repo: str | Path, good: str, bad: str, paths: Sequence[str] = ()) -> list[list[Commit]]:
    """First-parent commits after `good` up to `bad`, oldest first, in groups that leave `paths` as they are.

    Each group begins with a commit that changes `paths`, the first one with `good`; without paths every commit
    is a group of its own.
    """
    text = git(repo, "log", "--first-parent", "-z", "--format=%H%x00%an%x00%ct%x00%s", bad, "^" + good, "--")
    touching = (
        set(git(repo, "rev-list", "--first-parent", bad, "^" + good, "--", *paths).split()) if paths else None
    )
    groups = [[commit_of(repo, good)]]
    line = _commits(text)
    # good may be on a branch that was merged: then the first commit of the line does not come behind it
    beside = line[:1] if line and parents(repo, line[0].hash)[:1] != [good] else []
    for commit in line:
        if touching is None or commit.hash in touching or commit in beside:
            groups.append([commit])
        else:
            groups[-1].append(commit)
    return groups


def with_same_paths(repo: str | Path, head: str, paths: Sequence[str]) -> list[str]:
    """`head` and the commits before it on its first-parent line that have `paths` as it has them, newest first."""
    changed = git(repo, "rev-list", "--first-parent", "--max-count=1", head, "--", *paths).split()
    since = git(repo, "rev-list", "--first-parent", head, *(f"^{one}" for one in changed), "--").split()
    return since + changed


def commit_of(repo: str | Path, revision: str) -> Commit:
    """One commit with its subject and author."""
    text = git(repo, "log", "-1", "-z", "--format=%H%x00%an%x00%ct%x00%s", resolve(repo, revision), "--")
    return _commits(text)[0]


def parents(repo: str | Path, commit: str) -> list[str]:
    """Parents of a commit, first parent first."""
    return git(repo, "rev-list", "--parents", "-n", "1", commit, "--").split()[1:]


def is_ancestor(repo: str | Path, older: str, newer: str) -> bool:
    """Whether `newer` contains `older`."""
    return merge_base(repo, older, newer) == older


def descendants(repo: str | Path, older: str, newer: str) -> set[str]:
    """Commits up to `newer` that contain `older`."""
    return set(git(repo, "rev-list", "--ancestry-path", newer, "^" + older, "--").split())


def merge_base(repo: str | Path, one: str, other: str) -> str:
    """The best common ancestor, empty where there is none."""
    try:
        return git(repo, "merge-base", one, other).split()[0]
    except RepositoryError:
        return ""


def exists(repo: str | Path, hashes: Sequence[str]) -> set[str]:
    """Those of `hashes` (full ones) that the repository holds."""
    known = set()
    for name in hashes:
        try:
            git(repo, "cat-file", "-e", name + "^{commit}")
        except RepositoryError:
            continue
        known.add(name)
    return known


def _milliseconds(seconds: str) -> int:
    return int(seconds) * 1000 if seconds.lstrip("-").isdigit() else 0

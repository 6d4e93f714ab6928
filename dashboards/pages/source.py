"""What lies behind a change: the kernel's source between two commits, and the code the compiler made of it."""

from __future__ import annotations

import difflib
import functools
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.pages.view import Kernel
from dashboards.repository import Commit, git

MAX_LINES = 400
MAX_COMMITS = 50
MAX_CODE_LINES = 3000
MAX_CODE_BYTES = 8 << 20
CONTEXT = 3
MAX_SENTENCES = 20
# Of a results folder: {"code before, a space, code after": sentences}, for machines without the compiled kernels.
EXPLAINED = "explained.json"
CODE = re.compile(r"[0-9a-f]{8,64}\Z")


@dataclass(frozen=True)
class Difference:
    """Lines of `git diff`; `narrow` when they are of the kernel's own files."""

    commits: tuple[Commit, ...] = ()
    lines: tuple[str, ...] = ()
    narrow: bool = True


def difference(repo: Path, good: str, bad: str, kernel: Kernel) -> Difference:
    """The source of a kernel between two commits, and the commits in between; RepositoryError where git fails."""
    log = git(
        repo, "log", "--first-parent", f"--max-count={MAX_COMMITS}", "-z", "--format=%H%x00%an%x00%s",
        f"{good}..{bad}", "--",
    )  # fmt: skip
    fields = log.split("\0")
    rows = [fields[at : at + 3] for at in range(0, len(fields) - 2, 3)]
    commits = tuple(Commit(name, subject, author) for name, author, subject in rows)
    names = git(repo, "diff", "--no-renames", "--name-only", "-z", good, bad, "--").split("\0")
    changed = [name for name in names if name]
    own = own_files(changed, kernel)
    shown = own or [name for name in changed if name.endswith(".py") and "test" not in name]
    if not shown:
        return Difference(commits)
    how = ("--no-color", "--no-ext-diff", "--no-textconv", "-U3")
    lines = git(repo, "--literal-pathspecs", "diff", *how, good, bad, "--", *shown[:20]).split("\n")
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} more lines"]
    return Difference(commits, tuple(lines), bool(own))


def own_files(changed: Sequence[str], kernel: Kernel) -> list[str]:
    """Of the files that changed: the kernel's own, else those of its family, no tests."""
    code = [
        name for name in changed if "test" not in name and not name.startswith(("dashboards/", "ascend_model/"))
    ]
    own = [name for name in code if Path(name).stem == kernel.op]
    return own or [name for name in code if kernel.family in Path(name).parts[:-1]]


def compiled(before: str, after: str, results: Path | None) -> tuple[str, str]:
    """Two compiled forms as texts: of the compiler's cache, else of the results folder; empty where neither has
    both."""
    for read in (_cached, functools.partial(_kept, results)):
        texts = [[read(part) for part in code.split("+")] for code in (before, after)]
        if all(one for side in texts for one in side):
            return "\n".join(texts[0]), "\n".join(texts[1])
    return "", ""


@functools.lru_cache(maxsize=64)
def _cached(name: str) -> str:
    if not CODE.match(name):
        return ""
    try:
        from ascend_model.explain import load
    except ImportError:
        return ""
    found = load(name)
    return found.compiled.linalg[:MAX_CODE_BYTES] if found else ""


@functools.lru_cache(maxsize=64)
def _kept(results: Path | None, name: str) -> str:
    if results is None or not CODE.match(name):
        return ""
    try:
        with gzip.open(results / "code" / f"{name}.txt.gz") as file:
            return file.read(MAX_CODE_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return ""


def explained(before: str, after: str, results: Path | None = None) -> tuple[str, ...]:
    """Why two compiled forms differ, in sentences: of the compiler's cache, else of the results folder."""
    return explained_here(before, after) or recorded(before, after, results)


def recorded(before: str, after: str, results: Path | None) -> tuple[str, ...]:
    """The sentences that came with the results, none where there are none."""
    place = results / EXPLAINED if results else None
    if place is None or not place.is_file():
        return ()
    said = _recorded(place, place.stat().st_mtime_ns).get(f"{before} {after}", ())
    return tuple(str(one) for one in said[:MAX_SENTENCES]) if isinstance(said, list) else ()


@functools.lru_cache(maxsize=4)
def _recorded(place: Path, _changed: int) -> dict[str, object]:
    try:
        found = json.loads(place.read_text(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=1024)
def explained_here(before: str, after: str) -> tuple[str, ...]:
    """Sentences of `ascend_model.explain` on two code hashes, none where the compiled kernels are not here."""
    try:
        from ascend_model.explain import explain_codes
    except ImportError:
        return ()
    try:
        found = explain_codes(before, after)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return (f"The difference cannot be explained: {error}",)
    return tuple(found.sentences) if found else ()


def bare(code: str) -> str:
    """Compiled code without source locations: a moved line is no difference."""
    try:
        from ascend_model.compile import strip_locations
    except ImportError:
        return code
    return strip_locations(code)


def pairs(before: str, after: str) -> list[tuple[str | None, str | None]]:
    """Lines of two texts beside each other: what differs, with a few lines around it."""
    a, b = (one.splitlines()[:MAX_CODE_LINES] for one in (before, after))
    rows: list[tuple[str | None, str | None]] = []
    for group in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_grouped_opcodes(CONTEXT):
        if rows:
            rows.append(("⋮", "⋮"))
        for _, a_from, a_to, b_from, b_to in group:
            left, right = a[a_from:a_to], b[b_from:b_to]
            for at in range(max(len(left), len(right))):
                rows.append((left[at] if at < len(left) else None, right[at] if at < len(right) else None))
        if len(rows) > MAX_LINES:
            return [*rows[:MAX_LINES], ("…", "…")]
    return rows

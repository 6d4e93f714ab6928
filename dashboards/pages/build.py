"""`ascend-perf dashboard`: static pages from a results folder.  Only what changed is made again."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dashboards.events import Event, find_events, group_events
from dashboards.pages import compare, compilers, data, event, example, feed, health, kernel, overview, problem
from dashboards.pages.markup import Markup, visible
from dashboards.pages.view import Kernel, View, event_name, event_path, faced, kernels_of, others_of
from dashboards.repository import RepositoryError, resolve
from dashboards.results import BESIDE, History, ResultsError, load

EXAMPLES = """examples:
  ascend-perf dashboard                              pages of .asv/results in .asv/site
  ascend-perf dashboard --results r --repo . --out site
  ascend-perf dashboard --head my-branch             the history that ends at a branch
  ascend-perf dashboard --example                    the example that comes with the project
then open .asv/site/index.html, or `ascend-perf serve`."""

RECORD = ".build.json"
PARTS = ".parts"
ASSETS = Path(__file__).parent / "assets"
USAGE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("--results", help="folder of asv results (default: the one of asv.conf.json)")
    parser.add_argument("--repo", help="git repository of the commits (default: the one of asv.conf.json)")
    parser.add_argument("--head", default="HEAD", help="revision whose first-parent line is shown")
    parser.add_argument("--out", help="folder of the site (default: site beside the results)")
    parser.add_argument("--config", default="asv.conf.json")
    parser.add_argument("--example", action="store_true", help="pages of the results that come with the project")
    parser.add_argument("--fresh", action="store_true", help="make every page again")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(given: argparse.Namespace) -> int:
    """0 built (also when there is little to show: the page says so), 4 usage or environment."""
    from dashboards.run import results_folder

    try:
        results = Path(given.results) if given.results else results_folder(given.config)
    except Exception as error:  # asv has an exception of its own for every way a configuration can be wrong
        print(f"ascend-perf dashboard: {given.config} cannot be read: {error}", file=sys.stderr)
        return USAGE
    if given.example:
        given.out = given.out or str(results.parent / "example-site")
        results = example.FOLDER
    repo = Path(given.repo) if given.repo else repository_of(given.config)
    out = Path(given.out) if given.out else results.parent / "site"
    os.environ.setdefault("ASCEND_PERF_CACHE", str((results.parent / "cache").resolve()))
    # What was named has to be there; of what was not, the page says what is missing.
    try:
        if given.results and not results.is_dir():
            raise SiteError(f"there is no folder {visible(str(results))}")
        if given.repo or given.head != "HEAD":
            resolve(repo, given.head)
    except (SiteError, RepositoryError) as error:
        print(f"ascend-perf dashboard: {error}", file=sys.stderr)
        return USAGE
    try:
        with progress(given.quiet) as step:
            build(results, repo, out, head=given.head, fresh=given.fresh, step=step)
    except (SiteError, ResultsError, OSError) as error:
        print(f"ascend-perf dashboard: {error}", file=sys.stderr)
        return USAGE
    print(out.resolve() / "index.html")
    return 0


class SiteError(Exception):
    """The site cannot be made of what was named, or not where."""


def repository_of(config: str) -> Path:
    """The repository that asv measures, if it is a local one; else the folder of its configuration."""
    place = Path(config).parent
    try:
        from asv.config import Config

        repo = str(Config.load(config).repo)
    except Exception:
        return place
    return place / repo if (place / repo).is_dir() else place


Step = Callable[[str, int, int], None]


def quiet(_what: str, _done: int, _of: int) -> None:
    """No progress."""


def build(
    results: Path,
    repo: Path | None,
    out: Path,
    *,
    head: str = "HEAD",
    fresh: bool = False,
    step: Step = quiet,
    cache: str | Path | bool | None = True,
) -> View:
    """Writes the site of a results folder to `out`."""
    site = Site.at(out, fresh=fresh)
    step("reading results", 0, 1)
    view = read(results, repo, head, cache)
    step("reading results", 1, 1)
    site.assets()
    if not view.kernels:
        shown = results != example.FOLDER and example.FOLDER.is_dir()
        site.write("index.html", problem.render(view, example=shown))
        site.finish()
        if shown:
            build(example.FOLDER, repo, out / "example", fresh=fresh, step=step, cache=None)
        return view
    foot = overview.foot(view)
    _write_pages(site, view, foot, step)
    site.finish()
    return view


def read(results: Path, repo: Path | None, head: str, cache: str | Path | bool | None) -> View:
    """The history with its events, and notices of what is missing in it."""
    notices: list[str] = []
    history: History | None = None
    if results.is_dir():
        try:
            history = load(results, repo, head=head, cache=cache)
        except RepositoryError as error:
            notices.append(
                f"No git history: {error}. Commits come by the date of their results, without subjects and "
                "differences of source. Give the repository with --repo."
            )
            repo = None
            history = load(results, None, cache=cache)
        if not history.commits and repo is not None:
            bare = load(results, None, cache=cache)
            if bare.commits:
                notices.append(
                    f"None of the {len(bare.commits)} measured commits is on the first-parent line of "
                    f"{visible(head)} in this repository: results of another project, or of a branch. Give the "
                    "right one with --repo, or the branch with --head. Until then commits come by date."
                )
                history, repo = bare, None
    if history is None:
        return View(_nothing(), (), repo, (f"There is no folder {visible(str(results))}.",), results)
    if history.beside:
        notices.append(
            f"{len(history.beside)} measured commits are left out: they are not on the first-parent line of "
            f"{visible(head)} (another branch, or another project's results). --head shows another line."
        )
    other = [one for one in history.problems if BESIDE not in one.reason]
    if other:
        notices.append(
            f"{len(other)} parts of the results could not be read, such as {other[0].path}: {other[0].reason}. "
            "All are on the health page."
        )
    if len(history.commits) == 1:
        notices.append(
            "One commit is measured: changes show from the second one. `ascend-perf run --last 5` adds more."
        )
    if history.series and not (history.value == history.value).any():
        notices.append(
            "Nothing that ran gave a number: all failed or was skipped. The reasons are below and on the health "
            "page; `ascend-perf model <op>` tries one kernel by itself."
        )
    others = others_of(history)
    history = history.only([row for row, one in enumerate(history.series) if one.of_kernel])
    grouped = group_events(find_events(history)) if history.commits else []
    events = tuple(faced(one) for one in reversed(grouped))
    view = View(history, events, repo, (), results, kernels_of(history.series), others)
    for commit, ops in view.left_out.items():
        named = ", ".join(ops[:6]) + (f" and {len(ops) - 6} more" if len(ops) > 6 else "")
        notices.append(
            f"Not measured at the newest commit {commit[:10]}: {named}. Their states are those of the commit that "
            f"they were last measured at. `ascend-perf run {commit[:10]} --every-commit` measures what is missing."
        )
    return dataclasses.replace(view, notices=tuple(notices))


def _nothing() -> History:
    with tempfile.TemporaryDirectory() as folder:
        return load(folder, None, cache=None)


def _write_pages(site: Site, view: View, foot: Markup, step: Step) -> None:
    site.write("data/commits.js", data.commits(view))
    site.write("data/heat.js", overview.heat_data(view))
    site.write("index.html", overview.render(view, foot))
    site.write("events.html", overview.render_events(view, foot))
    site.write("compilers.html", compilers.render(view, foot))
    site.write("health.html", health.render(view, foot))
    site.write("feed.xml", feed.render(view))
    for name, make in compare.files(view, foot):
        site.write_keyed(name, *make)
    by_kernel: dict[str, list[Event]] = {}
    for one in view.events:
        by_kernel.setdefault(view.kernel_of[one.series].slug, []).append(one)
    total = len(view.kernels) + len(view.events)
    for at, one_kernel in enumerate(view.kernels):
        step(f"kernel {one_kernel.op}", at, total)
        _write_kernel(site, view, one_kernel, by_kernel.get(one_kernel.slug, []), foot)
    for at, one_event in enumerate(view.events, len(view.kernels)):
        step(f"event {event_name(one_event)}", at, total)
        key = event.fingerprint(view, one_event) + data.digest_of(foot)
        site.write_keyed(
            event_path(one_event), key, functools.partial(event.render, view, one_event, foot, site.keep)
        )
        site.write_keyed(
            f"data/event/{event_name(one_event)}.js", key, functools.partial(event.data_file, view, one_event)
        )
    step("done", total, total)


def _write_kernel(site: Site, view: View, one: Kernel, events: list[Event], foot: Markup) -> None:
    for case, rows in kernel.cases_of(view, one.rows).items():
        site.write(data.case_path(one, case), data.case_file(view, one, case, rows))
    site.write(one.path, kernel.render(view, one, events, foot))


@dataclass
class Site:
    """The folder of the site: writes what changed, and in the end takes away what is no part of it any more."""

    out: Path
    code: str
    before: dict[str, str]
    now: dict[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, out: Path, *, fresh: bool = False) -> Site:
        """Opens or makes the folder; refuses one that holds anything else."""
        record = out / RECORD
        if out.exists() and not out.is_dir():
            raise SiteError(f"{out} is no folder")
        if out.is_dir() and any(out.iterdir()) and not record.is_file():
            raise SiteError(
                f"{out} holds something else than a site of this command; name another folder with --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        known = {} if fresh else _read_record(record)
        code = _own_digest()
        site = cls(out, code, known if known.pop("", "") == code else {})
        if not record.exists():
            record.write_text("{}")
        return site

    def place(self, name: str) -> Path:
        """Where a file of the site lies; every name is made by `view.slug` or fixed."""
        place = self.out / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise SiteError(f"not a name for a page: {visible(name)}")
        return place

    def write(self, name: str, content: str) -> None:
        """Writes one file unless it holds the same already."""
        key = data.digest_of(content)
        self.write_keyed(name, key, lambda: content)

    def write_keyed(self, name: str, key: str, make: Callable[[], str]) -> None:
        """Writes what `make` gives, unless the file was written with the same key before."""
        place = self.place(name)
        self.now[name] = key
        if self.before.get(name) == key and place.is_file():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(make(), encoding="utf-8", errors="replace")

    def keep(self, name: str, make: Callable[[], Markup]) -> Markup:
        """A part of a page that depends on its name alone: made once, then read."""
        part = f"{PARTS}/{data.digest_of(name, self.code)}"
        place = self.place(part)
        self.now[part] = name
        if self.before.get(part) == name and place.is_file():
            return Markup(place.read_text(encoding="utf-8"))
        made = make()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(made, encoding="utf-8", errors="replace")
        return made

    def assets(self) -> None:
        """The site's own scripts and styles, and plotly's bundle."""
        for path in sorted(ASSETS.iterdir()):
            self.write(f"assets/{path.name}", path.read_text(encoding="utf-8"))
        bundle = plotly_bundle()
        facts = bundle.stat()
        key = f"{facts.st_size}-{facts.st_mtime_ns}"
        place = self.place("assets/plotly.min.js")
        self.now["assets/plotly.min.js"] = key
        if self.before.get("assets/plotly.min.js") != key or not place.is_file():
            shutil.copyfile(bundle, place)

    def finish(self) -> None:
        """Removes files of an earlier build that this one does not have, and keeps what was written.

        A link to an event that is not found any more still leads to a page, which says so.
        """
        for name in sorted(set(_read_record(self.out / RECORD)) - set(self.now) - {""}):
            if name.startswith(PARTS):
                self.now[name] = self.before.get(name, "")  # its page was not made again
            elif name.startswith("event/"):
                self.write(name, problem.render_gone())
            else:
                self.place(name).unlink(missing_ok=True)
        text = json.dumps({"": self.code, **self.now}, indent=0, sort_keys=True)
        temporary = self.out / (RECORD + ".part")
        temporary.write_text(text)
        os.replace(temporary, self.out / RECORD)


def plotly_bundle() -> Path:
    """plotly.min.js of the installed plotly."""
    import importlib.util

    found = importlib.util.find_spec("plotly")
    place = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if place is None or not place.is_file():
        raise SiteError("plotly is not installed: pip install 'ascend-perf[dash]'")
    return place


def _read_record(record: Path) -> dict[str, str]:
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {str(k): str(v) for k, v in known.items() if ".." not in Path(k).parts and not Path(k).is_absolute()}


def _own_digest() -> str:
    """Of the code that makes the pages: another code makes other pages."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return data.digest_of(*(path.read_bytes() for path in files))


@contextlib.contextmanager
def progress(silent: bool) -> Iterator[Step]:
    """A bar on the terminal; nothing where the output is no terminal."""
    if silent or not sys.stderr.isatty():
        yield quiet
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    columns = (TextColumn("{task.percentage:>3.0f}%"), BarColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)

        def step(what: str, done: int, of: int) -> None:
            bar.update(task, description=visible(what), completed=done, total=max(of, 1))

        yield step

"""The example that comes with the project: small results of real runs, so that the pages can be seen at once.

python -m dashboards.pages.example .asv/results             # takes these results as the example
python -m dashboards.pages.example --explain .asv/results   # adds why its events happened, and their compiled code
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from dashboards.pages import source

FOLDER = Path(__file__).parent / "example"


def compact(results: Path, out: Path) -> None:
    """Copies what the pages read: result files, the last word of each sidecar, the code of ops' own kernels.  Of a
    device the state after a case, since a hundred cases would say the same of before."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    known = json.loads((results / "benchmarks.json").read_text())
    names = ("name", "unit", "param_names", "params", "type", "version")
    rows = {
        name: {key: row[key] for key in names if key in row} if isinstance(row, dict) else row
        for name, row in known.items()
    }
    (out / "benchmarks.json").write_text(json.dumps(rows) + "\n")
    for path in sorted(results.glob("*/*.json")):
        (out / path.parent.name).mkdir(exist_ok=True)
        (out / path.parent.name / path.name).write_text(json.dumps(json.loads(path.read_text())) + "\n")
    codes = set()
    (out / "states").mkdir()
    for path in sorted((results / "states").glob("*.jsonl")):
        last = {}
        for line in path.read_text().splitlines():
            one = json.loads(line)
            last[one["suite"], one["case"], one["impl"], one["machine"], json.dumps(one["versions"])] = one
        for one in last.values():
            if one["role"] == "op":
                codes.update(one["code"].split("+"))
            if one.get("device"):
                one["device"].pop("before", None)
        (out / "states" / path.name).write_text("".join(json.dumps(one) + "\n" for one in last.values()))
    (out / "code").mkdir()
    _take_codes(codes, results, out)


def explain(results: Path, out: Path, repo: Path) -> None:
    """Keeps what `ascend_model.explain` says of the two codes of each event, and these codes.  The kernels have to
    be compiled here: `ascend-perf run COMMIT` for the commits of the events."""
    from dashboards.pages.build import read

    said = {}
    for event in read(out, repo, "HEAD", None).events:
        before, after = event.code_before, event.code_after
        if before and after and before != after:
            _take_codes({*before.split("+"), *after.split("+")}, results, out)
            sentences = source.explained_here(before, after)
            if sentences:
                said[f"{before} {after}"] = list(sentences)
    (out / source.EXPLAINED).write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")


def _take_codes(codes: Iterable[str], results: Path, out: Path) -> None:
    for code in sorted(codes):
        place = results / "code" / f"{code}.txt.gz"
        if place.is_file() and not (out / "code" / place.name).is_file():
            shutil.copyfile(place, out / "code" / place.name)


if __name__ == "__main__":
    if sys.argv[1] == "--explain":
        explain(Path(sys.argv[2]), FOLDER, Path("."))
    else:
        compact(Path(sys.argv[1]), FOLDER)

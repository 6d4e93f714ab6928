"""At least twelve commits of this repository measured on the device in one go, interleaved: drift is shared.

    python tools/gpu_history.py --last 12 --json history.json          # on the device
    python tools/gpu_history.py --specimens FOLDER --json history.json # without git: what tools/carry.py packed
    python tools/gpu_history.py --from history.json --results .asv/results   # plain asv results, no device needed;
                                                                             # several files: runs of other cases
    python tools/gpu_history.py --dry --last 3 --ops assign_draft_cache_locs --json history.json

Each commit's kernels live in two processes of their own, with today's harness, and give one sample of a case in
turn; the result of a round is the geometric mean of both.
Results are kept after every case.  Exit code: 0 done, 1 cut short or a commit had nothing, 3 nothing measured,
4 usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import run_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ascend_kernels"
ROUNDS = 8
PROCESSES = 2  # of a commit: where the memory of one lies changes the time of a small kernel
FIRST = "2"  # of the benchmarks whose numbers the first runs have, which do not say it
METRICS = ("device_time", "device_time_cold", "host_time")  # as a sample lists them
CASE_SECONDS = 120  # a process that gives no answer to one question for this long is ended
MOST_DEATHS = 3  # of a commit's processes in a row; the commit is left out from there on


@dataclass(frozen=True)
class Commit:
    """hash, date in milliseconds, subject."""

    hash: str
    date: int
    subject: str


# ---- specimens


def extract(commits: Iterable[Commit], folder: Path) -> list[Commit]:
    """Put the kernels of each commit into `folder/<hash>/ascend_kernels`; those that have some."""
    kept = []
    for commit in commits:
        place = folder / commit.hash
        done = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=tar", commit.hash, "--", PACKAGE], capture_output=True
        )
        if done.returncode:
            print(f"{commit.hash[:10]} has no {PACKAGE}: left out", flush=True)
            continue
        place.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(place)], input=done.stdout, check=True)
        shutil.rmtree(place / PACKAGE / "harness", ignore_errors=True)
        kept.append(commit)
    rows = [vars(commit) for commit in kept]
    (folder / "commits.json").write_text(json.dumps({"version": 1, "commits": rows}, indent=1))
    return kept


def with_harness(folder: Path, commit: Commit) -> Path:
    """Today's harness in a commit's specimen, as `dashboards.specimen` does it."""
    link = folder / commit.hash / PACKAGE / "harness"
    if not link.exists():
        link.symlink_to(ROOT / PACKAGE / "harness", target_is_directory=True)
    return (folder / commit.hash).resolve()


def log(last: int, revisions: list[str]) -> list[Commit]:
    """Commits that touch kernels, oldest first.  Raises ValueError with git's words."""
    command = ["git", "-C", str(ROOT), "log", "-z", "--first-parent", "--format=%H%x00%ct%x00%s"]
    command += revisions or [f"--max-count={last}", "HEAD"]
    command += ["--", PACKAGE, f":(exclude){PACKAGE}/harness"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"git log: {(done.stderr.strip().splitlines() or ['no reason'])[0]}")
    text = done.stdout
    fields = text.split("\0")
    rows = [fields[i : i + 3] for i in range(0, len(fields) - 2, 3)]
    return [Commit(h, int(when) * 1000, subject) for h, when, subject in reversed(rows)]


# ---- one commit's process


def work() -> int:
    """Answer questions on stdin, a JSON line each: {"list": []}, {"ready": [op, case, impls]}, {"sample": impl}.

    ready: with implementations, those are right and only made ready to be timed; with None all are verified first.
    An answer with "lost" is the last one: the device answers this process no more.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a kernel or a compiler prints is no answer
    import ascend_kernels  # before triton

    specimen = Path.cwd()
    if Path(ascend_kernels.__file__).resolve().parents[1] != specimen:
        sys.exit(f"the kernels came from {ascend_kernels.__file__}, not from {specimen}")
    from ascend_kernels.harness import device, gate, timing
    from ascend_kernels.registry import OPS

    place = device.kind()
    module = device.module(place)
    if place == "dry":
        import torch

        torch.set_num_threads(1)

    def impls(op: Any) -> list[str]:
        return [name for name in op.names(place) if name not in op.twins]

    ready: dict[str, Any] = {}
    for line in sys.stdin:
        [(verb, what)] = json.loads(line).items()
        answer: Any
        try:
            if verb == "list":
                cases = (lambda op: op.quick_cases()[:1]) if place == "dry" else (lambda op: op.timed_cases())
                answer = {
                    op.name: {
                        "family": op.family,
                        "cases": cases(op),
                        "roles": {impl: op.role(impl, place) for impl in impls(op)},
                    }
                    for op in OPS.values()
                }
            elif verb == "ready":
                ready.clear()
                op, case, right = OPS[what[0]], what[1], what[2]
                answer = {impl: {"state": "ok", "reason": ""} for impl in right or ()}
                if right is None:
                    expected = gate.Expected.of(op, case)
                    for impl in impls(op):
                        verdict = gate.verify(op, case, impl, expected=expected)
                        answer[impl] = {"state": verdict.state, "reason": verdict.reason[:500]}
                    del expected  # it can be large
                inputs = op.cases[case].arguments()
                for impl, verdict in answer.items():
                    if verdict["state"] == "ok":
                        ready[impl] = timing.prepare(op.calls()[impl], inputs, place)
                        answer[impl] = {**verdict, "number": ready[impl].number}
            else:
                answer = ready[what].sample()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        lost = device.lost(module)
        if lost:
            answer = {**(answer if isinstance(answer, dict) else {"error": lost}), "lost": lost}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if lost:
            return 1
    return 0


WORKER = (sys.executable, str(Path(__file__).resolve()), "--worker")


class Worker:
    """A process of one commit, and another one after it has ended."""

    def __init__(self, specimen: Path, dry: bool) -> None:
        self.specimen = specimen
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(specimen), str(ROOT)])}
        self.environment.pop("PYTHONSAFEPATH", None)
        if dry:
            self.environment["ASCEND_KERNELS_DEVICE"] = "dry"
        self.deaths = 0
        self._start()

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=self.environment, cwd=self.specimen,
        )  # fmt: skip
        self.failed = ""

    def revive(self) -> None:
        """A new process where there is none, up to MOST_DEATHS of them without a case that went well."""
        if self.failed and self.deaths < MOST_DEATHS:
            self.close()
            self._start()

    def ask(self, verb: str, what: Any) -> Any:
        """The answer, or None when the process is gone or silent; `failed` says why from then on."""
        self.begin(verb, what)
        return self.answer()

    def begin(self, verb: str, what: Any) -> None:
        """Ask, and let the process work on it."""
        if self.failed:
            return
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({verb: what}) + "\n")
            self.process.stdin.flush()
        except OSError:
            self._gone("the process ended")

    def answer(self) -> Any:
        """The answer to what was asked last, as `ask` gives it."""
        if self.failed:
            return None
        assert self.process.stdout
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(CASE_SECONDS):
                self.process.kill()
                return self._gone(f"no answer in {CASE_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            return self._gone("the process ended")
        answer = json.loads(line)
        if isinstance(answer, dict) and (lost := answer.pop("lost", "")):
            self._gone(f"the device was lost: {lost}")
        return answer

    def _gone(self, why: str) -> None:
        self.deaths += 1
        self._end()
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-1:]
        self.failed = f"{why} ({last[0][:300] if last else f'exit code {self.process.returncode}'})"

    def close(self) -> None:
        """End the process."""
        if self.process.stdin:
            self.process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# ---- measure


def measure(commits: list[Commit], folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Samples of every case of every commit, interleaved round by round."""
    import torch
    import triton

    from ascend_kernels.harness import device, state
    from ascend_kernels.harness.suite import VERSIONS

    place = "dry" if given.dry else device.kind()
    module = device.module(place)
    found: dict[str, Any] = {
        "version": 1, "dry": given.dry, "complete": False, "commits": [vars(c) for c in commits], "failed": {},
        "measured": VERSIONS["Measured"],
        "versions": {"torch": torch.__version__, "triton": triton.__version__}, "entries": [],
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "started": int(time.time() * 1000),
    }  # fmt: skip
    begin = time.monotonic()
    places = {commit.hash: with_harness(folder, commit) for commit in commits}
    workers = {
        (name, part): Worker(place, given.dry) for name, place in places.items() for part in range(PROCESSES)
    }
    try:
        for worker in workers.values():
            worker.begin("list", [])
        lists = {key: worker.answer() or {} for key, worker in workers.items()}
        own = {worker.process.pid for worker in workers.values()}
        only = {name.strip() for name in (given.ops or "").split(",")} - {""}
        known_ops = {op for known in lists.values() for op, facts in known.items() if isinstance(facts, dict)}
        if known_ops:  # none at all is a fault of the commits, and `failed` or the entries say which
            run_files.names(given.ops, known_ops, "op")
        questions = dict.fromkeys(
            (op, case)
            for known in reversed(list(lists.values()))
            for op, facts in known.items()
            if isinstance(facts, dict) and (not only or op in only)
            for case in spread(facts["cases"], given.cases)
        )
        for op, case in questions:
            for worker in workers.values():
                worker.revive()
            own |= {worker.process.pid for worker in workers.values()}
            before = state.read(place, module)
            entries = ask_all(workers, lists, op, case, 2 if given.dry else ROUNDS)
            after = state.read(place, module)
            before, after = (_without(own, one) for one in (before, after))
            facts = {
                "before": before.as_dict(),
                "after": after.as_dict(),
                "marks": list(state.marks(before, after)),
            }
            for entry in entries:
                entry["device"] = facts
            found["entries"] += entries
            found["failed"] = {name: worker.failed for (name, _), worker in workers.items() if worker.failed}
            keep(given.json, found)
            states = [entry["state"] for entry in entries]
            print(f"{op} {case}: {states.count('ok')} of {len(states)} ok", flush=True)
            if time.monotonic() - begin > given.seconds:
                print("time is up", flush=True)
                return found
    finally:
        for worker in workers.values():
            worker.close()
    found["complete"] = not found["failed"]
    keep(given.json, found)
    return found


def spread(cases: list[str], most: int | None) -> list[str]:
    """At most so many, evenly from the first to the last."""
    if most is None or most >= len(cases):
        return cases
    return [cases[round(i * (len(cases) - 1) / max(1, most - 1))] for i in range(most)]


def _without(own: set[int], read: Any) -> Any:
    """A reading of the device without this run's own processes."""
    import dataclasses

    return dataclasses.replace(read, others=tuple(one for one in read.others if one.pid not in own))


Key = tuple[str, int]  # commit, which of its processes


def ask_all(workers: Mapping[Key, Worker], lists: Mapping[Key, Any], op: str, case: str, rounds: int) -> list[Any]:
    """One case: verdicts of all processes, then samples in turn, another one first in every round."""
    entries: dict[tuple[Key, str], dict[str, Any]] = {}
    having = {
        key: lists[key][op]
        for key in workers
        if isinstance(lists[key], dict) and case in lists[key].get(op, {}).get("cases", ())
    }
    # Nothing is timed yet, so all may work at once; the kernels of a commit are verified in its first process.
    right: dict[str, list[str]] = {}
    for first in (True, False):
        asked = {key: facts for key, facts in having.items() if (key[1] == 0) is first}
        for key in asked:
            workers[key].begin("ready", [op, case, None if first else right.get(key[0], [])])
        for key, facts in asked.items():
            answer = workers[key].answer()
            if answer is None or "error" in answer:
                reason = workers[key].failed or answer["error"]
                answer = {impl: {"state": "crashed or timed out", "reason": reason} for impl in facts["roles"]}
            for impl, verdict in answer.items():
                entries[key, impl] = {
                    "commit": key[0], "op": op, "family": facts["family"], "case": case, "impl": impl,
                    "role": facts["roles"][impl], "samples": [], "number": 1, **verdict,
                }  # fmt: skip
                if first and verdict["state"] == "ok":
                    right.setdefault(key[0], []).append(impl)
    running = [key for key, entry in entries.items() if entry["state"] == "ok"]
    for turn in range(rounds):
        shift = turn % len(running) if running else 0
        for key, impl in running[shift:] + running[:shift]:
            entry = entries[key, impl]
            sample = workers[key].ask("sample", impl)
            if isinstance(sample, list):
                entry["samples"].append(sample)
                workers[key].deaths = 0
            elif entry["state"] == "ok":
                reason = workers[key].failed or sample["error"]
                entry |= {"state": "crashed or timed out", "reason": reason, "samples": []}
    several: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (key, impl), entry in entries.items():
        several.setdefault((key[0], impl), []).append(entry)
    return [together(some) for some in several.values()]


def together(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """One entry of those of a commit's processes: the worst state; samples are geometric means, `again` what the
    medians differ by."""
    import math

    from ascend_kernels.harness.suite import apart

    bad = next((entry for entry in entries if entry["state"] != "ok"), None)
    if bad or len(entries) == 1:
        return {**(bad or entries[0]), "again": {}}
    rounds = list(zip(*(entry["samples"] for entry in entries)))
    again = {}
    for at, metric in enumerate(METRICS):
        columns = [[sample[at] for sample in entry["samples"]] for entry in entries]
        again[metric] = max(apart(one, two) for one in columns for two in columns)
    samples = [[math.prod(column) ** (1 / len(column)) for column in zip(*some)] for some in rounds]
    return {**entries[0], "samples": samples, "again": again}


def keep(place: Path | None, found: dict[str, Any]) -> None:
    """Write what there is so far, whole or not at all."""
    if place:
        part = place.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(place)


# ---- plain asv results


def joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs as one, each of other cases; the first one that has a case keeps it.

    Raises ValueError for runs with other versions or another device: their times are of another environment."""
    names = {entry["device"]["after"].get("name") for found in runs for entry in found["entries"]}
    if len(names) > 1 or any(_kind(found) != _kind(runs[0]) for found in runs):
        raise ValueError("these runs are of several devices or versions; write each for itself")
    commits, entries, taken = {}, [], set()
    for found in runs:
        commits |= {commit["hash"]: commit for commit in found["commits"]}
        entries += [entry for entry in found["entries"] if (entry["op"], entry["case"]) not in taken]
        taken |= {(entry["op"], entry["case"]) for entry in found["entries"]}
    ordered = sorted(commits.values(), key=lambda commit: commit["date"])
    return {**runs[0], "commits": ordered, "entries": entries}


def _kind(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return found["versions"], found.get("measured", FIRST)


def write(found: Mapping[str, Any], results: Path, machine: str) -> int:
    """asv result files, benchmarks.json and sidecars of a history; how many commits have results."""
    from asv import util
    from asv.results import Results
    from asv.runner import BenchmarkResult

    suites: dict[str, dict[str, list[str]]] = {}
    for entry in found["entries"]:
        axes = suites.setdefault(_suite(entry), {"case": [], "impl": []})
        for axis, values in axes.items():
            if entry[axis] not in values:
                values.append(entry[axis])
    known_at = results / "benchmarks.json"
    known = json.loads(known_at.read_text()) if known_at.is_file() else {"version": 2}
    benchmarks = {}
    for suite, axes in suites.items():
        for metric in METRICS:
            name = f"{suite}.track_{metric}"
            params = [[repr(value) for value in values] for values in axes.values()]
            benchmarks[name] = {
                "name": name, "params": params, "param_names": ["case", "impl"], "unit": "us", "type": "track",
                "version": found.get("measured", FIRST), "code": "", "timeout": 3600, "pretty_name": None,
                "setup_cache_key": None,
            }  # fmt: skip
    results.mkdir(parents=True, exist_ok=True)
    util.write_json(str(known_at), {**{k: v for k, v in benchmarks.items() if k not in known}, **known})
    facts = next((e["device"]["after"] for e in found["entries"] if e.get("device")), {})
    about = {"machine": machine, "os": "Linux", "arch": "", "cpu": facts.get("name", ""), "num_cpu": "", "ram": ""}
    (results / machine).mkdir(exist_ok=True)
    util.write_json(str(results / machine / "machine.json"), about, 1)
    versions = dict(found["versions"])
    written = 0
    for commit in found["commits"]:
        mine = [entry for entry in found["entries"] if entry["commit"] == commit["hash"]]
        if not mine:
            continue
        name = "host-py" + found["python"] + "".join(f"-{k}{v}" for k, v in sorted(versions.items()))
        params = {**about, "python": found["python"], **versions}
        one = Results(params, versions, commit["hash"], commit["date"], found["python"], _harmless(name), {})
        by_key = {(_suite(entry), entry["case"], entry["impl"]): entry for entry in mine}
        for benchmark, facts_of in benchmarks.items():
            suite, _, metric = benchmark.rpartition(".track_")
            at, axes = METRICS.index(metric), suites[suite]
            keys = [(suite, case, impl) for case in axes["case"] for impl in axes["impl"]]
            if not any(key in by_key for key in keys):
                continue
            values, samples, numbers = [], [], []
            for key in keys:
                entry = by_key.get(key)
                if entry is None or entry["state"] == "unsupported here":
                    values.append(float("nan"))
                else:
                    values.append(True if entry["samples"] else None)
                taken = [sample[at] for sample in entry["samples"]] if entry else []
                samples.append(taken or None)
                numbers.append((1 if metric == "host_time" else entry["number"]) if entry and taken else None)
            one.add_result(facts_of, BenchmarkResult(values, samples, numbers, 0, "", None), record_samples=False)
        one.save(str(results))
        written += 1
        _write_states(found, commit, mine, results, machine)
    return written


def _write_states(found: Mapping[str, Any], commit: Any, mine: list[Any], results: Path, machine: str) -> None:
    place = results / "states" / f"{commit['hash']}.jsonl"
    place.parent.mkdir(exist_ok=True)
    lines = []
    for entry in mine:
        line = {
            "version": 1, "commit": commit["hash"], "suite": _suite(entry), "op": entry["op"],
            "case": entry["case"], "impl": entry["impl"], "role": entry.get("role", "op"), "pattern": "",
            "state": entry["state"], "reason": entry["reason"], "code": "", "findings": [], "notes": [],
            "pipes": {}, "versions": {"python": found["python"]}, "machine": machine, "at": found["started"],
            "device": entry["device"], "again": entry["again"],
        }  # fmt: skip
        lines.append(json.dumps(line))
    have = set(place.read_text().splitlines()) if place.is_file() else set()
    with open(place, "a") as file:
        file.writelines(line + "\n" for line in lines if line not in have)


def _suite(entry: Mapping[str, Any]) -> str:
    return f"bench_{entry['family']}.Measured" + "".join(part.capitalize() for part in entry["op"].split("_"))


def _harmless(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._+" else "_" for c in name)


def main(arguments: list[str] | None = None) -> int:
    parser = run_files.Parser(description=__doc__)
    parser.add_argument("revisions", nargs="*", help="commits, or ranges as git log takes them")
    parser.add_argument(
        "--last", type=int, default=12, metavar="N", help="the last N that touch kernels (default 12)"
    )
    parser.add_argument(
        "--specimens", type=Path, metavar="FOLDER", help="kernels of the commits, already unpacked"
    )
    parser.add_argument("--ops", help="only these ops, comma-separated")
    parser.add_argument("--cases", type=int, metavar="N", help="only N timed cases of an op, from first to last")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where samples go, after every case")
    parser.add_argument("--seconds", type=float, default=300, help="start no case after this long (default: 300)")
    parser.add_argument("--dry", action="store_true", help="without a device: times mean nothing")
    parser.add_argument(
        "--from", dest="source", type=Path, nargs="+", metavar="FILE", help="samples of earlier runs"
    )
    parser.add_argument("--results", type=Path, help="with --from: write plain asv results into this folder")
    parser.add_argument("--machine", help="with --from: name of the machine (default: after the device)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        return work()
    if given.source:
        try:
            found = joined([run_files.read(one, "gpu_history", 1, "entries", "commits") for one in given.source])
            if not given.results:
                raise ValueError("--results FOLDER says where the asv results go")
            name = next((e["device"]["after"].get("name", "") for e in found["entries"]), "") or "device"
            machine = given.machine or "".join(c if c.isalnum() else "-" for c in name.lower())
            print(f"{write(found, given.results, machine)} commits written for {machine}")
        except (OSError, ValueError, KeyError) as error:
            print(f"gpu_history: {error}", file=sys.stderr)
            return 4
        return 0
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    from ascend_kernels.harness import device

    if not given.dry and device.kind() == "cpu":
        print("gpu_history: no GPU or NPU here; --dry tries it without one", file=sys.stderr)
        return 4
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.specimens or Path(scratch)
        try:
            run_files.check_writable(given.json)
            if given.specimens:
                rows = json.loads((folder / "commits.json").read_text())["commits"]
                commits = [Commit(**row) for row in rows]
            else:
                commits = extract(log(given.last, given.revisions), folder)
        except (OSError, ValueError, KeyError, TypeError, subprocess.CalledProcessError) as error:
            print(f"gpu_history: {error}", file=sys.stderr)
            return 4
        try:
            found = measure(commits, folder, given)
        except run_files.Unknown as error:
            print(f"gpu_history: {error} in these commits", file=sys.stderr)
            return 4
    for name, why in found["failed"].items():
        print(f"{name[:10]}: {why}")
    if not any(entry["samples"] for entry in found["entries"]):
        print("gpu_history: nothing was measured", file=sys.stderr)
        return 3
    return 0 if found["complete"] else 1


if __name__ == "__main__":
    if "--worker" not in sys.argv:
        sys.path.insert(0, str(ROOT))
        if "--dry" in sys.argv:
            os.environ["ASCEND_KERNELS_DEVICE"] = "dry"
    else:
        sys.path.pop(0)  # the commit's kernels come from PYTHONPATH
    sys.exit(main() if "--worker" in sys.argv else run_files.stoppable("gpu_history", main))

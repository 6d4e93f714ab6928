"""`ascend-perf fleet` on a real Ray cluster of several nodes on this machine, which die while it works."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fleet_specimen import MISSING, SLOW, WRONG, specimen
from fleet_workers import SKEW, OddWorker

from ascend_model import toolchain
from dashboards import cli, fleet_cluster, fleet_command
from dashboards.fleet import Dispatcher, Head, Task
from dashboards.fleet_worker import Order, bundle_of
from dashboards.guarded import VARIABLE
from dashboards.results import load

os.environ |= {**fleet_cluster.QUIET, **fleet_cluster.LOOPBACK}  # Ray reads these when it is imported
ray = pytest.importorskip("ray", reason="Ray is not installed (extra `fleet`)")
pytestmark = [pytest.mark.slow, pytest.mark.compiler]

ROOT = Path(__file__).parent.parent
COMPILERS = ("1.1.0", "1.2.0")
COMMITS = 12
LISTEN = "0A"
WRONG_MACHINES = ("", "skewed", "lacking", "old", "full", "filling")


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory):
    """What every raylet of this module inherits."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    for name in ("cache", "reference"):
        place = tmp_path_factory.mktemp(name)
        (place / "compilers").symlink_to(toolchain.cache_dir() / "compilers", target_is_directory=True)
        os.environ[f"FLEET_{name.upper()}"] = str(place)
    os.environ["ASCEND_PERF_CACHE"] = os.environ["FLEET_CACHE"]
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("user"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def cluster(clean_environment):
    """A head node without a slot; every process of it ends with the test."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args=node(0, include_dashboard=False))
    try:
        yield found
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        found.shutdown()


def node(cores: int, **more) -> dict:
    return {"num_cpus": cores, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20, **more}


@pytest.fixture
def repo(tmp_path):
    return tmp_path / "repo", specimen(tmp_path / "repo", COMMITS)


def test_machines_with_something_wrong_are_named_and_the_rest_goes_on(cluster, repo, tmp_path):
    folder, hashes = repo
    for wrong in WRONG_MACHINES:
        # the one without a fault has a device too, which takes two cores for itself
        more = {} if wrong else {"num_cpus": 5, "resources": {"NPU": 2}}
        cluster.add_node(**{**node(1, env_vars={"FLEET_TEST": wrong}), **more})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    backend = fleet_cluster.RayBackend(
        Order("test", hashes[-1], "asv.conf.json", work=str(tmp_path / "work")),
        bundle_of(folder, tmp_path / "scratch", hashes[-1], hashes),
        expected={"triton-ascend": "3.2.0", "ascend-model": "7"}, compilers=COMPILERS, worker=OddWorker,
    )  # fmt: skip
    tasks = [Task(commit, compiler, "modelled-test") for commit in hashes for compiler in COMPILERS]
    tasks += [Task(commit, "1.2.0", "npu-box") for commit in hashes]
    kept: dict[Task, str] = {}
    heard = set()

    def accept(task, slot, outcome):
        assert task not in kept
        kept[task] = outcome.files[0][1].decode()

    def told(event):
        heard.update({event.node} if event.kind in ("joined", "refused") else ())
        if len(heard) == len(WRONG_MACHINES):
            (tmp_path / "work/go").touch()  # until now no task ends

    finished = Head(backend, Dispatcher(tasks), accept, told=told).work()
    backend.close()
    assert set(kept) | set(finished.failed) == set(tasks) and not finished.failed
    assert {kept[task] for task in tasks if task.machine == "modelled-test"} <= {"", "skewed", "lacking"}
    # each device was its task's alone
    assert {kept[task] for task in tasks if task.machine == "npu-box"} == {"NPU 0", "NPU 1"}
    assert all(kept[task] != "lacking" for task in tasks if task.compiler == "1.1.0")
    left = sorted(finished.left.values())
    assert any(one == "triton-ascend: 3.1.0 there, 3.2.0 here" for one in left)
    assert sum(one.startswith("the disk is full: 0.0 GiB free in ") for one in left) >= 1 and len(left) <= 3
    notes = "\n".join(finished.notes)
    assert "has no ascendnpu-ir 1.1.0 (it has: 1.0.0, 1.2.0)" in notes
    assert f"its clock is {SKEW:.0f} s ahead" in notes
    assert list(backend.offsets.values()) == [pytest.approx(SKEW, abs=2)]
    assert [one.name for one in (tmp_path / "work").iterdir() if one.is_dir()] == []


def outside() -> list[str]:
    """Sockets of Ray's processes that listen beyond the loopback interface."""
    owners = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"ray" in (process / "cmdline").read_bytes():
                for handle in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        owners[os.readlink(handle)] = process.name
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            address = fields[1].rpartition(":")[0]
            loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
            if fields[3] == LISTEN and address not in loopback and f"socket:[{fields[9]}]" in owners:
                found.append(fields[1])
    return found


def under(mark: str) -> list[str]:
    """Processes that were started under a mark that begins so."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for entry in (process / "environ").read_bytes().split(b"\0"):
                if entry.startswith(f"{VARIABLE}={mark}".encode()):
                    found.append(process.name)
    return found


def numbers(results: Path) -> dict:
    """Everything that a run says and that does not depend on when it was: cells, states, code."""
    found: dict = {}
    for path in results.glob("modelled-*/*-host-*.json"):
        data = json.loads(path.read_bytes())
        rows = {}
        for name, row in data["results"].items():
            named = dict(zip(data["result_columns"], row))
            rows[name] = {k: v for k, v in named.items() if k not in ("started_at", "duration") and v is not None}
        header = {k: v for k, v in data.items() if k not in ("results", "durations", "result_columns")}
        found[path.name] = json.dumps([header, rows], sort_keys=True)
    for path in results.glob("states/*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            key = (row["commit"], row["suite"], row["case"], row["impl"], row["versions"]["ascendnpu-ir"])
            found[key] = json.dumps({k: v for k, v in row.items() if k != "at"}, sort_keys=True)
    for path in results.glob("code/*"):
        found[path.name] = path.read_bytes()
    return found


def command(folder: Path, *arguments: str, cache: str = "FLEET_CACHE", **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "dashboards.cli", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "ASCEND_PERF_CACHE": os.environ[cache]}, **more,
    )  # fmt: skip


@pytest.mark.skipif(
    not set(COMPILERS) <= set(toolchain.available_versions()),
    reason="needs ascendnpu-ir 1.1.0 and 1.2.0: ascend-perf compilers add 1.1.0",
)
def test_every_task_is_done_once_though_a_node_and_a_worker_are_killed(
    cluster, repo, tmp_path, monkeypatch, capsys
):
    folder, hashes = repo
    work, results = tmp_path / "work", folder / ".asv/results"
    lasting = cluster.add_node(**node(2))
    dying = cluster.add_node(**node(1))
    asked = [f"--compiler={one}" for one in COMPILERS]
    process = command(
        folder, "fleet", "run", "--last", str(COMMITS), "--every-commit", "--address", cluster.address,
        "--work", str(work), "--json", *asked,
    )  # fmt: skip
    try:
        watch(process, results, 3)
        assert outside() == []
        # a worker's folder ends with its process id
        workers = {int(place.name.rpartition("-")[2]): place.name for place in work.iterdir() if place.is_dir()}
        of_lasting = [pid for pid in workers if parent(pid) == lasting.all_processes["raylet"][0].process.pid]
        os.kill(of_lasting[0], signal.SIGKILL)
        watch(process, results, 7)
        cluster.remove_node(dying, allow_graceful=False)
        out, err = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:] + out
    found = json.loads(out)
    assert found["done"] == COMMITS * len(COMPILERS) and found["failed"] == []
    assert list(found["left"].values()) == ["the node is gone"]
    rows = [one for one in fleet_command.records(results)]
    assert sorted((one["commit"], one["compiler"]) for one in rows) == sorted(itertools.product(hashes, COMPILERS))
    assert {one["commit"] for one in rows if one["outcome"] == "build failed"} == {hashes[MISSING]}
    assert len(err.split("it goes elsewhere")) - 1 == 2, err
    assert under(str(work)) == []

    alone = tmp_path / "alone"
    subprocess.run(["git", "clone", "-q", str(folder), str(alone)], check=True)
    single = command(
        alone,
        "run",
        "--last",
        str(COMMITS),
        "--every-commit",
        "--quiet",
        "--json",
        *asked,
        cache="FLEET_REFERENCE",
    )
    out, err = single.communicate(timeout=500)
    assert single.returncode == 0, err
    expected = numbers(alone / ".asv/results")
    assert len([key for key in expected if isinstance(key, tuple)]) == (COMMITS - 1) * len(COMPILERS)
    assert numbers(results) == expected

    monkeypatch.chdir(folder)
    capsys.readouterr()
    joined = tmp_path / "joined"
    assert cli.main(["results", "merge", str(results), str(alone / ".asv/results"), "--into", str(joined)]) == 0
    assert numbers(joined) == expected
    site = tmp_path / "site"
    arguments = ["--results", str(joined), "--repo", ".", "--out", str(site), "--quiet"]
    assert cli.main(["dashboard", *arguments]) == 0
    history = load(joined, folder, cache=None)
    assert [one.hash for one in history.commits] == hashes and not history.problems
    pages = "\n".join(path.read_text() for path in site.rglob("*.html"))
    assert hashes[SLOW][:10] in pages and hashes[WRONG][:10] in pages and "commit 7" in pages


def watch(process: subprocess.Popen, results: Path, count: int) -> None:
    """Wait until so many tasks are on record."""
    while len(fleet_command.records(results)) < count:
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.1)


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0

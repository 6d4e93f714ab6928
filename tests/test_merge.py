"""Joining results: what is in, what comes out, whatever the order, whoever is killed."""

import gzip
import itertools
import json
import math
import os
import shutil
from pathlib import Path

import pytest
from asv_files import COLUMNS, MEASURED, MODELLED, benchmarks_file, result_file, row, state_line, states_file
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import cli, fleet_quality, merge, store
from dashboards.results import load

COMMIT, OTHER = "ab" * 20, "cd" * 20
PATH = "ci/abababab-host.json"


def asv_file(rows, commit=COMMIT, **more) -> bytes:
    data = {
        "commit_hash": commit, "env_name": "host", "date": 1, "params": {"machine": "ci"}, "python": "3.11",
        "requirements": {}, "env_vars": {}, "result_columns": COLUMNS, "results": rows, "durations": {},
        "version": 2, **more,
    }  # fmt: skip
    return json.dumps(data).encode()


def cells(content: bytes) -> dict:
    """(benchmark, parameters) -> value, of a result file; skipped ones are left out."""
    found = {}
    for name, line in json.loads(content)["results"].items():
        for key, value in zip(itertools.product(*line[1]), line[0]):
            if not (isinstance(value, float) and math.isnan(value)):
                found[name, key] = value
    return found


def started(values, when, **more):
    line = row(values, **more)
    line[3] = when
    return line


def test_a_single_version_stays_as_it_is():
    content = b'{"odd":   1}'
    assert merge.join("ci/machine.json", [content, content]).content == content


def test_two_files_of_one_commit_become_one():
    one = asv_file({MODELLED: started([1, 2, math.nan, math.nan], 10)})
    two = asv_file({MODELLED: started([math.nan, 5, 3, None], 20), MEASURED: row([7, 8, 9, 10])})
    joined = merge.join(PATH, [one, two])
    names = [("'small'", "'op'"), ("'small'", "'gather_twin'"), ("'large'", "'op'"), ("'large'", "'gather_twin'")]
    expected = {(MODELLED, names[0]): 1, (MODELLED, names[1]): 5, (MODELLED, names[2]): 3,
                (MODELLED, names[3]): None}  # fmt: skip
    expected |= {(MEASURED, name): value for name, value in zip(names, (7, 8, 9, 10))}
    assert cells(joined.content) == expected
    [conflict] = joined.conflicts
    assert (conflict.kept, conflict.dropped, conflict.rule) == ("5", "2", "the later one")
    assert conflict.key == f"{MODELLED}('small', 'gather_twin')"


def test_other_cases_of_a_benchmark_stand_beside():
    one = asv_file({MODELLED: started([1, 2], 10, params=[["a"], ["x", "y"]], low=[0.5, 1.5])})
    two = asv_file({MODELLED: started([3, 4], 20, params=[["b"], ["y", "z"]])})
    joined = merge.join(PATH, [one, two])
    assert not joined.conflicts
    assert cells(joined.content) == {
        (MODELLED, ("'a'", "'x'")): 1, (MODELLED, ("'a'", "'y'")): 2,
        (MODELLED, ("'b'", "'y'")): 3, (MODELLED, ("'b'", "'z'")): 4,
    }  # fmt: skip
    data = json.loads(joined.content)["results"][MODELLED]
    assert data[1] == [["'b'", "'a'"], ["'y'", "'z'", "'x'"]]
    low = dict(zip(itertools.product(*data[1]), data[5]))
    assert low["'a'", "'x'"] == 0.5 and low["'b'", "'y'"] is None


def test_a_benchmark_that_failed_as_a_whole_stays_as_asv_writes_it():
    failed = [asv_file({MODELLED: started(None, when)}) for when in (1, 2)]
    assert json.loads(merge.join(PATH, failed).content)["results"][MODELLED][0] is None
    earlier, later = (asv_file({MODELLED: started([1, None, math.nan, 2], when)}) for when in (0, 3))
    joined = merge.join(PATH, [failed[0], earlier])
    assert json.loads(joined.content)["results"][MODELLED][0] is None
    assert {one.dropped for one in joined.conflicts} == {"1", "2"}
    joined = merge.join(PATH, [failed[0], later])
    assert json.loads(joined.content)["results"][MODELLED][0] == [1, None, None, 2]


def test_a_higher_version_of_a_benchmark_wins_and_is_named():
    one = asv_file({MODELLED: started([1, 1, 1, 1], 99, version="9")})
    two = asv_file({MODELLED: started([2, 2, 2, 2], 1, version="10")})
    joined = merge.join(PATH, [one, two])
    assert set(cells(joined.content).values()) == {2}
    assert [one.rule for one in joined.conflicts] == ["the higher version of the benchmark"]


def test_files_of_two_commits_with_one_name_are_named():
    one = asv_file({MODELLED: started([1, 1, 1, 1], 1)})
    two = asv_file({MODELLED: started([2, 2, 2, 2], 2)}, commit="abababab" + "0" * 32)
    joined = merge.join(PATH, [one, two])
    assert set(cells(joined.content).values()) == {2}
    assert [one.key for one in joined.conflicts] == ["commit_hash"]


def test_damaged_versions_take_no_part():
    good = asv_file({MODELLED: row([1, 2, 3, 4])})
    joined = merge.join(PATH, [good, good[:50], b""])
    assert joined.content == good and len(joined.unread) == 2


def lines(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.splitlines()]


def test_sidecars_join_line_by_line():
    path = f"states/{COMMIT}.jsonl"
    begun = state_line(COMMIT, state="crashed or timed out", at=5)
    one = f"{begun}\n{state_line(COMMIT, at=5)}\n".encode()
    two = f"{state_line(COMMIT, state='wrong result', at=9)}\n{state_line(COMMIT, 'large', at=9)}\n{{cut".encode()
    joined = merge.join(path, [one, two])
    assert sorted((line["case"], line["state"]) for line in lines(joined.content)) == [
        ("large", "ok"), ("small", "wrong result"),
    ]  # fmt: skip
    assert [(one.kept, one.dropped) for one in joined.conflicts] == [("wrong result", "ok")]
    # the same verdict at another time is no conflict
    again = f"{state_line(COMMIT, at=77)}\n".encode()
    assert not merge.join(path, [one, again]).conflicts


def test_compiled_code_is_the_same_however_it_was_packed(tmp_path):
    versions = [gzip.compress(b"module", level, mtime=0) for level in (0, 9)]
    assert versions[0] != versions[1]
    assert not merge.join("code/x.txt.gz", versions).conflicts
    assert len(merge.join("code/x.txt.gz", [versions[0], gzip.compress(b"other")]).conflicts) == 1


# Values that differ stand for runs whose numbers differ; every file is whole, as asv writes it.
VALUES = st.sampled_from([1, 2.5, None, math.nan])
FILES = st.lists(
    st.tuples(st.sampled_from(["m.A.track_x", "m.B.track_y"]), st.lists(VALUES, min_size=4, max_size=4),
              st.integers(0, 3)),
    min_size=1, max_size=3, unique_by=lambda one: one[0],
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(FILES, min_size=1, max_size=4), st.randoms())
def test_order_and_repetition_do_not_matter_and_nothing_is_lost(files, generator):
    contents = [asv_file({name: started(values, when) for name, values, when in one}) for one in files]
    joined = merge.join(PATH, contents)
    shuffled = [*contents, generator.choice(contents)]
    generator.shuffle(shuffled)
    assert merge.join(PATH, shuffled).content == joined.content
    # an independent reckoning: of each cell the latest that was not skipped; a number before a failure
    best: dict = {}
    for one in files:
        for name, values, when in one:
            for key, value in zip(itertools.product(["'small'", "'large'"], ["'op'", "'gather_twin'"]), values):
                if isinstance(value, float) and math.isnan(value):
                    continue
                rank = when, value is not None
                best.setdefault((name, key), []).append((rank, value))
    found = cells(joined.content)
    assert found.keys() == best.keys()
    for key, some in best.items():
        top = max(rank for rank, _ in some)
        assert found[key] in [value for rank, value in some if rank == top]
    named = {conflict.key for conflict in joined.conflicts}
    for (name, key), some in best.items():
        differs = len({json.dumps(value) for _, value in some}) > 1
        assert (f"{name}({', '.join(key)})" in named) == differs


def folder_of(place: Path, commit: str, value: float, **more) -> Path:
    result_file(place, commit, {MODELLED: row([value] * 4)}, **more)
    states_file(place, commit, [state_line(commit, at=int(value))])
    benchmarks_file(place, {MODELLED: "cycles (modelled)"})
    return place


def plain(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and store.HIDDEN not in path.parts
    }


def merge_command(*arguments, capsys) -> tuple[int, list]:
    code = cli.main(["results", "merge", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_merge_joins_two_folders_and_the_pages_loader_reads_them(tmp_path, capsys):
    one, two = folder_of(tmp_path / "a", COMMIT, 5), folder_of(tmp_path / "b", OTHER, 6)
    before = plain(one), plain(two)
    code, [report] = merge_command(one, two, "--into", tmp_path / "c", capsys=capsys)
    assert code == 0 and report["files"] == 8
    assert (plain(one), plain(two)) == before
    history = load(tmp_path / "c", cache=None)
    assert {commit.hash for commit in history.commits} == {COMMIT, OTHER} and not history.problems
    assert sorted(set(history.value[~(history.value != history.value)])) == [5, 6]
    # into the last one where no target is named; again changes nothing
    code, _ = merge_command(one, two, capsys=capsys)
    assert code == 0 and plain(two) == plain(tmp_path / "c")
    kept = plain(two)
    code, [report] = merge_command(one, two, capsys=capsys)
    assert code == 0 and report["added"] == report["shown"] == 0 and plain(two) == kept


def test_conflicts_are_named_and_both_values_stay_in_the_store(tmp_path, capsys):
    one, two = folder_of(tmp_path / "a", COMMIT, 5), folder_of(tmp_path / "b", COMMIT, 6)
    code, [report] = merge_command(one, two, "--into", tmp_path / "c", capsys=capsys)
    assert code == 1
    assert {(one["path"], one["rule"]) for one in report["conflicts"]} == {(PATH, "the later one")}
    assert len(report["conflicts"]) == 4
    held = dict(store.Store(tmp_path / "c").files(store.Report()))
    assert {json.loads(content)["results"][MODELLED][0][0] for content in held[PATH]} == {5, 6}
    code = cli.main(["results", "merge", str(one), str(two), "--into", str(tmp_path / "d")])
    out = capsys.readouterr().out
    assert code == 1 and "conflict: " in out and "kept (the later one)" in out


def test_what_asv_adds_to_a_merged_folder_is_taken_in(tmp_path, capsys):
    target = tmp_path / "c"
    merge_command(folder_of(tmp_path / "a", COMMIT, 5), "--into", target, capsys=capsys)
    data = json.loads((target / PATH).read_bytes())
    data["results"][MEASURED] = row([1, 2, 3, 4])
    (target / PATH).write_text(json.dumps(data))
    folder_of(target, OTHER, 7)
    code, _ = merge_command(folder_of(tmp_path / "b", COMMIT, 5), "--into", target, capsys=capsys)
    assert code == 0
    shutil.rmtree(target / "ci")
    assert cli.main(["results", "check", str(target)]) == 0
    names = {name for name, _ in cells((target / PATH).read_bytes())}
    assert names == {MODELLED, MEASURED} and (target / "ci/cdcdcdcd-host.json").is_file()


def test_damaged_files_are_set_aside_and_named(tmp_path, capsys):
    source, target = folder_of(tmp_path / "a", COMMIT, 5), folder_of(tmp_path / "b", OTHER, 6)
    (source / "ci/00000000-host.json").write_bytes(b'{"version": 2, "resu')
    (target / "ci/11111111-host.json").write_bytes(b"")
    code, [report] = merge_command(source, target, capsys=capsys)
    assert code == 1
    named = {one["name"].rpartition("/")[2]: one["place"] for one in report["aside"]}
    assert named.keys() == {"00000000-host.json", "11111111-host.json"}
    assert named["00000000-host.json"] == "" and (source / "ci/00000000-host.json").is_file()
    assert Path(named["11111111-host.json"]).read_bytes() == b""
    assert not (target / "ci/11111111-host.json").exists()
    assert not load(target, cache=None).problems
    assert cli.main(["results", "check", str(source)]) == 1 and not (source / ".store").exists()
    assert "00000000-host.json: Unterminated string" in capsys.readouterr().out
    # an object of the store whose bytes changed
    [damaged] = [one for some in store.LocalObjects(target / ".store").names().values() for one in some
                 if one.startswith(store.key_of(PATH))]  # fmt: skip
    place = target / ".store/objects" / damaged[:2] / damaged
    place.write_bytes(place.read_bytes()[:-9])
    assert cli.main(["results", "check", str(target), "--json"]) == 1
    [report] = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in report["aside"]] == [damaged] and Path(report["aside"][0]["place"]).is_file()
    # the source still has it
    (source / "ci/00000000-host.json").unlink()
    code, _ = merge_command(source, target, capsys=capsys)
    assert code == 0 and cli.main(["results", "check", str(target)]) == 0


def test_an_address_of_fsspec(tmp_path, capsys):
    pytest.importorskip("fsspec")
    address = f"memory://store-{os.getpid()}"
    one, two = folder_of(tmp_path / "a", COMMIT, 5), folder_of(tmp_path / "b", OTHER, 6)
    assert merge_command(one, "--into", address, capsys=capsys)[0] == 0
    assert merge_command(two, address, capsys=capsys)[0] == 0
    assert merge_command(address, "--into", tmp_path / "c", capsys=capsys)[0] == 0
    assert plain(tmp_path / "c") == plain(one) | plain(two)
    assert merge_command(folder_of(tmp_path / "d", COMMIT, 9), address, capsys=capsys)[0] == 1
    # through files, which are written beside and moved
    remote = store.Store(f"file://{tmp_path}/remote")
    assert remote.put(PATH, b"{}") and not remote.put(PATH, b"{}")
    assert [len(some) for some in remote.objects.names().values()] == [1]
    assert list((tmp_path / "remote/tmp").iterdir()) == []
    assert cli.main(["results", "merge", str(one), "nowhere://x/y"]) == 4
    assert "nowhere" in capsys.readouterr().err


def test_bad_input_gets_a_sentence_and_exit_code_4(tmp_path, capsys, monkeypatch):
    one = folder_of(tmp_path / "a", COMMIT, 5)
    for arguments, words in (
        (["merge", one], "name two folders"),
        (["merge", one, tmp_path / "none"], "no results folder"),
        (["merge", tmp_path / "none", one], "no results folder"),
        (["merge", one, one], "same folder"),
        (["check", tmp_path / "none"], "no results folder"),
        (["check", one, "--into", one], "--into goes with merge"),
    ):
        assert cli.main(["results", *map(str, arguments)]) == 4
        assert words in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["results", "merge", str(tmp_path / "empty"), "--into", str(tmp_path / "e")]) == 3

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["results", "merge", str(one), "--into", str(tmp_path / "full")]) == 4
    assert "the disk is full" in capsys.readouterr().err
    monkeypatch.undo()
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]
    assert cli.main(["results", "merge", str(one), "--into", str(tmp_path / "full")]) == 0


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    target = store.Store(tmp_path / "c")
    for path in ("../x.json", "a/../../x.json", "/etc/x.json", "a/.hidden", "a\\b/x.json", "a/b/c/d.json", "\0"):
        with pytest.raises(ValueError, match="not a name"):
            target.put(path, b"{}")
    # an object that names such a path, as a stranger could write it
    name, data = store.pack("../evil.json", b"{}")
    target.objects.write(name, data)
    report = store.check(tmp_path / "c")
    assert [one.name for one in report.aside] == [name] and not (tmp_path / "evil.json").exists()


def test_times_that_are_still_to_come_are_named(tmp_path, capsys):
    source = tmp_path / "a"
    states_file(source, COMMIT, [state_line(COMMIT, at=4_000_000_000_000)])
    assert cli.main(["results", "merge", str(source), "--into", str(tmp_path / "c")]) == 0
    assert f"clock: {source}: states/{COMMIT}.jsonl" in capsys.readouterr().out.replace("\n", "")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([COMMIT, OTHER]), st.integers(1, 3)), min_size=1, max_size=5), st.randoms()
)
def test_any_way_of_merging_shows_the_same(tmp_path_factory, parts, generator):
    base = tmp_path_factory.mktemp("merge")
    places = [folder_of(base / f"s{at}", commit, value) for at, (commit, value) in enumerate(parts)]
    store.merge_into(places, base / "at once")
    shuffled = list(places)
    generator.shuffle(shuffled)
    for place in shuffled:
        store.merge_into([place], base / "one by one")
    half = generator.randrange(len(places) + 1)
    for name, some in (("x", places[:half]), ("y", places[half:])):
        store.merge_into(some, base / name)
    store.merge_into([base / "x", base / "y"], base / "halves")
    assert plain(base / "at once") == plain(base / "one by one") == plain(base / "halves")
    names = [store.LocalObjects(base / one / ".store").names() for one in ("at once", "one by one", "halves")]
    assert (
        len({json.dumps({key: sorted(some) for key, some in one.items()}, sort_keys=True) for one in names}) == 1
    )


def test_writers_that_are_killed_lose_nothing(tmp_path):
    found = fleet_quality.writers(tmp_path, count=4, files=240, kills=6, seed=1)
    assert found["files"] == found["objects"] == 240 and found["killed"] >= 1


def test_the_check_of_writers_bites(tmp_path, monkeypatch):
    """A file that no writer brought is missed."""

    def forgetful(folder, writers, files):
        for number in range(1, files):
            path, content = fleet_quality.result_of(number)
            place = folder / f"source{number % writers}" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return [folder / f"source{at}" for at in range(writers)]

    monkeypatch.setattr(fleet_quality, "sources_of", forgetful)
    with pytest.raises(AssertionError, match="1 of 20 files differ"):
        fleet_quality.writers(tmp_path, count=2, files=20, kills=0, seed=1)

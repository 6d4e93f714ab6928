"""The command line: help, exit codes, and sentences for what cannot be done."""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asv_files import MODELLED, benchmarks_file, repository, result_file, row

from ascend_kernels.harness.spec import CompileFailed
from dashboards import cli, missing, run


def sh(*command: str, folder) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: ascend-perf" in text
    assert "example" in text.lower()


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["nothing"], ["run", "--nothing"], ["run", "--last", "0"], ["fleet", "plan", "--last", "-3"],
        ["check", "--format", "nothing"], ["model", "x.py:k", "--rtol", "nan"], ["model", "x.py:k", "--atol=-1"],
    ],
)  # fmt: skip
def test_usage_errors_end_with_four(arguments, capsys):
    assert cli.main(arguments) == 4
    assert "usage:" in capsys.readouterr().err


@pytest.mark.compiler
@pytest.mark.parametrize(
    "arguments",
    [
        ["model", "assign_draft_cache_locs", "--case", "3x4x5"], ["model", "docs/examples/softmax.py:one_row"],
        ["watch", "--once", "docs/examples/softmax.py:one_row"], ["explain", "assign_draft_cache_locs"],
        ["explain", "docs/examples/softmax.py:one_row"],
    ],
)  # fmt: skip
def test_an_unknown_target_is_a_usage_error_that_names_those_there_are(arguments, capsys, monkeypatch):
    words = "no target 'Ascend9'; there are Ascend910B1, Ascend910B2,"
    assert cli.main([*arguments, "--target", "Ascend9"]) == 4
    assert words in capsys.readouterr().err
    monkeypatch.setenv("ASCEND_KERNELS_TARGET", "Ascend9")
    assert cli.main(arguments) == 4
    assert words in capsys.readouterr().err


@pytest.mark.compiler
def test_an_op_is_planned_for_the_target_it_is_compiled_for(capsys, monkeypatch):
    """256 rows of copies in one program a core: 48 or 40 of them."""
    monkeypatch.setenv("ASCEND_KERNELS_TARGET", "Ascend910B1")
    grids = []

    def kept(self, launch):
        grids.append((self.target, launch.grid))
        raise CompileFailed("nothing is compiled here")

    monkeypatch.setattr("ascend_kernels.harness.model.Modelled.__call__", kept)
    for target in ("Ascend910B1", "Ascend910B4"):
        cli.main(["model", "assign_draft_cache_locs", "--case", "256x8x5", "--target", target])
    assert grids[0] == ("Ascend910B1", (48,))
    assert dict(grids)["Ascend910B4"] == (40,)
    assert os.environ["ASCEND_KERNELS_TARGET"] == "Ascend910B1"


def test_modules_are_loaded_only_for_their_command():
    for command in cli.COMMANDS.values():
        module = importlib.import_module(command.module)
        assert callable(module.add_arguments) and callable(module.run)


@pytest.mark.compiler
def test_model_lists_ops(capsys):
    assert cli.main(["model", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "ragged" in listed["assign_req_to_token_pool"]["cases"]


@pytest.mark.compiler
def test_model_gives_every_documented_key(capsys):
    assert cli.main(["model", "assign_draft_cache_locs", "--case", "3x4x5", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert {
        "op",
        "case",
        "impl",
        "target",
        "compiler",
        "status",
        "cycles",
        "bound_cycles",
        "counts",
        "busy",
        "stalls",
        "findings",
    } <= set(row)
    counts = {"scalar_accesses", "scalar_waits_in_loops", "dma_in", "dma_out", "bytes_in", "bytes_out"}
    counts |= {"vector_ops", "vector_repeats", "ub_bytes", "double_buffers", "flags", "barriers", "out_of_bounds"}
    assert counts <= set(row["counts"])
    assert set(row["busy"]) == {"S", "V", "MTE2", "MTE3"}
    assert row["status"] == "ok" and row["cycles"] > 0


@pytest.mark.compiler
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nope"], "no op 'nope'; there are"),
        (["assign_draft_cache_locs", "--case", "nope"], "no case 'nope'; there are"),
        (["assign_draft_cache_locs", "--impl", "nope"], "no implementation 'nope'; there are"),
        (["assign_draft_cache_locs", "--compiler", "0.0.1"], "ascend-perf compilers add 0.0.1"),
        (["missing.py:k"], "no file missing.py"),
        ([], "name an op or FILE.py:KERNEL"),
    ],
)
def test_model_says_what_is_wrong(arguments, words, capsys):
    assert cli.main(["model", *arguments]) == 4
    assert words in capsys.readouterr().err


FILE = """
import triton
import triton.language as tl
{more}
@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset, mask=offset < n) * 2.0, mask=offset < n)
"""
GOOD = ["--arg", "x=f32[100]", "--arg", "out=f32[100]", "--arg", "n=100", "--const", "BLOCK=64", "--grid", "2"]


@pytest.mark.compiler
def test_model_runs_a_kernel_of_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(more=""))
    trace = tmp_path / "trace.json"
    assert cli.main(["model", f"{file}:scale", *GOOD, "--json", "--trace", str(trace)]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["status"] == "ok" and row["counts"]["bytes_in"] == 400 and row["counts"]["bytes_out"] == 400
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.compiler
@pytest.mark.parametrize(
    "more, arguments, words",
    [
        ("", ["--arg", "x=f32[4]"], "missing --arg out=..., --arg n=..., --const BLOCK=..."),
        ("", [*GOOD, "--arg", "y=1"], "it has no y"),
        ("", [*GOOD[:-1], "0"], "grid"),
        ("", [*GOOD, "--arg", "n=many"], "neither a number nor dtype[shape]"),
        ("", [*GOOD, "--arg", "x=f31[4]"], "expected dtype[shape] with dtype one of"),
        ("import not_installed_anywhere", GOOD, "needs the module not_installed_anywhere"),
        ("1 / 0", GOOD, "cannot be imported: ZeroDivisionError"),
    ],
)
def test_model_says_what_is_wrong_with_a_file(tmp_path, capsys, more, arguments, words):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(more=more))
    assert cli.main(["model", f"{file}:scale", *arguments]) == 4
    assert words in capsys.readouterr().err
    assert cli.main(["model", f"{file}:other", *arguments]) == 4


class TestChoosingCommits:
    @pytest.fixture
    def repo(self, tmp_path, monkeypatch):
        sh("git", "init", "-q", "-b", "main", folder=tmp_path)
        sh("git", "config", "user.name", "Test", folder=tmp_path)
        sh("git", "config", "user.email", "test@localhost", folder=tmp_path)
        shutil.copy(Path(__file__).parent.parent / "asv.conf.json", tmp_path)
        for i, path in enumerate(
            ["ascend_kernels/a.py", "README", "ascend_kernels/harness/gate.py", "ascend_kernels/b.py", "docs/x"]
        ):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(str(i))
            sh("git", "add", "-A", folder=tmp_path)
            sh("git", "commit", "-qm", f"commit {i}", folder=tmp_path)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def chosen(self, *arguments: str) -> list[str]:
        parser = argparse.ArgumentParser()
        run.add_arguments(parser)
        return [commit.subject for commit in run.choose(parser.parse_args(arguments))]

    def test_commits_that_touch_kernels(self, repo):
        assert self.chosen() == ["commit 3"]
        assert self.chosen("--last", "5") == ["commit 0", "commit 3"]
        assert self.chosen("HEAD~4..HEAD") == ["commit 3"]
        assert self.chosen("HEAD~4..HEAD", "--every-commit") == [f"commit {i}" for i in (1, 2, 3, 4)]
        assert self.chosen("--last", "9", "--paths", "docs") == ["commit 4"]
        assert self.chosen("HEAD~3", "--last", "9") == ["commit 0"]

    def test_commits_that_touch_what_another_repository_installs(self, repo):
        settings = (repo / "asv.conf.json").read_text()
        own = settings.replace("ascend_kernels --keep harness", "--repository docs README 'no such'")
        assert own != settings
        (repo / "asv.conf.json").write_text(own)
        assert self.chosen("--last", "9") == ["commit 1", "commit 4"]

    @pytest.mark.parametrize("bad", ["nope", "nope..HEAD", "HEAD..nope", "--upload-pack=x"])
    def test_unknown_revisions(self, repo, bad, capsys):
        assert cli.main(["run", bad]) == 4
        assert capsys.readouterr().err

    def test_no_commit_and_no_configuration(self, repo, capsys):
        assert cli.main(["run", "HEAD~2..HEAD~1", "--paths", "nothing"]) == 3
        assert "no commit in that range touches kernels" in capsys.readouterr().err
        (repo / "asv.conf.json").unlink()
        assert cli.main(["run"]) == 4
        assert "no asv.conf.json here" in capsys.readouterr().err


LOG = """
   Traceback (most recent call last):
     File "/elsewhere/asv/benchmark.py", line 12, in <module>
     File "{folder}/benchmarks/bench_kernels.py", line 21, in <module>
       op(
     File "/elsewhere/describe.py", line 112, in op
       raise DescriptionError(
   ascend_kernels.harness.describe.DescriptionError: op 'Read': say this
   Last error: Command 'python' returned non-zero exit status 1
   Failed to build the project and import the benchmark suite.
"""


class TestDescriptionsOfAnotherRepository:
    @pytest.fixture
    def repo(self, tmp_path, monkeypatch):
        sh("git", "init", "-q", "-b", "main", folder=tmp_path)
        sh("git", "config", "user.name", "Test", folder=tmp_path)
        sh("git", "config", "user.email", "test@localhost", folder=tmp_path)
        settings = {"version": 1, "results_dir": ".asv/results", "install_command": ["x --repository kernels"]}
        (tmp_path / "asv.conf.json").write_text(json.dumps(settings))
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks/bench_kernels.py").write_text("ONE = 1\n")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_no_commit_yet(self, repo, capsys):
        assert cli.main(["run"]) == 4
        assert "there is no commit here yet" in capsys.readouterr().err

    def test_edits_that_no_commit_has_are_said(self, repo):
        sh("git", "add", "-A", folder=repo)
        sh("git", "commit", "-qm", "one", folder=repo)
        assert run.edited_descriptions("asv.conf.json") == []
        (repo / "benchmarks/new.py").write_text("")
        (repo / "benchmarks/bench_kernels.py").write_text("ONE = 2\n")
        assert run.edited_descriptions("asv.conf.json") == ["benchmarks/bench_kernels.py"]
        (repo / "asv.conf.json").write_text("{}")
        assert run.edited_descriptions("asv.conf.json") == []

    def test_a_mistake_in_a_description_is_named_by_its_line(self, repo):
        log = repo / "asv.log"
        assert run.what_failed(log, "asv.conf.json") == "asv said nothing"
        log.write_text(LOG.format(folder=repo.resolve()))
        wanted = "benchmarks/bench_kernels.py line 21: DescriptionError: op 'Read': say this"
        assert run.what_failed(log, "asv.conf.json") == wanted
        log.write_text("words\nlast words\n")
        assert run.what_failed(log, "asv.conf.json") == "last words"


def test_untrusted_text_cannot_move_the_cursor():
    assert run.printable("fix\x1b[2J\rgone‮x") == "fix [2J gone x"


# ---- terminals and endings


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ROOT = Path(__file__).parent.parent


def command(*arguments, env=None, **how):
    script = "import sys; from dashboards.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], env=environment, stderr=subprocess.PIPE, **how
    )


@pytest.mark.compiler
@pytest.mark.parametrize("env", [C_LOCALE, {"PYTHONIOENCODING": "ascii"}, {}], ids=["C", "ascii", "as here"])
def test_a_file_of_any_name_in_any_locale(tmp_path, env):
    folder = tmp_path / "ü"
    folder.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "softmax.py", folder)
    arguments = ["model", f"{folder}/softmax.py:careless", "--arg", "x=f32[8,500]", "--arg", "out=f32[8,500]"]
    arguments += ["--arg", "rows=8", "--arg", "columns=500", "--const", "BLOCK=512", "--grid", "8"]
    done = command(*arguments, env=env, stdout=subprocess.PIPE)
    assert done.returncode == 2, done.stderr  # a hazard
    assert b"write `column < columns`" in done.stdout and b"Traceback" not in done.stderr


def test_output_that_takes_nothing_is_said(tmp_path):
    with open("/dev/full", "w") as full:
        done = command("compilers", "list", stdout=full)
    assert done.returncode == 4 and done.stderr == b"ascend-perf compilers: no space is left for the output\n"


def test_a_reader_that_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        done = command("compilers", "list", stdout=pipe)
    assert done.returncode == 0 and done.stderr == b""


def test_ctrl_c_while_a_command_is_loaded(monkeypatch, capsys):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", stopped)
    assert cli.main(["check"]) == 130
    assert capsys.readouterr().err == "ascend-perf: stopped\n"


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "repo": ".",', "\0"])
@pytest.mark.parametrize(
    "arguments", [["run"], ["bisect", "x", "--good", "HEAD~1"], ["fleet", "plan"], ["dashboard"]]
)
def test_a_configuration_that_is_none_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, text):
    pytest.importorskip("asv")
    sh("git", "init", "-q", folder=tmp_path)
    for subject in "ab":
        sh("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", subject,
           folder=tmp_path)  # fmt: skip
    (tmp_path / "asv.conf.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 4
    said = capsys.readouterr().err.strip()
    assert "asv.conf.json" in said and ("cannot be read" in said or "no asv configuration" in said)
    assert len(said.splitlines()) == 1


def test_a_configuration_of_another_folder_has_its_results_and_its_suite(tmp_path, monkeypatch, capsys):
    """As asv reads it: seen from where the configuration lies."""
    repo = tmp_path / "repo"
    first, second = repository(repo, ["one", "two"])
    results = repo / "kept/numbers"
    settings = {"version": 1, "project": "x", "repo": ".", "results_dir": "kept/numbers"}
    (repo / "asv.conf.json").write_text(json.dumps(settings))
    (repo / "benchmarks").mkdir()
    (repo / "benchmarks/__init__.py").write_text("")
    (repo / "benchmarks/bench_x.py").write_text(
        "class ModelledCopy:\n    def track_cycles(self):\n        return 1\n"
    )
    for one, number in ((first, 100.0), (second, 120.0)):
        result_file(results, one, {MODELLED: row([number], (("c",), ("i",)))})
    benchmarks_file(results, {MODELLED: "cycles (modelled)"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (repo / "ops").mkdir()
    for folder, config in ((repo, "asv.conf.json"), (repo / "ops", "../asv.conf.json")):
        monkeypatch.chdir(folder)
        assert run.results_folder(config).resolve() == results
        asked = missing.asked(config, ops=(), bench=(), cases="")
        assert list(asked) == ["bench_x.ModelledCopy.track_cycles"]
        assert cli.main(["check", "--base", first, "--head", second, "--config", config]) == 1
        assert "100 cycles" in capsys.readouterr().out

"""explain names the cause of a slow or unsafe compiled form, from evidence, and says so when it does not know."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_model
from ascend_kernels.registry import OPS
from ascend_model import compile_kernel, toolchain
from ascend_model.explain import Side, advise, explain, explain_all, explain_codes, load, normalised_diff
from ascend_model.linalg import read
from ascend_model.metrics import static_counts
from ascend_model.patterns import Trait, changes
from ascend_model.source import line_of, mask_at, shortened, turned
from dashboards import cli
from tests import explain_kernels, model_kernels
from tests import explain_table as table

pytestmark = pytest.mark.compiler


# ---- causes


@pytest.fixture(scope="module")
def explained():
    return list(table.rows())


def test_the_cause_is_the_first_sentence_in_nine_of_ten(explained):
    wrong = {name: (lacks, said.sentences[0]) for name, said, lacks in explained if lacks}
    assert len(explained) - len(wrong) >= 0.9 * len(explained), wrong


def test_every_known_pattern_is_named(explained):
    """The patterns of these tests do not move with the kernels under watch: each must be named."""
    own = {*table.PATTERNS, *table.SIZES}
    assert [(name, lacks) for name, _, lacks in explained if lacks and name in own] == []


def test_places_are_lines_of_the_kernels_never_of_tritons_library(explained):
    for name, said, _ in explained:
        told = [*said.sentences, *(one.where for one in said.evidence)]
        assert not [one for one in told if "triton/language" in one], name


def test_every_twin_has_a_cause_written_by_hand():
    missing = [twin for twin in table.twins() if twin not in table.TWINS]
    assert not missing, f"say in tests/explain_table.py what explain must tell about {missing}"


def test_sentences_name_the_line_and_quote_it(explained):
    said = {name: one for name, one, _ in explained}["assign_reversed_mask"]
    number = 1 + Path(model_kernels.__file__).read_text().split("\n").index("        mask = hi > save")
    assert f"model_kernels.py:{number}: `mask = hi > save`)" in said.sentences[0]
    first = said.evidence[0]
    [where] = re.findall(r"\((\S+:\d+): `", said.sentences[0])
    assert (first.what, first.before, first.after) == ("whole-tile store", 0, 1)
    assert (first.where, first.source) == (where, "mask = hi > save")


def test_the_counts_of_the_specification_are_told(explained):
    """Published counts of these patterns: scalar accesses 4 -> 772, waits 0 -> 260; double buffers 1 -> 0."""
    by_name = {name: one for name, one, _ in explained}
    where = {e.what: (e.before, e.after) for e in by_name["assign_where"].evidence}
    assert where["accesses to single elements"] == (4, 772)
    assert where["waits of the scalar pipe in loops"] == (0, 260)
    assert where["copies to global memory"] == (1, 128)
    prefetch = {e.what: (e.before, e.after) for e in by_name["assign_prefetch"].evidence}
    assert prefetch["double buffers"] == (1, 0)
    assert "double buffers 1 -> 0" in by_name["assign_prefetch"].sentences[1]


@pytest.mark.parametrize("name", ["mask-reversed", "carried-in-while", "modulo", "int64-sum", "prefetch"])
def test_an_improvement_says_that_the_cause_is_gone(name):
    there = table.twin("assign_req_to_token_pool", name)
    back = table.twin("assign_req_to_token_pool", name, back=True)
    assert back.known and back.cause == there.cause
    assert back.sentences[0].startswith("No more ")
    # The kernel of prefetch is a form for a GPU, too.
    file = "assign_req_to_token_pool.py:" if name == "prefetch" else "twins.py:"
    assert file in back.sentences[0]
    assert {(e.what, e.before, e.after) for e in there.evidence} == {
        (e.what, e.after, e.before) for e in back.evidence
    }


@pytest.mark.parametrize("name", table.HARMLESS)
def test_nothing_costly_is_claimed_of_harmless_code(name):
    said = table.pattern(name)
    assert said.cause in ("", "carried offsets", "same code")
    if said.known:
        assert "no count differs" in said.sentences[1] or said.cause == "same code"
    else:
        assert "no count of it does" in said.sentences[0]


def test_other_types_of_arguments_are_told():
    said = explain(table.compiled("assign_derived"), table.compiled("assign_derived", "int64"))
    assert not table.missing(said.sentences[0], ("sum", "i64", "scalar"))
    assert any("`start` is a tensor of i64 instead of a tensor of i32" in one for one in said.sentences)


def test_what_another_tile_size_brings_with_it_is_told_behind_it():
    said = table.resized("norm_unrolled 4096 bfloat16 2048->512")
    brought = [one for one in said.sentences if one.startswith("The other tile size brings with it: ")]
    assert len(brought) == 1
    # Two tiles of a row become eight; both loops load `x`, and the second one finds the last tile still there.
    assert "copies an iteration for the load of `x`: 15 instead of 3" in brought[0]
    assert "reduction to a scalar inside a loop 2 -> 8" in brought[0]
    assert not any("partial results" in one for one in said.sentences)
    evidence = {one.what: (one.before, one.after) for one in said.evidence}
    assert evidence["tile size"] == (2048, 512) and evidence["sum waited for"] == (2, 8)


def test_the_page_shows_what_is_said_of_another_tile_size():
    page = " ".join((Path(__file__).parents[1] / "docs/explain.md").read_text().split())
    for sentence in table.resized("norm_unrolled 4096 bfloat16 2048->512").sentences:
        assert sentence.replace("tests/explain_kernels", "explain_kernels") in page  # as of a file that is named


def test_a_pattern_that_the_smaller_tiles_do_not_explain_comes_first():
    """Tiles of a quarter, and in the same edit a sum of every tile, which there was none of in that loop."""
    said = explain(table.normed("norm_partial", block=2048), table.normed("norm_rolled", block=512))
    assert said.cause == "sum waited for"
    assert any("512 elements instead of 2048" in one for one in said.sentences[1:])


def test_a_sum_that_moves_out_of_the_inner_loop_is_an_improvement():
    inner, outer = table.normed("norm_rolled"), table.normed("norm_partial")
    assert explain(inner, outer).sentences[0].startswith("No more reduction to a scalar inside 2 nested loops")
    assert explain(outer, inner).sentences[0].startswith("A tile is reduced to a scalar inside 2 nested loops: ")


def trait(kind, key, weight, level=0):
    return Trait(kind, key, weight, f"{kind} {{now}}", kind, place=("k.py", 1, 0), level=level)


def tiles(*sizes):
    return [trait("tile size", f"{act} {name}", size) for act, name, size in sizes]


SUM, WHOLE = "sum waited for", "whole-tile store"
SMALL = [("store to", "out", 256), ("load of", "x", 256)]
LARGE = [("store to", "out", 1024), ("load of", "x", 1024)]


@pytest.mark.parametrize(
    ("large", "small", "first"),
    [
        # Copies an iteration say that loops are unrolled: up to four times as many of everything.
        ([("more copies", 1), (SUM, 1)], [("more copies", 4), (SUM, 4)], "tile size"),
        ([("more copies", 3), (SUM, 2)], [("more copies", 15), (SUM, 8)], "tile size"),
        ([("more copies", 3), (SUM, 2)], [("more copies", 15), (SUM, 9)], SUM),
        ([("more copies", 3)], [("more copies", 17)], "more copies"),
        ([("more copies", 1), (WHOLE, 1)], [("more copies", 2), (WHOLE, 2)], "tile size"),
        ([("more copies", 1), ("deeper loop", 2)], [("more copies", 4), ("deeper loop", 1)], "unrolled loop"),
        ([("more copies", 1), ("deeper loop", 1)], [("more copies", 1), ("deeper loop", 2)], "tile size"),
        # In a loop that stays one, a second sum is another source.
        ([("sum waited for", 1)], [("sum waited for", 2)], "sum waited for"),
        ([("scalars of vectors", 8)], [("scalars of vectors", 32)], "tile size"),
        ([("scalars of vectors", 8)], [("scalars of vectors", 40)], "scalars of vectors"),
        ([], [("scalar cast", 1)], "scalar cast"),
        # What counts elements of a tile shrinks with it; what is gone is gone for another reason.
        ([("element by element", 1024)], [("element by element", 256)], "tile size"),
        ([("element by element", 1024)], [("element by element", 128)], "element by element"),
        ([("element by element", 1024)], [], "element by element"),
    ],
)  # fmt: skip
def test_what_follows_from_the_tile_size_is_a_matter_of_amounts(large, small, first):
    was, now = (
        [*tiles(*size), *(trait(kind, "one", weight) for kind, weight in rest)]
        for size, rest in ((LARGE, large), (SMALL, small))
    )
    assert changes(was, now)[0].kind == first
    assert changes(now, was)[0].kind == first


def test_a_load_in_pieces_is_no_other_tile_size_of_the_job():
    was = [*tiles(("store to", "out", 1024), ("load of", "x", 1024)), trait("more copies", "load of x", 1)]
    now = [*tiles(("store to", "out", 1024), ("load of", "x", 64)), trait("more copies", "load of x", 16)]
    assert [one.kind for one in changes(was, now)] == ["more copies", "tile size"]


def test_advice_does_not_contradict_itself():
    """A sum kept as a vector of one element costs more single accesses than the scalar, two rows none."""
    counts = {
        name: static_counts(table.normed(name).generic)["scalar"]
        for name in ("norm_rolled", "norm_one_element", "norm_partial", "norm_two_rows")
    }
    assert counts["norm_one_element"] > counts["norm_rolled"] > counts["norm_partial"] > counts["norm_two_rows"]
    assert counts["norm_two_rows"] == 0
    given = advise(table.normed("norm_rolled"))
    assert {one.kind for one in given} >= {"sum waited for", "one-element vectors", "scalars of vectors"}
    for one in given:
        assert "keep the value scalar" not in one.sentence
        assert not re.search(r"(keep|load)\b[^;]*one[- ]element", one.sentence.partition("; ")[2])
    assert advise(table.normed("norm_two_rows")) == ()
    said = explain(table.normed("norm_rolled"), table.normed("norm_one_element"))
    assert said.sentences[0].startswith("The scalar pipe takes single values out of the unified buffer")
    assert not any(one.startswith("Less of") for one in said.sentences)


LANES = {"x": torch.zeros(64, dtype=torch.int64), "out": torch.zeros(64, dtype=torch.int64)}


@pytest.mark.parametrize(("op", "word"), [("+", "sum"), ("-", "difference"), ("<<", "shift"), (">>", "shift")])
def test_int64_lanes_that_become_scalar_code_are_named(op, word):
    """Three accesses or two an element, where int32 has none: so the advice to keep lanes in int32 holds."""
    wide, narrow = (
        compile_kernel(explain_kernels.lanes, LANES, {"OP": op, "NARROW": narrow, "BLOCK": 64})
        for narrow in (False, True)
    )
    assert static_counts(wide.generic)["scalar"] >= 2 and static_counts(narrow.generic)["scalar"] == 0
    assert [one.kind for one in advise(wide)] == ["wide integers"]
    assert advise(wide)[0].sentence.startswith(f"The {word} of vectors of i64 became scalar code")
    assert advise(narrow) == ()


def test_atomic_accesses_by_lanes_say_what_to_write():
    args = {"x": torch.zeros(64, dtype=torch.int32), "out": torch.zeros(8, dtype=torch.int32)}
    lanes = compile_kernel(explain_kernels.count_lanes, args, {"BINS": 8, "BLOCK": 64})
    first, *more = advise(lanes)
    assert first.kind == "element by element" and not more
    assert first.sentence.startswith("The atomic add to `out` became single elements, 64 to a tile: ")
    assert "tl.arange(0, BINS)" in first.sentence
    binned = compile_kernel(explain_kernels.count_bins, args, {"BINS": 8, "BLOCK": 64})
    assert advise(binned) == ()
    assert explain(binned, lanes).cause == "element by element"
    cycles = {}
    for kernel in (explain_kernels.count_lanes, explain_kernels.count_bins):
        given = {"x": torch.arange(64, dtype=torch.int32) % 5, "out": torch.zeros(8, dtype=torch.int32)}
        cycles[kernel] = ascend_model.simulate(kernel, 1, given, {"BINS": 8, "BLOCK": 64}).cycles
        assert given["out"].tolist() == [13, 13, 13, 13, 12, 0, 0, 0]
    assert cycles[explain_kernels.count_bins] < cycles[explain_kernels.count_lanes] / 5


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_scan_along_the_last_axis_is_slow_and_the_advice_mends_it(name, backwards):
    x = torch.rand(16, 32, generator=torch.Generator().manual_seed(1)) + 0.5

    def right(axis):
        wanted = getattr(torch, name)(x.flip(axis) if backwards else x, axis)
        return wanted.flip(axis) if backwards else wanted

    def scanned(axis, turned=False):
        out = torch.zeros_like(x)
        settings = {"PROD": name == "cumprod", "AXIS": axis, "TURNED": turned, "REVERSE": backwards}
        done = ascend_model.simulate(explain_kernels.scan_tile, 1, {"x": x, "out": out}, settings)
        assert done.status == "ok" and not done.findings
        assert torch.allclose(out, right(axis), rtol=1e-5)
        return done

    last, turned, first = scanned(1), scanned(1, True), scanned(0)
    [said] = [one for one in advise(last) if one.kind == "scan"]
    assert f"`tl.{name}` became a loop of the scalar pipe" in said.sentence
    assert f"tl.trans(tl.{name}(tl.trans(tile), 0))" in said.sentence
    assert turned.cycles < last.cycles / 5 and turned.counts["scalar_accesses"] == 0
    assert first.counts["scalar_accesses"] == 0
    assert not [one for form in (turned, first) for one in advise(form) if one.kind == "scan"]


def test_a_scalar_load_is_to_be_moved_out_of_a_loop_only_where_it_can_be():
    args = {"index": torch.zeros(8, dtype=torch.int32), "x": torch.zeros(8, 64), "out": torch.zeros(64), "n": 8}
    fixed, moving = (
        compile_kernel(explain_kernels.bag, args, {"BLOCK": 64, "FIXED": one}) for one in (True, False)
    )
    assert any("`index` is read as a scalar" in one.sentence for one in advise(fixed))
    assert not any("`index`" in one.sentence for one in advise(moving))


def test_a_sum_that_is_only_stored_may_stay_a_vector():
    said = table.twin("padded_scatter_wgrad", "scalar-sum")
    assert "it is only stored, so keep it a vector: tl.sum(tile[None, :], 1)" in said.sentences[0]
    assert not any("two elements or more" in one for one in said.sentences if "vectors of one element" in one[:60])


@pytest.mark.parametrize("back", [False, True])
def test_offsets_that_are_carried_otherwise_are_still_carried(back):
    """`offset += BLOCK` became `offset = tl.where(...)`: nothing is no longer carried, and the lanes' int64 is the
    compiler's."""
    pair = table.compiled("assign_carried"), table.compiled("assign_where")
    said = explain(*(reversed(pair) if back else pair))
    assert said.cause == "element by element" and "tl.where" in said.sentences[0]
    assert not [one for one in said.sentences[1:] if "carried" in one or "int64" in one]


# ---- the same, and the unknown


def test_same_code_is_the_machine():
    said = explain(table.compiled("base"), table.compiled("base"))
    assert said.known and said.diff == ""
    assert "same" in said.sentences[0] and "machine or the driver" in said.sentences[0]


def test_names_and_comments_do_not_count():
    said = explain(table.compiled("base"), table.compiled("other_comment"))
    assert said.known and said.cause == "same code"
    assert "machine or the driver" in said.sentences[0]


def test_same_code_in_other_programs():
    made = table.compiled("base")
    said = explain(Side(made, 48), Side(made, 2048))
    assert "same" in said.sentences[0] and "2048 programs instead of 48" in said.sentences[0]


def test_an_unrelated_change_is_shown_and_not_explained():
    said = table.pattern("plus_one")
    assert not said.known and said.cause == ""
    assert "no known pattern" in said.sentences[0]
    assert "vector ops in loops 0 -> 1" in said.sentences[0]
    assert "+" in said.diff and "arith.addi" in said.diff
    assert said.diff in str(said)


def test_the_difference_has_only_what_differs():
    text = normalised_diff(table.compiled("base").linalg, table.compiled("plus_one").linalg)
    changed = [line for line in text.splitlines() if re.match(r"[-+](?![-+])", line)]
    assert 2 <= len(changed) <= 6, text
    assert "loc(" not in text and "base" not in text
    assert normalised_diff(table.compiled("base").linalg, table.compiled("other_comment").linalg) == ""


def test_without_evidence_nothing_is_claimed():
    """The same two sources, with the telling op of the compiled text taken out: the claim goes away with it."""
    base, bad = table.compiled("assign_derived"), table.compiled("assign_reversed_mask")
    assert explain(base, bad).cause == "whole-tile store"
    value = re.search(r"(%\S+) = arith\.select .*tensor<128xi1>", bad.linalg)
    kept = "\n".join(line for line in bad.linalg.splitlines() if f"{value[1]} = arith.select" not in line)
    assert kept != bad.linalg
    assert explain(base, dataclasses.replace(bad, linalg=kept, code="0")).cause != "whole-tile store"
    modulo = table.compiled("assign_modulo")
    unmarked = modulo.linalg.replace("ExtractedLoadOrStore", "Other")
    assert explain(base, modulo).cause == "element by element"
    assert explain(base, dataclasses.replace(modulo, linalg=unmarked, code="0")).cause != "element by element"


# ---- failures, notes, compilers


def test_ub_overflow_says_how_much_is_there():
    arguments = {"x": torch.zeros(9), "out": torch.zeros(9)}
    fits = compile_kernel(model_kernels.copy_block, arguments, {"BLOCK": 1024})
    fails = compile_kernel(model_kernels.copy_block, arguments, {"BLOCK": 1 << 18})
    said = explain(fits, fails)
    assert said.known and said.cause == "compile: ub overflow"
    assert re.search(r"no longer compiles: ub overflow, its buffers take \d+ bytes", said.sentences[0])
    assert "196608 are there" in said.sentences[0]
    assert (
        explain(fails, fits).sentences[0].startswith("The kernel compiles again; before, it failed: ub overflow")
    )


@pytest.mark.parametrize("status", ["frontend error", "adapter crash", "compile failed", "timed out"])
def test_every_failure_class_is_told(status):
    good = table.compiled("base")
    bad = dataclasses.replace(good, status=status, message="the reason\nand more", generic="", linalg="", code="")
    assert explain(good, bad).sentences[0] == f"The kernel no longer compiles: {status}, the reason"
    assert explain(bad, bad).sentences[0].startswith("The kernel still fails to compile: ")
    assert explain(good, bad).known


def test_a_fall_back_without_double_buffering_is_told():
    n = 200_000
    arguments = {"x": torch.zeros(n), "y": torch.zeros(n), "out": torch.zeros(n), "n": n, "programs": 3}
    fits = compile_kernel(model_kernels.add_persistent, arguments, {"BLOCK": 4096})
    falls = compile_kernel(model_kernels.add_persistent, arguments, {"BLOCK": 16384})
    assert any("multi-buffer" in note for note in falls.notes)
    said = explain(fits, falls)
    assert said.cause == "no double buffering"
    assert any("auto-multi-buffer" in one for one in said.sentences)
    assert any("16384 elements instead of 4096" in one for one in said.sentences)


def test_another_compiler_is_the_cause_when_the_kernel_is_the_same():
    now = table.compiled("assign_where")
    other = table.compiled("assign_derived")
    was = dataclasses.replace(now, compiler="1.0.0", code="1" * 64, generic=other.generic)
    said = explain(was, now)
    assert said.known and said.cause == "compiler version"
    assert "1.0.0" in said.sentences[0] and now.compiler in said.sentences[0]
    assert "accesses to single elements 4 -> 772" in said.sentences[0]
    same = explain(dataclasses.replace(was, generic=now.generic), now)
    assert "make the same code" in same.sentences[0]


def test_a_form_that_cannot_be_read_is_no_error():
    base, bad = table.compiled("assign_derived"), table.compiled("assign_reversed_mask")
    unread = dataclasses.replace(bad, generic="not MLIR")
    assert explain(base, unread).cause == "whole-tile store"
    two = dataclasses.replace(bad, generic='"builtin.module"() ({\n}) : () -> ()')
    assert explain(base, two).cause == "whole-tile store"
    with pytest.raises(TypeError, match="expected a Compiled"):
        explain(base, "text")


def test_simulations_bring_their_findings():
    def run(name):
        case = {"UPPER": 16, "BLOCK": 128}
        args = {"rows": torch.arange(2, dtype=torch.int32), "pool": torch.zeros((2, 100), dtype=torch.int32)}
        args |= {
            "start": torch.tensor([0, 0], dtype=torch.int32),
            "end": torch.tensor([90, 80], dtype=torch.int32),
        }
        args |= {"source": torch.arange(170, dtype=torch.int32), "pool_len": 100}
        return ascend_model.simulate(getattr(model_kernels, name), (2,), args, case, keep_numbers=True)

    said = explain(run("assign_derived"), run("assign_reversed_mask"))
    assert said.cause == "whole-tile store"
    assert any(one.startswith("The model reports ") and "out of bounds" in one for one in said.sentences)


def test_jobs_of_several_launches():
    good, bad = table.compiled("base"), table.compiled("offset_bits")
    said = explain_all([good, good], [good, bad])
    assert said.cause == "element by element" and "`&`" in said.sentences[0]
    fewer = explain_all([good, good], [good])
    assert "1 kernel instead of 2" in fewer.sentences[0]
    assert explain_all([good, bad], [good, bad]).cause == "same code"
    assert explain_all([], []).cause == "same code"


# ---- found again by code


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_codes_are_found_again(cache):
    good, bad = table.compiled("assign_derived"), table.compiled("assign_reversed_mask")
    found = load(good.code[:16])
    assert found.compiled == good
    said = explain_codes(good.code[:16], bad.code[:16])
    assert said == explain(good, bad)
    assert (
        explain_codes(f"{good.code[:16]}+{good.code[:16]}", f"{good.code[:16]}+{bad.code[:16]}").cause
        == said.cause
    )
    assert explain_codes(good.code[:16], "0" * 16) is None


def test_a_kept_kernel_brings_the_source_it_had(cache, tmp_path, monkeypatch):
    """The file changes after it was compiled; the explanation quotes what was compiled."""
    good = table.compiled("assign_derived")
    source = tmp_path / "kernels_of_then.py"
    shutil.copy(model_kernels.__file__, source)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    then = importlib.import_module("kernels_of_then")
    bad = compile_kernel(then.assign_reversed_mask, table.arguments(), table.CONSTANTS)
    source.write_text(source.read_text().replace("hi > save", "whatever"))
    said = explain_codes(good.code[:16], bad.code[:16])
    assert "kernels_of_then.py" in said.sentences[0] and "`mask = hi > save`" in said.sentences[0]


def test_codes_that_are_none_are_not_found(cache):
    table.compiled("base")
    for text in ("", "+", "x" * 16, "../../../../etc/passwd", "0" * 15, "0" * 16 + "\n", "A" * 16):
        assert load(text) is None
        assert explain_codes(text, text) is None


def test_damaged_records_are_not_found(cache):
    made = table.compiled("base")
    [record] = (cache / "by_code").rglob("*.json.gz")
    whole = record.read_bytes()
    record.write_bytes(whole[:40])
    assert load(made.code[:16]) is None
    record.write_bytes(whole)
    assert load(made.code[:16]).compiled == made
    for kept in (cache / "compiled").rglob("*.json.gz"):
        kept.write_bytes(b"")
    assert load(made.code[:16]) is None


def test_failed_compilations_are_found_too(cache):
    arguments = {"x": torch.zeros(9), "out": torch.zeros(9)}
    fails = compile_kernel(model_kernels.copy_block, arguments, {"BLOCK": 1 << 18})
    assert load(fails.code[:16]).compiled.status == "ub overflow"


# ---- source text is only text


def test_lines_are_read_from_the_import_path_only(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "k.py").write_text("first\n  second  \n")
    (tmp_path / "secret.py").write_text("secret\n")
    (tmp_path / "inside" / "notes.txt").write_text("text\n")
    monkeypatch.syspath_prepend(str(tmp_path / "inside"))
    assert line_of("k.py", 2) == "  second"
    assert line_of("k.py", 3) == line_of("k.py", 0) == line_of("k.py", -1) == ""
    assert line_of("../secret.py", 1) == line_of("notes.txt", 1) == line_of("absent.py", 1) == ""


def test_a_missing_source_leaves_file_and_line():
    good, bad = table.compiled("assign_derived"), table.compiled("assign_reversed_mask")

    def nothing(file, line):
        return ""

    said = explain(Side(good, lines=nothing), Side(bad, lines=nothing))
    assert said.cause == "whole-tile store"
    assert re.search(r"\((tests/)?model_kernels\.py:\d+\)", said.sentences[0])
    assert "write `offset < end`" in said.sentences[0]


def test_hostile_source_is_quoted_on_one_line():
    good, bad = table.compiled("assign_derived"), table.compiled("assign_reversed_mask")
    text = "mask = hi > save  # <script>{now} %s \x1b[31m" + "x" * 5000
    said = explain(good, Side(bad, lines=lambda file, line: text))
    assert "\n" not in said.sentences[0] and "\x1b" not in said.sentences[0] and len(said.sentences[0]) < 900
    assert "<script>{now} %s" in said.sentences[0]  # quoted as it stands; whoever shows it escapes it


@pytest.mark.parametrize(
    ("text", "column", "condition", "better"),
    [
        ("    mask = hi > save", 16, "hi > save", "save < hi"),
        ("tl.store(p + o, v, mask=n >= o)", 29, "n >= o", "o <= n"),
        ("if a < b: pass", 7, "a < b", "b > a"),
        ("while a < b:", 10, "a < b", "b > a"),
        ("        mask=n > o,", 17, "n > o", "o < n"),
        ("    p + o, v, mask=n > o)", 23, "n > o", "o < n"),
        ("tl.store(p, tl.load(q, mask=n > o),", 32, "n > o", "o < n"),
        ("mask = (a > b) | c", 12, "(a > b) | c", ""),
        ("mask = a > b > c", 11, "a > b > c", ""),
    ],
)
def test_conditions_are_found_in_a_line(text, column, condition, better):
    import ast

    found = mask_at(text, column)
    assert ast.unparse(found) == condition
    assert turned(found) == better


@given(st.text(max_size=60), st.integers(-5, 80))
def test_any_text_is_a_line(text, column):
    turned(mask_at(text, column))
    assert len(shortened(text * 20)) <= 160


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_damaged_linalg_is_no_error(data):
    name = data.draw(st.sampled_from(["assign_where", "assign_while", "assign_reversed_mask", "assign_modulo"]))
    made = table.compiled(name)
    lines = made.linalg.splitlines()
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["drop", "double", "cut", "swap"]))
        if change == "drop" and len(lines) > 1:
            del lines[at]
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
        else:
            lines[at], lines[-1] = lines[-1], lines[at]
    text = "\n".join(lines)
    read(text)
    said = explain(table.compiled("assign_derived"), dataclasses.replace(made, linalg=text, code="0"))
    assert said.sentences and all(one.strip() for one in said.sentences)


# ---- the command


def test_command_explains_an_op(capsys):
    assert cli.main(["explain", "assign_req_to_token_pool", "--impl", "mask-reversed", "--case", "ragged"]) == 0
    words = capsys.readouterr().out
    assert "load, select and store of the whole tile" in words and "write `offset < length`" in words
    assert "nothing ran on a device" in words


def test_the_pages_show_what_the_command_says(capsys):
    asked = ["explain", "assign_req_to_token_pool", "--impl", "mask-reversed", "--case", "ragged"]
    assert cli.main(asked) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line]
    [line] = re.findall(r"twins\.py:(\d+)", said[2])
    for page in ("README.md", "docs/explain.md"):
        text = " ".join((Path(__file__).parents[1] / page).read_text().split())
        for sentence in said[1:]:
            assert " ".join(sentence.split()) in text, f"{page}: {sentence}"
        assert set(re.findall(r"twins\.py:(\d+)", text)) == {line}, page


def test_command_gives_json(capsys):
    asked = ["explain", "assign_req_to_token_pool", "--against", "modulo", "--case", "ragged", "--json"]
    assert cli.main(asked) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["known"] is True and said["cause"] == "element by element"
    assert said["sentences"][0].startswith("No more ")
    assert said["before"]["launches"][0]["kernel"] == "modulo_kernel"
    assert {"what", "before", "after", "where", "source"} == set(said["evidence"][0])


KERNELS = """
import triton
import triton.language as tl

@triton.jit
def old(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset, mask=offset < n), mask=offset < n)

@triton.jit
def new(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset, mask=n > offset), mask=n > offset)
"""
LAUNCH = [
    "--arg",
    "x=f32[4096]",
    "--arg",
    "out=f32[4096]",
    "--arg",
    "n=4000",
    "--const",
    "BLOCK=1024",
    "--grid",
    "4",
]


def test_command_explains_two_kernels_of_a_file(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(KERNELS)
    assert cli.main(["explain", f"{file}:old", f"{file}:new", *LAUNCH]) == 0
    words = capsys.readouterr().out
    assert "the mask `n > offset` is not recognised" in words and "write `offset < n`" in words


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["no_such_op"], "there are"),
        (["assign_req_to_token_pool"], "both sides are the same"),
        (["assign_req_to_token_pool", "--impl", "none"], "no implementation 'none'"),
        (["assign_req_to_token_pool", "--case", "none", "--impl", "modulo"], "no case 'none'"),
        (["assign_req_to_token_pool", "--impl", "modulo", "--arg", "x=1"], "go with FILE.py:KERNEL"),
        (["assign_req_to_token_pool", "--impl", "modulo", "--compiler", "0.0.1"], "0.0.1"),
        (["absent.py:one", "absent.py:two"], "no file"),
        (["absent.py:one", "two"], "no file"),
        (["absent.py:one", "--impl", "x"], "go with an op"),
    ],
)
def test_command_refuses_with_a_reason(asked, words, capsys):
    assert cli.main(["explain", *asked]) == 4
    assert words in capsys.readouterr().err


def test_command_compares_compilers(capsys):
    others = [v for v in toolchain.available_versions() if v != toolchain.default_version()]
    if not others:
        pytest.skip("only one compiler version is here")
    asked = ["explain", "assign_req_to_token_pool", "--compiler-against", others[0]]
    assert cli.main(asked) == 0
    assert "The kernel is the same for the compiler" in capsys.readouterr().out


def test_the_registry_is_the_one_of_the_table():
    assert {op for op, _ in table.TWINS} <= set(OPS)

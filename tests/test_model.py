"""The simulator executes what the compiler made: results, findings, states, counts."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import ascend_model
from ascend_model import compile_kernel, simulate, simulate_text, static_counts, toolchain
from ascend_model.lower import TARGETS
from ascend_model.parse import ParseError, memref_type, parse
from tests import model_kernels as kernels
from tests.model_cases import ASSIGN, BY_NAME, CASES, UNSAFE, mismatch, tensor, token_pool

pytestmark = pytest.mark.compiler
POOL = {"UPPER": 64, "BLOCK": 128}


def run(case, seed=1, **options):
    launch = case.launch(np.random.default_rng(seed))
    args = {name: tensor(value, case.types.get(name)) for name, value in launch.args.items()}
    return simulate(case.kernel, launch.grid, args, case.constants, **options), launch


def compiled(name):
    case = BY_NAME[name]
    launch = case.launch(np.random.default_rng(1))
    args = {key: tensor(value, case.types.get(key)) for key, value in launch.args.items()}
    return compile_kernel(case.kernel, args, case.constants)


# ---- results


@pytest.mark.parametrize("case", [c for c in CASES if not c.over_reads], ids=lambda c: c.name)
def test_compiled_code_computes_the_reference_and_has_no_finding(case):
    done, launch = run(case)
    assert done.status == "ok", done.message
    assert mismatch(case, launch) == ""
    assert done.findings == ()
    assert done.cycles > 0
    assert done.bound_cycles <= done.cycles


@pytest.mark.parametrize("version", [v for v in ("1.0.0", "1.1.0") if v in toolchain.available_versions()])
@pytest.mark.parametrize("case", [c for c in CASES if not c.over_reads], ids=lambda c: c.name)
@pytest.mark.slow
def test_every_compiler_version(case, version):
    done, launch = run(case, compiler=version)
    assert done.status == "ok", done.message
    assert mismatch(case, launch) == ""
    assert done.findings == ()


@pytest.mark.parametrize(("target", "cores"), [("Ascend910B1", 48), ("Ascend910B3", 40), ("Ascend910_9362", 40)])
def test_programs_queue_for_the_cores_of_the_target(target, cores):
    x = np.arange(100 * 4096, dtype=np.float32)
    done = simulate(kernels.copy_block, 100, [x, np.zeros_like(x)], {"BLOCK": 4096}, target)
    every = int(np.ceil(ascend_model.load_costs().table()["program.dispatch"]))
    free = [0] * cores
    for number, cycles in enumerate(done.program_cycles):
        core = free.index(min(free))
        free[core] = max(free[core], number * every) + cycles
    assert done.cycles == max(free)
    one = simulate(kernels.copy_block, 1, [x, np.zeros_like(x)], {"BLOCK": 4096}, target)
    # the bandwidth is that of all cores together, so a core alone has most of it
    assert done.program_cycles[0] > one.program_cycles[0]


def test_a_target_that_is_not_there_is_an_error_and_no_state_of_the_kernel():
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(ValueError, match="no target 'Ascend9'; there are Ascend910B1, "):
        simulate(kernels.copy_block, 1, [x, np.zeros_like(x)], {"BLOCK": 64}, "Ascend9")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["x"], r"the kernel takes \(x, out, BLOCK\): missing out"),
        (["out"], "missing x"),
        (["x", "out", "n"], "it has no n"),
        (["x", "y"], "missing out; it has no y"),
    ],
)
def test_arguments_that_a_call_would_refuse_are_no_state_of_the_kernel(args, words):
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(TypeError, match=words):
        simulate(kernels.copy_block, 1, {name: x.copy() for name in args}, {"BLOCK": 64})
    with pytest.raises(TypeError, match="missing BLOCK"):
        simulate(kernels.copy_block, 1, {"x": x, "out": x.copy()})


def test_arguments_by_name_come_in_any_order():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    assert simulate(kernels.copy_block, 1, {"out": out, "x": x}, {"BLOCK": 64}).status == "ok"
    assert np.array_equal(out, np.arange(64)) and np.array_equal(x, out)


def test_the_cores_of_the_targets_are_those_the_compiler_states():
    x = np.zeros(64, np.float32)
    for target, cores in TARGETS.items():
        made = compile_kernel(kernels.copy_block, {"x": x, "out": x}, {"BLOCK": 64}, target=target)
        assert f'"VECTOR_CORE_COUNT", {cores} : i32' in made.generic, target


def test_numpy_arrays_and_a_sequence_of_arguments_do_as_well():
    x = np.arange(2048, dtype=np.float32)
    out = np.zeros_like(x)
    done = simulate(kernels.copy_block, 2, [x, out], {"BLOCK": 1024})
    assert done.status == "ok"
    assert np.array_equal(out, x)
    assert done.outputs["out"] is out


def test_a_strided_view_is_written_through_and_its_gaps_stay():
    whole = np.full((4, 300), 7.0, np.float32)
    x = np.random.default_rng(0).normal(size=(4, 200)).astype(np.float32)
    done = simulate(kernels.row_gather, 4, [x, np.arange(4, dtype=np.int32), whole[:, :200], 200], {"BLOCK": 256})
    # the kernel takes rows of 200 elements, so it writes the first 800 of the view's memory
    assert done.status == "ok"
    assert np.array_equal(whole.reshape(-1)[:800], x.reshape(-1))
    assert (whole.reshape(-1)[800:] == 7).all()


# ---- findings and states


@pytest.mark.parametrize("pattern", ASSIGN)
def test_a_tile_stored_as_a_whole_disturbs_the_next_row(pattern):
    """Rows end near the pool's row end, so that a tile's unmasked lanes lie in the next request's row."""
    launch = token_pool(np.random.default_rng(3), [409] * 8, 512, 9)
    start = launch.args["start"]
    start[:] = 100
    start[2] = 0
    launch.args["end"][:] = start + 409
    launch.args["rows"][:] = np.arange(8)
    spare = np.concatenate([launch.args["source"], np.zeros(400, np.int32)])
    done = simulate(getattr(kernels, f"assign_{pattern}"), 8, {**launch.args, "source": spare}, POOL)
    kinds = {finding.kind for finding in done.findings}
    assert kinds == ({"read-modify-write overlap"} if pattern in UNSAFE else set())


@pytest.mark.parametrize("case", [c for c in CASES if c.over_reads], ids=lambda c: c.name)
def test_reading_past_the_source_is_a_state_with_a_place_and_no_number(case):
    done, _ = run(case)
    assert done.status == "out of bounds"
    assert "source" in done.message
    assert "model_kernels.py" in done.message
    assert done.cycles is None
    assert done.counts["out_of_bounds"] > 0
    kept, _ = run(case, keep_numbers=True)
    assert kept.status == "out of bounds"
    assert kept.cycles > 0


def test_a_tensor_too_short_is_read_out_of_bounds():
    x = np.ones(2000, np.float32)
    done = simulate(kernels.copy_block, 2, [x, np.zeros(2048, np.float32)], {"BLOCK": 1024})
    (finding,) = done.findings
    assert finding.kind == "out of bounds read"
    assert "x (2000 elements); elements 2000..2047" in finding.message
    assert finding.count == 48
    assert finding.program == 1


def test_a_tensor_too_short_is_written_out_of_bounds():
    out = np.zeros(2000, np.float32)
    done = simulate(kernels.copy_block, 2, [np.ones(2048, np.float32), out], {"BLOCK": 1024})
    assert [f.kind for f in done.findings] == ["out of bounds write"]
    assert done.counts["out_of_bounds"] == 48
    assert (out == 1).all()


def test_two_programs_that_write_one_row_are_a_race():
    launch = token_pool(np.random.default_rng(0), [50, 60, 70], 256, 5)
    launch.args["rows"][:] = 3
    launch.args["start"][:] = 0
    launch.args["end"][:] = [50, 60, 70]
    done = simulate(kernels.assign_derived, 3, launch.args, POOL)
    assert "write-write race" in {f.kind for f in done.findings}


def test_reading_what_another_program_stores_is_a_race():
    """A shift in place takes its last lane from the next program's tile."""
    done = simulate(kernels.shift_in_place, 2, [np.arange(512, dtype=np.float32), 512], {"BLOCK": 256})
    assert {f.kind for f in done.findings} == {"read-write race"}
    alone = simulate(kernels.shift_in_place, 1, [np.arange(256, dtype=np.float32), 256], {"BLOCK": 256})
    assert alone.findings == ()


def test_lanes_that_nothing_wrote_matter_only_where_they_are_used():
    """Without the fill of a cut tile, its tail is unwritten: a sum takes it, a masked store does not."""

    def without_fill(name):
        lines = compiled(name).generic.split("\n")
        return "\n".join(x for x in lines if '"hivm.hir.vbrc"' not in x)

    x, out = np.ones((2, 500), np.float32), np.zeros((2, 500), np.float32)
    done = simulate_text(without_fill("softmax"), 2, [x, out, 500, 500])
    assert {f.kind for f in done.findings} == {"uninitialised UB read"}
    a = np.ones(500, np.float32)
    assert simulate_text(without_fill("add"), 1, [a, a, np.zeros(500, np.float32), 500]).findings == ()


def test_an_endless_loop_ends_with_its_own_state():
    done = simulate(kernels.loop_for_ever, 1, [np.array([5], np.int32), np.zeros(1, np.int32)], max_ops=200_000)
    assert done.status == "endless loop"
    assert "model_kernels.py" in done.message
    assert done.cycles is None


def test_the_cube_unit_is_refused():
    x = np.zeros((64, 64), np.float16)
    done = simulate(kernels.matmul_tile, 1, [x, x, np.zeros((64, 64), np.float32)], {"N": 64})
    assert done.status == "unsupported: cube"
    assert done.status in ascend_model.NOT_MODELLED
    assert "tl.dot" in done.message


def test_a_tile_too_large_for_the_unified_buffer_is_the_compilers_state():
    n = 65536
    done = simulate(kernels.copy_block, 1, [np.zeros(n, np.float32), np.zeros(n, np.float32)], {"BLOCK": n})
    assert done.status == "ub overflow"
    assert done.cycles is None


def test_an_op_nobody_taught_the_model_stops_it_by_name():
    text = compiled("add").generic.replace('"hivm.hir.vadd"', '"hivm.hir.vmystery"')
    n = 100
    done = simulate_text(text, 1, [*np.zeros((3, n), np.float32), n])
    assert done.status == "unsupported"
    assert "hivm.hir.vmystery" in done.message
    assert "model_kernels.py" in done.message


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: "",
        lambda t: t[: len(t) // 2],
        lambda t: t.replace('"hivm.hir.load"(', "hivm.hir.load(", 1),
        lambda t: t.replace("}> : ", "> : ", 1),
        lambda t: t + "trailing",
        lambda t: t.replace('"arith.muli"(%arg', '"arith.muli"(arg', 1),
    ],
)
def test_text_that_is_no_ir_is_a_state_with_line_and_column(edit):
    text = compiled("add").generic
    done = simulate_text(edit(text), 1, [])
    assert done.status == "unreadable IR"
    assert done.message.startswith("line ")
    with pytest.raises(ParseError):
        parse(edit(text))


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ('"k.py":3:4', "k.py:3:4"),
        ("callsite(#loc2 at #loc3)", "k.py:55:30"),  # tl.sum, called by the kernel
        ("callsite(#loc4 at #loc3)", "helpers.py:7:8"),  # a helper of the kernel's author, called by the kernel
        ("callsite(#loc2 at callsite(#loc4 at #loc3))", "helpers.py:7:8"),
        ('callsite(#loc2 at fused["x"](#loc2, #loc3))', "k.py:55:30"),
        ("#loc2", "triton/language/standard.py:267:36"),  # no caller is known
        ("#loc1", ""),
        ('"kernel.mlir":22:20', ""),
    ],
)
def test_a_helper_of_tritons_library_stands_for_its_caller(location, place):
    names = (
        '#loc1 = loc(unknown)\n#loc2 = loc("triton/language/standard.py":267:36)\n#loc3 = loc("k.py":55:30)\n'
        '#loc4 = loc("helpers.py":7:8)\n#loc5 = loc("kernel.mlir":1:0)\n'
    )
    bare = "\n".join(line for line in compiled("add").generic.splitlines() if not line.startswith("#loc"))
    at = bare.index(" loc(", bare.index('"hivm.hir.load"(')) + len(" loc(")
    entry = parse(names + bare[:at] + location + bare[bare.index(")", at) :]).entry
    assert next(op.loc for op in entry.walk() if op.name == "hivm.hir.load") == place


def test_text_that_is_cut_off_is_an_error():
    text = compiled("add").generic
    for end in range(text.index("{"), text.index('"func.return"'), 7):
        with pytest.raises(ParseError):
            parse(text[:end])


def test_arguments_are_checked():
    text = compiled("add").generic
    with pytest.raises(ValueError, match="takes 4 run-time arguments, got 1"):
        simulate_text(text, 1, [np.zeros(4, np.float32)])
    with pytest.raises(TypeError, match="arg0 must be a tensor"):
        simulate_text(text, 1, [3, 3, 3, 3])
    with pytest.raises(ValueError, match="65535"):
        simulate_text(text, 70_000, [])
    with pytest.raises(ValueError, match="positive"):
        simulate_text(text, 0, [])


# ---- counts


TABLE = {
    "derived": (2080, 4, 0, 3, 1, 0, 1),
    "carried": (2080, 4, 0, 3, 1, 0, 1),
    "carried_top": (5696, 4, 0, 4, 1, 6, 3),
    "while": (4160, 4, 0, 4, 1, 5, 0),
    "where": (5316, 772, 260, 2, 128, None, 1),
    "reversed_mask": (5696, 4, 0, 4, 1, 6, 3),
    "arith_mask": (5184, 4, 0, 4, 1, 9, 3),
    "or_mask": (6208, 4, 0, 4, 1, None, 3),
    "or_offset": (3716, 516, 258, 2, 128, 6, 1),
    "modulo": (2116, 260, 258, 3, 128, 0, 2),
    "prefetch": (2080, 4, 0, 4, 1, 0, 0),
    "wide_prefix": (2080, 261, 0, 3, 1, 0, 1),
}
"""ub, scal, sync, in, out, vec, dbuf as published for ascendnpu-ir 1.2.0; None where the form differs."""


@pytest.mark.parametrize("pattern", TABLE)
@pytest.mark.skipif("1.2.0" not in toolchain.available_versions(), reason="figures of ascendnpu-ir 1.2.0")
def test_counts_read_from_text(pattern):
    launch = token_pool(np.random.default_rng(0), [130] * 64, 1024, 70)
    code = compile_kernel(getattr(kernels, f"assign_{pattern}"), launch.args, POOL, compiler="1.2.0")
    found = tuple(static_counts(code.generic).values())
    assert [a for a, b in zip(found, TABLE[pattern]) if b is not None] == [
        b for b in TABLE[pattern] if b is not None
    ]


@pytest.mark.parametrize(("requests", "scalar"), [(64, 453), (256, 1797), (512, 3589)])
@pytest.mark.skipif("1.2.0" not in toolchain.available_versions(), reason="figures of ascendnpu-ir 1.2.0")
def test_int64_metadata_makes_the_prefix_sum_scalar(requests, scalar):
    launch = token_pool(np.random.default_rng(0), [2] * requests, 64, requests, np.int64)
    code = compile_kernel(kernels.assign_derived, launch.args, {"UPPER": requests, "BLOCK": 128}, compiler="1.2.0")
    assert static_counts(code.generic)["scalar"] == scalar


def test_counts_of_a_launch_are_those_of_the_work_it_did():
    """add: two loads and one store a program, and a fill of both tiles where the last one is not full."""
    done, _ = run(BY_NAME["add"])
    assert done.counts["dma_in"] == 10
    assert done.counts["dma_out"] == 5
    assert done.counts["bytes_in"] == 2 * 5000 * 4
    assert done.counts["bytes_out"] == 5000 * 4
    assert done.counts["vector_ops"] == 5 + 2
    assert done.counts["vector_repeats"] == 7 * (1024 * 4 // 256)
    assert done.counts["ub_bytes"] == 2 * 1024 * 4
    assert done.counts["scalar_accesses"] == 0


def test_scalar_code_is_counted_by_what_ran():
    done, launch = run(BY_NAME["scalar_walk"])
    assert done.counts["scalar_accesses"] == launch.args["n"] + 1


def test_metrics_are_the_same_in_every_process():
    script = (
        "import json, numpy as np, ascend_model\n"
        "from tests.model_cases import BY_NAME\n"
        "for name in ('assign_derived', 'softmax', 'cumsum', 'assign_modulo'):\n"
        "    case = BY_NAME[name]\n"
        "    launch = case.launch(np.random.default_rng(1))\n"
        "    done = ascend_model.simulate(case.kernel, launch.grid, launch.args, case.constants, cache=False)\n"
        "    row = [done.cycles, done.counts, done.busy, done.stalls, done.program_cycles, done.code]\n"
        "    print(json.dumps(row))\n"
    )
    texts = set()
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(json.loads(texts.pop().splitlines()[0])) == 6


def test_a_second_launch_of_the_same_kernel_starts_clean():
    first, _ = run(BY_NAME["assign_derived"])
    second, launch = run(BY_NAME["assign_derived"])
    assert first.counts == second.counts
    assert first.cycles == second.cycles
    assert mismatch(BY_NAME["assign_derived"], launch) == ""


# ---- parsing


def test_types():
    kind = memref_type("memref<4x?xf32, strided<[?, 1], offset: ?>, #hivm.address_space<ub>>")
    assert (kind.shape, kind.strides, kind.offset, kind.space) == ((4, None), (None, 1), None, "ub")
    assert memref_type("memref<128xi1>").static_bytes == 16
    assert memref_type("vector<4xf32>") is None


def test_every_op_is_read_with_its_place_in_the_kernel():
    code = compiled("add")
    entry = parse(code.generic).entry
    stores = [op for op in entry.walk() if op.name == "hivm.hir.store"]
    assert len(stores) == 1
    place = stores[0].loc
    line = int(place.split(":")[1])
    source = open(kernels.__file__).read().splitlines()[line - 1]
    assert "tl.store(out + offs" in source
    assert code.generic.splitlines()[stores[0].line - 1].lstrip().startswith('"hivm.hir.store"')

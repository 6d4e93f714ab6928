"""Twins and patterns, and what explain must say about each in its first sentence.

`python -m tests.explain_table` compiles all of them and prints what is said.  Which cause belongs to a twin is
decided by hand, from what its source changes; nothing here is taken from the explaining code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from ascend_kernels.harness.launch import run_with
from ascend_kernels.harness.model import Compiling
from ascend_kernels.registry import OPS
from ascend_model import compile_kernel
from ascend_model.explain import Explanation, explain, explain_all
from tests import explain_kernels, model_kernels


class Truth(NamedTuple):
    """case: where the twin differs from the op's own.  words: each must stand in the first sentence; of
    alternatives in a tuple, one."""

    case: str
    words: tuple[str | tuple[str, ...], ...]


TILE = "load, select and store of the whole tile"
ELEMENTS = "single elements"

TWINS = {
    ("assign_req_to_token_pool", "carried"): Truth("ragged", ("carried through the loop", "twins.py")),
    ("assign_req_to_token_pool", "carried-at-top"): Truth("ragged", (TILE, "carried", "before they are used")),
    ("assign_req_to_token_pool", "carried-in-while"): Truth("ragged", (TILE, "carried", "while")),
    ("assign_req_to_token_pool", "carried-by-where"): Truth("ragged", (ELEMENTS, "carried", "tl.where")),
    ("assign_req_to_token_pool", "mask-reversed"): Truth(
        "ragged", (TILE, "`req_to_token`", "`length > offset`", "write `offset < length`")
    ),
    ("assign_req_to_token_pool", "mask-by-arithmetic"): Truth(
        "ragged", (TILE, "length - offset", "`offset < end`")
    ),
    ("assign_req_to_token_pool", "modulo"): Truth("ragged", (ELEMENTS, "`req_to_token`", "remainder", "`%`")),
    ("assign_req_to_token_pool", "int64-sum"): Truth("ragged", ("sum", ("i64", "int64"), "scalar")),
    ("assign_req_to_token_pool", "prefetch"): Truth("ragged", ("tile", "next iteration", "prefetch")),
    ("assign_req_to_token_pool", "small-block"): Truth("ragged", ("32 elements instead of 256",)),
    ("padded_gather", "lookup"): Truth("1024x1536-e64-k2", ("innermost loop", "bin")),
    ("padded_gather", "masked-scalar"): Truth("1024x1536-e64-k2", ("single element", "mask", "bins`")),
    ("padded_gather", "row-vector"): Truth("1024x1536-e64-k2", ("`x`", "rows", "vector")),
    ("padded_gather", "int64"): Truth("1024x1536-e64-k2", (("int64", "innermost loop"),)),
    ("padded_gather", "one-row-programs"): Truth("1024x1536-e64-k2", ("same", "2048 programs instead of 48")),
    ("padded_gather", "small-tile"): Truth("1024x1536-e64-k2", ("256 elements instead of",)),
    ("padded_gather", "weight-each-tile"): Truth("1024x1536-e64-k2", ("256 elements instead of",)),
    ("padded_gather", "weight-cast"): Truth("weights-bf16", ("scalar", "cast", "float", "`weight")),
    ("padded_scatter", "rolled"): Truth("1024x1536-e64-k2", ("no longer unrolled",)),
    ("padded_scatter", "small-tile"): Truth("1024x1536-e64-k2", ("256 elements instead of",)),
    ("padded_scatter_wgrad", "lookup"): Truth("1024x1536-e64-k2", ("innermost loop", "bin")),
    ("padded_scatter_wgrad", "masked-scalar"): Truth("1024x1536-e64-k2", ("single element", "mask", "bins`")),
    ("padded_scatter_wgrad", "row-vector"): Truth("1024x1536-e64-k2", ("`x`", "rows", "vector")),
    ("padded_scatter_wgrad", "one-row-programs"): Truth(
        "1024x1536-e64-k2", ("same", "2048 programs instead of 48")
    ),
    ("padded_scatter_wgrad", "small-tile"): Truth("1024x1536-e64-k2", ("256 elements instead of",)),
    ("padded_scatter_wgrad", "sum-each-tile"): Truth("1024x1536-e64-k2", ("reduced to a scalar", "loop")),
    ("padded_scatter_wgrad", "scalar-sum"): Truth("1024x1536-e64-k2", ("reduced to a scalar", "loop")),
    ("kpool_compress_and_write_cache", "butterfly"): Truth(
        "preshuffled", ("ub overflow", "bytes of unified buffer")
    ),
    ("kpool_compress_and_write_cache", "row-loads"): Truth(
        "preshuffled", ("load of `slot_", "16", "instead of 1")
    ),
    ("kpool_compress_and_write_cache", "flat-store"): Truth("preshuffled", ("store to `kv_cache`", ELEMENTS)),
    ("kpool_compress_and_write_cache", "default-nan"): Truth(
        "preshuffled", ("minimum or maximum", "propagate_nan")
    ),
    ("kpool_compress_and_write_cache", "log2-scale"): Truth("preshuffled", (("log2", "exp2"), "logarithm")),
    ("expand_pools_and_append_tail", "lanes"): Truth("5x8", ("`pool_ids`", ELEMENTS, "`//`")),
    ("fill_accepted_out_cache_loc", "int64-count"): Truth(
        "32x6", (("sum", "compare"), ("i64", "int64"), "scalar")
    ),
    ("fill_accepted_out_cache_loc", "program-an-entry"): Truth("32x6", ("192 programs instead of",)),
    ("fill_accepted_out_cache_loc", "unclamped"): Truth("32x6", ("`out_cache_loc`", ELEMENTS, "gather")),
    ("select_top_k_tokens", "one-request"): Truth("step1-17x4", ("scalar", "one element")),
    ("top_k_renorm_prob", "integer-bounds"): Truth("ends", ("integers are compared",)),
    ("tree_speculative_sampling_target_only", "cumsum"): Truth("8x16x1500", ("cumsum",)),
}
"""(op, twin) -> what must be said.  A twin of the registry without a row is an error; add one with the twin."""

PATTERNS = {
    "assign_carried": ("carried through the loop",),
    "assign_carried_top": (TILE, "carried", "before they are used", "`offs < hi - lo`"),
    "assign_while": (TILE, "carried", "while"),
    "assign_where": (ELEMENTS, "carried", "tl.where"),
    "assign_reversed_mask": (TILE, "`hi > save`", "write `save < hi`"),
    "assign_arith_mask": (TILE, "hi - save"),
    "assign_or_mask": (TILE, "|", "joins or negates"),
    "assign_or_offset": (ELEMENTS, "`|`"),
    "assign_modulo": (ELEMENTS, "`%`"),
    "assign_prefetch": ("prefetch", "next iteration"),
    "assign_wide_prefix": ("sum", "i64", "scalar"),
    "mask_not_equal": (TILE, "equality", "!= 1"),
    "mask_negated": (TILE, "negates", "~"),
    "mask_int8": (TILE, "int8"),
    "mask_greater_equal": (TILE, "`length - 1 >= offset`", "`offset <= length - 1`"),
    "offset_bits": (ELEMENTS, "`&`"),
    "offset_reversed": (ELEMENTS, "backwards"),
    "offset_divided": (ELEMENTS, "`//`"),
    "table_lookup": (ELEMENTS, "gather"),
    "running_sum": ("cumsum",),
    "sum_in_loop": ("reduced to a scalar", "loop"),
    "rms_rev": (TILE, "`cols > c`", "write `c < cols`"),
    "rms_i64": ("i64", "scalar", "remainder"),
    "rms_gather": ("`w`", ELEMENTS, "gather"),
    "rms_mod": ("`w`", ELEMENTS, "`%`"),
    "rms_odd_mask": (TILE, "loaded", "v > 0.0"),
    "rms_carry": (TILE, "carried", "before they are used"),
    "rms_cumsum": ("cumsum",),
    "rms_prefetch": ("prefetch", "next iteration"),
    "rms_scalarw": ("`w`", "single element", "mask"),
    "rms_or": (ELEMENTS, "`|`"),
}
"""Kernel of the tests -> what must be said of it against the plain loop with derived offsets."""


class Sizes(NamedTuple):
    """A kernel whose tiles alone change.  words: as in `Truth`."""

    kernel: str
    width: int
    dtype: str
    before: int
    after: int
    words: tuple[str | tuple[str, ...], ...]


SIZES = {
    f"{kernel} {width} {dtype} {before}->{after}": Sizes(
        kernel, width, dtype, before, after, ("tiles", "`out`", f"{after} elements instead of {before}")
    )
    for kernel in ("norm_unrolled", "norm_rolled", "norm_partial")
    for width, dtype in ((4096, "bfloat16"), (1000, "float32"))
    for before, after in ((2048, 512), (512, 128), (512, 2048))
}
"""Another tile size, which must be said first: how often a tile is summed, copied and waited for follows."""

HARMLESS = ("carried_pointers", "scalar_carry", "mask_or_equal", "two_ranges", "stepped_range")
"""Kernels that compile as well as the plain loop: nothing costly may be claimed."""

CONSTANTS = {"UPPER": 64, "BLOCK": 128}


RMS = {"BLOCK": 256}


def arguments(dtype: str = "int32") -> dict[str, object]:
    import torch

    sizes = {"rows": (64,), "pool": (64, 1024), "start": (64,), "end": (64,), "source": (9999,)}
    made = {name: torch.zeros(size, dtype=getattr(torch, dtype)) for name, size in sizes.items()}
    return {**made, "pool_len": 1024}


def rms_arguments() -> dict[str, object]:
    import torch

    made = {"x": torch.zeros(64, 200), "w": torch.zeros(256), "out": torch.zeros(64, 200)}
    return {**made, "rows": 64, "cols": 200}


def compiled(name: str, dtype: str = "int32"):
    """A kernel of the tests, compiled."""
    if name.startswith("rms"):
        return compile_kernel(getattr(explain_kernels, name), rms_arguments(), RMS)
    kernel = getattr(explain_kernels, name, None) or getattr(model_kernels, name)
    return compile_kernel(kernel, arguments(dtype), CONSTANTS)


def normed(kernel: str, width: int = 4096, dtype: str = "float32", block: int = 512):
    """One of the kernels that normalise rows, compiled."""
    import torch

    kind = getattr(torch, dtype)
    tensors = {"x": (96, width), "w": (width,), "out": (96, width)}
    given = {name: torch.zeros(size, dtype=kind) for name, size in tensors.items()}
    return compile_kernel(
        getattr(explain_kernels, kernel), {**given, "rows": 96}, {"WIDTH": width, "BLOCK": block}
    )


def resized(name: str) -> Explanation:
    one = SIZES[name]
    return explain(*(normed(one.kernel, one.width, one.dtype, block) for block in (one.before, one.after)))


def pattern(name: str) -> Explanation:
    plain = {"assign": "assign_derived", "rms": "rms"}.get(name.partition("_")[0], "base")
    return explain(compiled(plain), compiled(name))


def sides(op: str, impl: str, case: str) -> list:
    """What an implementation or twin of an op compiles to."""
    runner = Compiling("Ascend910B1")
    with run_with(runner):
        OPS[op].calls()[impl](**OPS[op].cases[case].arguments())
    return runner.sides


def twin(op: str, name: str, *, back: bool = False) -> Explanation:
    case = TWINS[op, name].case
    pair = sides(op, OPS[op].implementations[0], case), sides(op, name, case)
    return explain_all(*(reversed(pair) if back else pair))


def twins() -> list[tuple[str, str]]:
    return [(op.name, name) for op in OPS.values() for name in op.twins]


def missing(sentence: str, words: tuple[str | tuple[str, ...], ...]) -> list[str]:
    """Those of the words that do not stand in a sentence."""
    choices = [one if isinstance(one, tuple) else (one,) for one in words]
    return [" or ".join(some) for some in choices if not any(one in sentence for one in some)]


def rows() -> Iterator[tuple[str, Explanation, list[str]]]:
    """Name, explanation and missing words of every twin, pattern and tile size."""
    for op, name in twins():
        if (op, name) in TWINS:
            said = twin(op, name)
            yield f"{op} {name}", said, missing(said.sentences[0], TWINS[op, name].words)
    for name, words in PATTERNS.items():
        said = pattern(name)
        yield name, said, missing(said.sentences[0], words)
    for name, sizes in SIZES.items():
        said = resized(name)
        yield name, said, missing(said.sentences[0], sizes.words)


def main() -> int:
    found = list(rows())
    for name, said, lacks in found:
        print(f"{'ok  ' if not lacks else 'MISS'} {name}: {said.sentences[0]}")
        for words in lacks:
            print(f"     lacks: {words}")
    named = sum(not lacks for _, _, lacks in found)
    print(f"{named} of {len(found)} causes named in the first sentence")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""EAGLE ops on a CUDA GPU: every case against the reference, then the times that docs/kernels-eagle.md quotes.

Run from the repository root: python tools/gpu_eagle.py [part ...]
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ascend_kernels.eagle import renorm, scenario, scenario_reference
from ascend_kernels.eagle import tree_speculative_sampling_target_only as sampling
from ascend_kernels.eagle.cases import coins
from ascend_kernels.harness import gate, timing
from ascend_kernels.harness.spec import UNSUPPORTED
from ascend_kernels.registry import OPS

PLACE = "cuda"
# The torch form with the kernel for the verification, the part of which the torch form is worst at.
MIXED = {**scenario.TORCH, "verify_tree_greedy": scenario.TRITON["verify_tree_greedy"]}
BEGIN = time.time()


def say(*words) -> None:
    print(f"[{time.time() - BEGIN:5.1f}s]", *words, flush=True)


def check_cases() -> None:
    for op in OPS.values():
        if op.family != "eagle":
            continue
        wrong = []
        begin = time.time()
        for case in op.cases:
            for impl in op.implementations:
                if op.cases[case].timed and impl == "tile":
                    continue
                verdict = gate.verify(op, case, impl)
                if not verdict.ok and verdict.state != UNSUPPORTED:
                    wrong.append(f"{case}/{impl}: {verdict.state}: {verdict.reason[:300]}")
        say(f"{op.name}: {'all right' if not wrong else wrong} ({time.time() - begin:.1f} s)")


def check_draws(draws: int = 200_000, vocab: int = 12) -> None:
    """Chi-square of first tokens against the target's distribution, limit for 11 degrees at 0.001: 31.26."""
    generator = torch.Generator().manual_seed(7)
    weights = torch.rand(vocab, generator=generator) + 0.05
    target = (weights / weights.sum()).float()
    batch = {
        "candidates": torch.tensor([[0, 3, 7, 1]]).repeat(draws, 1),
        "retrieve_index": torch.arange(draws * 4).view(draws, 4),
        "retrieve_next_token": torch.tensor([[1, -1, -1, -1]]).repeat(draws, 1),
        "retrieve_next_sibling": torch.tensor([[-1, 2, 3, -1]]).repeat(draws, 1),
        "uniform_samples": coins((draws, 4), generator),
        "uniform_samples_for_final_sampling": coins((draws,), generator),
        "target_probs": target.expand(draws, 4, vocab).contiguous(),
    }
    batch = {k: v.to(PLACE) for k, v in batch.items()}
    for acc in (1.0, 0.9):
        predicts, _, _ = sampling(**batch, threshold_acc=acc)
        counts = torch.bincount(predicts.view(draws, 4)[:, 0].cpu().long(), minlength=vocab).double()
        expected = target.double() * draws
        chi = float(((counts - expected) ** 2 / expected).sum())
        say(f"chi-square of {draws} draws, threshold_acc {acc}: {chi:.1f} (limit 31.3)")


def check_steps(steps: int = 1000) -> None:
    settings = [(1, 3, 1), (4, 3, 1), (8, 5, 16), (4, 5, 64), (8, 1, 1), (1, 5, 16), (2, 3, 4)]
    done = wrong = 0
    for number, (k, depth, page) in enumerate(settings * 2):
        mode = scenario.MODES[number % 3] if number >= len(settings) else "mixed"
        config = scenario.Config(k, depth, page, pool_len=2048)
        engine = scenario.start(config, 8, 8 * 2048 // page, PLACE)
        for step in range(-(-steps // (2 * len(settings)))):
            if len(engine.rows) < 8 and step % 3 == 0:
                scenario.join(engine, [(step * 37 + i * 11) % 997 for i in range(2 + step % 40)])
            if step % 11 == 10:
                scenario.finish(engine, engine.rows[step % len(engine.rows)])
            if not engine.rows:
                continue
            want = {
                r: scenario_reference.accepted(mode, k, depth, config.nodes, engine.tokens[r]) for r in engine.rows
            }
            before = {r: len(engine.tokens[r]) for r in engine.rows}
            scenario.decode(engine, mode)
            done += 1
            wrong += any(engine.tokens[r][before[r] :] != want[r] for r in want)
            for r in engine.rows:
                slots = engine.req_to_token[r, : engine.lengths[r]].long()
                wrong += engine.kv[slots].tolist() != engine.tokens[r][:-1]
    say(f"{done} decode steps against plain Python: {wrong} differ")


def time_steps() -> None:
    say("metadata step, us a step: host (until the call returns), device (graph replay), and both")
    for requests, k, depth, page in [(1, 4, 3, 1), (32, 4, 3, 1), (256, 1, 3, 1), (256, 4, 3, 1), (256, 8, 5, 1),
                                     (256, 4, 3, 64), (256, 8, 5, 16)]:  # fmt: skip
        config = scenario.Config(k, depth, page, pool_len=8192, hidden=4096)
        inputs, model = scenario.prepare(config, requests, PLACE)
        calls = {
            name: functools.partial(scenario.metadata_step, ops, config, inputs, model)
            for name, ops in (("triton", scenario.TRITON), ("torch", scenario.TORCH), ("mixed", MIXED))
        }
        one, two = (calls[name]() for name in ("triton", "torch"))
        kept = torch.arange(config.path, device=PLACE) < two.accept_lens.unsqueeze(1)
        same = torch.equal(one.accept_lens, two.accept_lens) and torch.equal(
            one.new_verified_id, two.new_verified_id
        )
        same = same and torch.equal(one.tokens[kept], two.tokens[kept])
        timed = timing.measure(calls, {}, PLACE, rounds=30)
        total = {name: t.median("host") + t.median("warm") for name, t in timed.items()}
        text = ", ".join(
            f"{n} {t.median('host'):.0f} + {t.median('warm'):.1f} = {total[n]:.0f}" for n, t in timed.items()
        )
        ratio, graphs = total["triton"] / total["torch"], all(t.by_graph for t in timed.values())
        say(
            f"bs {requests} topk {k} steps {depth} page {page}: {text}; ratio {ratio:.3f}; equal {same}, {graphs=}"
        )


def time_ops() -> None:
    size = 1 << 30
    one = torch.empty(size, dtype=torch.uint8, device=PLACE)
    two = torch.empty_like(one)
    copy = timing.measure({"copy": functools.partial(two.copy_, one)}, {}, PLACE, rounds=10)["copy"].median()
    say(f"copy of 1 GiB: {copy:.1f} us, {2 * size / copy / 1e6:.2f} TB/s read and written")
    del one, two
    say("op, case: device us warm/cold, host us")
    for op in OPS.values():
        if op.family != "eagle":
            continue
        for case in op.timed_cases():
            arguments = op.cases[case].arguments()
            # The device's own implementation, beside the torch form.
            calls = {"own": op.call, "torch": op.torch_form}
            timed = timing.measure(calls, arguments, PLACE, rounds=9)
            text = "; ".join(
                f"{n} {t.median('warm'):.1f}/{t.median('cold'):.1f}, host {statistics.median(t.host):.0f}"
                for n, t in timed.items()
            )
            rate = op.bytes_moved(arguments) / timed["own"].median("cold") / 1e3
            say(f"{op.name} {case}: {text}; {rate:.1f} GB/s")


def sweep() -> None:
    for case in ("8x32000", "32x32000", "32x152064"):
        arguments = {k: v.to(PLACE) for k, v in OPS["top_k_renorm_prob"].cases[case].arguments().items()}
        out = torch.empty_like(arguments["probs"])
        for kernel, sizes in ((renorm.digits_kernel, (4096, 8192)), (renorm.bits_kernel, (4096, 16384))):
            for block in sizes:
                for warps in (8, 16, 32):
                    cut = renorm.Cut(kernel, large_block=block, warps=warps)
                    call = functools.partial(cut.launch, *arguments.values(), out, mass=False)
                    found = timing.measure({"x": call}, {}, PLACE, rounds=5)["x"].median()
                    say(f"renorm {case} {kernel.__name__} block {block} warps {warps}: {found:.1f} us")


if __name__ == "__main__":
    say(torch.cuda.get_device_name(), "torch", torch.__version__)
    for part in (time_steps, check_steps, check_draws, time_ops, check_cases, sweep):
        if sys.argv[1:] and part.__name__ not in sys.argv[1:]:
            continue
        try:
            part()
        except Exception:
            traceback.print_exc()
            say(f"{part.__name__} stopped")

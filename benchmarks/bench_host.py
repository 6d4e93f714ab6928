"""Host time of the wrappers where they launch on a GPU: what our Python adds to a bare `kernel[grid](...)`.

    python -m benchmarks.bench_host                    time of a call of every op, on one quick case
    python -m benchmarks.bench_host --against FOLDER   the same of another working tree, in turn with this one

On a GPU a call is the real one and the time goes by the clock, the device waited for between samples.

It needs no GPU.  Without one, arguments are "meta" tensors, which lie on no CPU and hold nothing; plans are those
of an H200; triton is set to compile, and a launch ends in `JITFunction.run`, which does nothing here.  Included
then: checks, plans, views, allocations of tensors without memory, and what `harness.launch` does.  Not included:
triton's own launch, the device's allocator, and the kernel.  CPU time, which a busy host disturbs little.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 5  # processes of a tree
SAMPLES = 40
CALLS = 25  # of a sample
LEFT_OUT = ("decode_step",)  # torch runs in Python what it does to meta tensors between its launches


def pretend_gpu():
    """Launches of this process go to an H200 that is not there.  Before triton is imported."""
    os.environ |= {"TRITON_INTERPRET": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "ASCEND_KERNELS_DEVICE": ""}
    import torch
    from triton.runtime.jit import JITFunction

    from ascend_kernels.harness import device

    h200 = device.Device("cuda", "NVIDIA H200", 132, 0)
    torch.cuda._is_compiled = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.empty_like = lambda like: torch.empty(like.shape, dtype=like.dtype, device=like.device)  # see LEFT_OUT
    device._present = lambda *place: h200
    JITFunction.run = lambda self, *args, **options: None


def us(call, clock, settle):
    """Time of one call: the least of several samples, since other processes only add to it."""
    samples = []
    for _ in range(SAMPLES):
        begin = clock()
        for _ in range(CALLS):
            call()
        samples.append((clock() - begin) / CALLS / 1000)
        settle()
    return min(samples)


def overheads():
    """Op and case -> us of a call of the wrapper and of its bare launches alone."""
    import torch

    real = torch.cuda.is_available()
    clock, settle = (
        (time.perf_counter_ns, torch.cuda.synchronize) if real else (time.process_time_ns, lambda: None)
    )
    if not real:
        pretend_gpu()
    from ascend_kernels.harness import launch
    from ascend_kernels.registry import OPS

    found = {}
    for op in OPS.values():
        if op.name in LEFT_OUT and not real:
            continue
        quick = op.quick_cases()
        case = next((name for name in quick if op.cases[name].timed), quick[0])
        given = op.cases[case].arguments("cuda" if real else "meta")
        with launch.recorded() as seen:
            op.call(**given)

        def whole(op=op, given=given):
            op.call(**given)

        def bare(seen=seen):
            for one in seen:
                one.kernel[one.grid](*one.args.values(), **one.constants, **one.options)

        found[f"{op.name} {case}"] = us(whole, clock, settle), us(bare, clock, settle)
    return found


def in_turn(trees):
    """Of each tree, the least of several processes that take turns: a host has slow phases longer than one."""
    rounds = {tree: [] for tree in trees}
    for _ in range(ROUNDS):
        for tree in trees:
            command = [sys.executable, str(Path(__file__).resolve()), "--json"]
            there = {**os.environ, "PYTHONPATH": str(tree)}
            done = subprocess.run(command, env=there, stdout=subprocess.PIPE, check=True)
            rounds[tree].append(json.loads(done.stdout))
    return {
        tree: {row: [min(one[row][i] for one in taken) for i in (0, 1)] for row in taken[0]}
        for tree, taken in rounds.items()
    }


def table(found):
    """Lines: of each tree the call, its bare launches and what is over; of two trees also the ratio of that."""
    yield f"{'us':62s}" + f"{'call':>8s}{'bare':>8s}{'over':>8s}" * len(found)
    *_, rows = found.values()
    for row in rows:
        line, over = f"{row:62s}", []
        for tree in found.values():
            whole, bare = tree.get(row, (math.nan, math.nan))
            over.append(whole - bare)
            line += f"{whole:8.1f}{bare:8.1f}{over[-1]:8.1f}"
        yield line + (f"{over[1] / over[0]:8.2f}" if len(over) == 2 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another working tree, shown first")
    parser.add_argument("--json", action="store_true", help="one process, as JSON")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(overheads()))
        return
    here = Path(__file__).resolve().parent.parent
    print(*table(in_turn([given.against.resolve(), here] if given.against else [here])), sep="\n")


if __name__ == "__main__":
    main()

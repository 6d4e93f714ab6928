"""Every op of the registry on the GPU at hand: verdicts of all cases, then times of the timed ones, one table.

    python tools/gpu_registry.py [--family NAME] [--json FILE]

Columns: median device time warm and cold and host time in microseconds, bytes over cold time against the copy
bandwidth measured in the same run, and the same job's torch form.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from ascend_kernels.harness import device, gate, timing
from ascend_kernels.registry import OPS


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes read and written a second by a large copy on the device."""
    place = device.kind()
    module = torch.get_device_module(place)
    source = torch.empty(size, dtype=torch.uint8, device=place).fill_(1)
    target = torch.empty_like(source)
    samples = []
    for _ in range(12):
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e-3)
    return 2 * size / statistics.median(samples[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=200, help="stop measuring after this long")
    given = parser.parse_args()
    place, begin = device.kind(), time.time()
    rows, bad, checked = [], [], 0
    ops = [op for op in OPS.values() if given.family in (None, op.family)]
    for op in ops:
        for case in op.cases:
            for impl in op.calls():
                verdict = gate.verify(op, case, impl)
                checked += 1
                if verdict.state not in ("ok", "unsupported here"):
                    bad.append(f"{op.name} {case} {impl}: {verdict.state}: {verdict.reason[:200]}")
    print(f"{checked} verdicts in {time.time() - begin:.0f} s, {len(bad)} not ok")
    for line in bad[:40]:
        print("  ", line)
    peak = copy_bandwidth()
    print(f"{device.current().name}: copy {peak / 1e12:.2f} TB/s")
    print(f"{'op case implementation':<62}{'warm us':>9}{'cold us':>9}{'host us':>9}{'of copy':>9}")
    for op in ops:
        for case in op.timed_cases():
            if time.time() - begin > given.seconds:
                print("time is up")
                break
            calls = {
                n: c for n, c in op.calls().items() if not any(b.startswith(f"{op.name} {case} {n}:") for b in bad)
            }
            calls["torch"] = op.torch_form
            try:
                timed = timing.measure(calls, op.cases[case].arguments(), place, rounds=9)
            except Exception as error:
                print(f"{op.name} {case}: {type(error).__name__}: {error}")
                continue
            moved = op.bytes_moved(op.cases[case].arguments())
            for name, one in timed.items():
                share = moved / (one.median("cold") * 1e-6) / peak
                rows.append({"op": op.name, "case": case, "impl": name, "share_of_copy": share, **vars(one)})
                print(
                    f"{op.name + ' ' + case + ' ' + name:<62}{one.median('warm'):>9.2f}{one.median('cold'):>9.2f}"
                    f"{one.median('host'):>9.1f}{share:>8.0%} {'' if one.by_graph else 'events'}"
                )
    if given.json:
        Path(given.json).write_text(json.dumps({"device": device.current().name, "copy": peak, "rows": rows}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the Ascend compiler gets wrong in kernels of the survey, and how each outcome of a launch is named."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ascend_model import NOT_MODELLED, Simulation
from ascend_model.compile import strip_locations
from tests.outside_kernels.case import Launch, Outside, mismatch


@dataclass(frozen=True)
class Fault:
    """why:     what the compiler does, in a sentence
    smallest:   the kernel of the survey that shows it in its smallest form
    linalg, hivm: patterns of the lines that show it, before and after bishengir-compile
    status:     of the launch in the model, where the values are not what is wrong
    findings:   kinds of finding that come with it
    """

    why: str
    smallest: str
    linalg: tuple[str, ...] = ()
    hivm: tuple[str, ...] = ()
    status: tuple[str, ...] = ("ok",)
    findings: tuple[str, ...] = ()


FAULTS = {
    "masked lanes read": Fault(
        "A load whose mask is not one upper bound of the lane's index reads every lane, also where the mask is "
        "false, and a select puts `other` in afterwards: the result is right, and memory before or after the "
        "tensor is read.",
        "masked_scalar",
        (r"memref\.load", r"arith\.select"),
        (r"memref\.load .*gm>", r"hivm\.hir\.vsel", r"arith\.select .* : i32"),
        status=("out of bounds",),
        findings=("out of bounds read",),
    ),
    "division in f32": Fault(
        "`//` of int32 lanes is a division in f32, rounded: wrong for numbers above 2**24.",
        "divide_large",
        (r"arith\.divsi .*tensor",),
        (r"hivm\.hir\.vcast .*xi32.*xf32", r"hivm\.hir\.vdiv"),
    ),
    "signed shift": Fault(
        "`>>` of unsigned lanes shifts the sign in: both kinds of shift become the same op.",
        "unsigned_shift",
        (r"arith\.shrui",),
        (r"hivm\.hir\.vshr",),
    ),
    "signed umulhi": Fault(
        "`tl.umulhi` takes its operands as signed, so the upper half of a product is wrong where one of them is "
        "2**31 or more; `tl.rand` and everything built on Philox gives other numbers than on a GPU.",
        "high_product",
        (r"mul.i_extended",),
        (r"arith\.extsi .* : i32", r"arith\.mul\w* .* : i64", r"arith\.mulsi_extended"),
    ),
    "unsigned compare": Fault(
        "Compares of unsigned 16-bit lanes become other compares: `<` becomes `!=`, and `>=` becomes signed `<`.",
        "compare_uint16",
        (r"arith\.cmpi u.*tensor",),
        (r"arith\.cmpi .* : i16",),
    ),
    "swapped value returned": Fault(
        "`tl.atomic_cas` returns the memory's value after the swap instead of the one before: a lock built on it "
        "waits for ever for the lock that it has just taken.",
        "atomic_cas_value",
        (r"linalg\.generic", r"arith\.cmpi eq", r"memref\.copy"),
        (r"hivm\.hir\.vcmp", r"hivm\.hir\.store", r"hivm\.hir\.load .*"),
        status=("ok", "endless loop"),
        findings=("missing wait",),
    ),
    "swap gone": Fault(
        "The swap of `tl.atomic_cas` is left out: no compare and no store of the new value is in the code.",
        "atomic_cas_value",
        (r"linalg\.generic", r"arith\.cmpi eq"),
        (r"hivm\.hir\.(?:load|store|vcmp|sync_block_lock) ",),
        findings=("read-modify-write overlap",),
    ),
    "exchange gone": Fault(
        "`tl.atomic_xchg` whose result is used is left out: the old value is loaded, the new one never stored.",
        "atomic_exchange",
        (r"memref\.copy", r"linalg\.generic"),
        (r"hivm\.hir\.(?:load|store) ",),
    ),
}

RIGHT, UNSAFE, WRONG, NOT_COMPILED, REFUSED, UNEXPLAINED = (
    "right", "right, unsafe", "wrong", "does not compile", "refused", "unexplained",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How one kernel ended on one compiler: numbers only where the result is right.

    fault: a key of FAULTS.  why: the words of the compiler or the model.
    """

    state: str
    why: str = ""
    fault: str = ""
    cycles: int | None = None
    bound: int | None = None
    scalar: int | None = None

    @property
    def clear(self) -> bool:
        return self.state != UNEXPLAINED


def judge(launch: Launch, done: Simulation) -> Outcome:
    """Name the outcome of a launch that was executed in the model."""
    if done.status in NOT_MODELLED:
        words = "cube unit" if done.status == "unsupported: cube" else done.message.partition(" at ")[0]
        return Outcome(REFUSED, words)
    if not done.counts:
        words = first_line(done.message)
        return Outcome(NOT_COMPILED, words if words.startswith(done.status) else f"{done.status}: {words}")
    kinds = {finding.kind for finding in done.findings}
    numbers = Outcome(RIGHT, "", "", done.cycles, done.bound_cycles, done.counts["scalar_accesses"])
    wrong = mismatch(launch) if done.status in ("ok", "out of bounds") else done.status
    if not wrong and not kinds:
        return numbers
    for name, values in launch.faults.items():
        fault = FAULTS[name]
        if done.status not in fault.status or not kinds <= set(fault.findings):
            continue
        if (
            values is None
            if done.status == "endless loop"
            else values is not None and not mismatch(launch, values)
        ):
            return Outcome(WRONG, done.status, name) if wrong else replace(numbers, state=UNSAFE, fault=name)
    return Outcome(UNEXPLAINED, wrong or "; ".join(map(str, done.findings)))


def first_line(message: str) -> str:
    """The line of a message that says what happened, short and without addresses that differ from run to run."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"\w*Error(?:: (?!at \d)|\()", line)]
    telling = raised[-1:] or [line for line in lines if re.search(r"error:|Assertion", line)] or lines or [""]
    text = re.sub(r"^.*?(?:error: |: Assertion )", "", telling[0])
    text = re.sub(r"^(?:loc\([^)]*\): |\S+\.(?:cpp|h|py):\d+(?::\d+)?: )+", "", text)
    return text.partition(" (possible reason")[0][:140].strip()


def outcome(kernel: Outside, compiler: str, cache: bool = True) -> Outcome:
    """Compile and execute one kernel of the survey."""
    import ascend_model

    launch = kernel.launch()
    done = ascend_model.simulate(
        kernel.kernel, launch.grid, launch.args, kernel.constants, compiler=compiler, max_ops=1_000_000,
        cache=cache, keep_numbers=True,
    )  # fmt: skip
    return judge(launch, done)


def evidence(fault: Fault, kernel: Outside, compiler: str) -> tuple[list[str], list[str]]:
    """The lines of both compiled forms that show a fault."""
    import ascend_model

    code = ascend_model.compile_kernel(kernel.kernel, kernel.launch().args, kernel.constants, compiler=compiler)
    found = []
    for text, patterns in ((code.linalg, fault.linalg), (code.hivm, fault.hivm)):
        lines = [line.strip() for line in strip_locations(text).splitlines()]
        found.append(_quoted(lines, patterns))
    return found[0], found[1]


def _quoted(lines: list[str], patterns: tuple[str, ...]) -> list[str]:
    kept = [line for line in lines if any(re.search(pattern, line) for pattern in patterns)]
    return [_bare(line) for line in dict.fromkeys(kept)][:6]


def _bare(line: Any) -> str:
    """A line of IR without address spaces and attributes, to be read."""
    line = re.sub(r", #hivm\.address_space<(\w+)>", r", \1", line)
    line = re.sub(r"init_out_buffer = .*$| attrs = .*$|temp_buffer\(.*$", "", line)
    return line.strip()[:170]

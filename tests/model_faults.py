"""Faults planted in the text of compiled code: each is one edit of one line or of one pair of lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FLAG = re.compile(r'"hivm\.hir\.(set|wait)_flag"\((%\w*)?\) <\{(.*?)\}>')
CONSTANT = re.compile(r'^\s*(%\w+) = "arith\.constant"\(\) <\{value = (-?\d+) : (\w+)\}>')


@dataclass(frozen=True)
class Fault:
    """One edited text; `kind` names the edit, `what` the line."""

    kind: str
    what: str
    text: str


def _without(lines: list[str], *drop: int) -> str:
    return "\n".join(line for i, line in enumerate(lines) if i not in drop)


def _with(lines: list[str], at: int, line: str) -> str:
    return "\n".join([*lines[:at], line, *lines[at + 1 :]])


def _key(line: str) -> tuple[str, ...] | None:
    found = FLAG.search(line)
    if not found:
        return None
    pipes = re.findall(r"(set_pipe|wait_pipe) = #hivm\.pipe<PIPE_(\w+)>", found.group(3))
    event = re.search(r"EVENT_ID\d", found.group(3))
    return (*(f"{k}={v}" for k, v in sorted(pipes)), event.group() if event else found.group(2) or "")


def removed_flags(text: str) -> Iterator[Fault]:
    """A wait gone, a set gone, and both gone, which is the fault that leaves no other trace."""
    lines = text.split("\n")
    last_set: dict[tuple[str, ...], int] = {}
    for i, line in enumerate(lines):
        key = _key(line)
        if key is None:
            continue
        name = " ".join(key)
        if "set_flag" in line:
            last_set[key] = i
            yield Fault("removed set_flag", f"line {i + 1}: {name}", _without(lines, i))
        else:
            yield Fault("removed wait_flag", f"line {i + 1}: {name}", _without(lines, i))
            if key in last_set:
                yield Fault("removed set and wait", f"line {i + 1}: {name}", _without(lines, i, last_set.pop(key)))


def removed_barriers(text: str) -> Iterator[Fault]:
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if '"hivm.hir.pipe_barrier"' in line and "PIPE_ALL" not in line:
            pipe = re.search(r"PIPE_\w+", line)
            yield Fault("removed barrier", f"line {i + 1}: {pipe.group() if pipe else ''}", _without(lines, i))


def moved_buffers(text: str, by: int) -> Iterator[Fault]:
    """One buffer's address moved: its users read or write a neighbour's bytes."""
    lines = text.split("\n")
    found = [CONSTANT.match(line) for line in lines]
    addresses = {m.group(1): int(m.group(2)) for m in found if m and m.group(3) == "i64"}
    first = next(i for i, line in enumerate(lines) if "^bb0(%arg0" in line)
    for i, line in enumerate(lines):
        cast = re.search(r'"hivm\.hir\.pointer_cast"\((%\w+)\)', line)
        if cast:
            moved = addresses[cast.group(1)] + by
            body = [*lines[:i], line.replace(f"({cast.group(1)})", "(%moved)", 1), *lines[i + 1 :]]
            body.insert(first + 1, f'    %moved = "arith.constant"() <{{value = {moved} : i64}}> : () -> i64')
            yield Fault("moved address", f"line {i + 1}: by {by} B", "\n".join(body))


def dropped_masks(text: str) -> Iterator[Fault]:
    """A copy takes the whole tile where a bound cut it, on both its sides."""
    lines = text.split("\n")
    by_bound: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        found = re.search(
            r'"memref\.subview"\(%\w+, (%\w+)\).*static_sizes = array<i64: -9223372036854775808>', line
        )
        if found and line.count("-9223372036854775808") == 1:
            by_bound.setdefault(found.group(1), []).append(i)
    for bound, sites in by_bound.items():
        edited = list(lines)
        for i in sites:
            size = re.search(r": \(memref<(\d+)x", lines[i])
            assert size
            line = re.sub(r'("memref\.subview"\(%\w+), %\w+\)', r"\1)", lines[i])
            line = line.replace("array<i32: 1, 0, 1, 0>", "array<i32: 1, 0, 0, 0>")
            line = line.replace("array<i64: -9223372036854775808>", f"array<i64: {size.group(1)}>")
            edited[i] = re.sub(r"(: \(memref<.*), index\) ->", r"\1) ->", line)
        yield Fault("dropped mask", f"bound {bound}", "\n".join(edited))


def widened_bounds(text: str) -> Iterator[Fault]:
    """The upper end of a tile, a minimum of two bounds, three elements further."""
    lines = text.split("\n")
    first = next(i for i, line in enumerate(lines) if "^bb0(%arg0" in line)
    for i, line in enumerate(lines):
        found = re.match(r'\s*(%\w+) = "arith\.minsi"\((%\w+), (%\w+)\) : \(index', line)
        if not found:
            continue
        result = found.group(1)
        body = [*lines[:i], line.replace(result, "%narrow", 1)]
        body.append(f'    {result} = "arith.addi"(%narrow, %three) : (index, index) -> index')
        body += lines[i + 1 :]
        body.insert(first + 1, '    %three = "arith.constant"() <{value = 3 : index}> : () -> index')
        yield Fault("wider bound", f"line {i + 1}", "\n".join(body))


def swapped_buffers(text: str) -> Iterator[Fault]:
    """Two operands of an op that is not symmetric exchanged, or a result written to an operand's buffer."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        found = re.search(r'"hivm\.hir\.(vsub|vdiv|vsel)"\(([^)]*)\)', line)
        if found:
            names = found.group(2).split(", ")
            a, b = (1, 2) if found.group(1) == "vsel" else (0, 1)
            kinds = re.search(r": \((.*)\) -> \(\)", line)
            if not kinds or names[a] == names[b]:
                continue
            types = re.split(r", (?=memref|[if]\d|index)", kinds.group(1))
            if types[a] != types[b]:
                continue
            names[a], names[b] = names[b], names[a]
            yield Fault(
                "swapped buffers",
                f"line {i + 1}: {found.group(1)}",
                _with(lines, i, line.replace(found.group(2), ", ".join(names), 1)),
            )


def every_fault(text: str) -> list[Fault]:
    return [
        *removed_flags(text),
        *removed_barriers(text),
        *moved_buffers(text, 64),
        *dropped_masks(text),
        *widened_bounds(text),
        *swapped_buffers(text),
    ]

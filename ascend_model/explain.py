"""What changed between two compiled forms of a kernel, as sentences that an engineer can act on.

Everything said is read from compiled code: from the Linalg text how each argument is accessed and which patterns
the compiler did not recognise, from the last form how often that makes it wait, copy and touch single elements.
The kernel's own source only lends the words of a line that the compiled code points to.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ascend_model import patterns
from ascend_model.compile import OK, UB_OVERFLOW, Compiled, stored, strip_locations
from ascend_model.linalg import Function, Place, read
from ascend_model.metrics import sites, static_counts
from ascend_model.parse import Op, ParseError, parse
from ascend_model.patterns import Trait
from ascend_model.source import Lines, line_of, shortened

DIFF_LINES = 200
"""Lines of a difference that are kept; the rest is counted."""

COUNTED = {
    "scalar": "accesses to single elements",
    "sync": "waits of the scalar pipe in loops",
    "dma_in": "copies from global memory",
    "dma_out": "copies to global memory",
    "vector": "vector ops in loops",
    "double_buffers": "double buffers",
    "ub_bytes": "bytes of unified buffer",
}
"""What `static_counts` counts, in words; sites are weighted by constant trip counts."""


@dataclass(frozen=True)
class Evidence:
    """Something counted in both compiled forms, and where it stands in the form that has more of it.

    where: `file.py:97`, "" when not known.  source: the text of that line, when it could be read.
    """

    what: str
    before: int
    after: int
    where: str = ""
    source: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why one compiled form does not perform as the other.

    sentences: the cause first, then what it does to the counts, then other differences
    known:     whether the first sentence names a cause, rather than only the differences
    cause:     name of the pattern, such as "whole-tile store"; "" when not known
    diff:      the Linalg texts' difference, without locations and value numbers
    """

    sentences: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    known: bool
    diff: str = ""
    cause: str = ""

    def __str__(self) -> str:
        text = "\n".join(self.sentences)
        return text if self.known or not self.diff else f"{text}\n\n{self.diff}"


@dataclass(frozen=True)
class Side:
    """A compiled kernel with what an explanation can use beside: programs it is launched as, and its source lines
    as they were when it was compiled."""

    compiled: Compiled
    programs: int | None = None
    lines: Lines = line_of


@dataclass(frozen=True)
class Form:
    """One side: the compiled kernel, its Linalg as statements and its last form as ops, where they can be read."""

    compiled: Compiled
    function: Function | None
    entry: Op | None
    counts: dict[str, int]
    programs: int | None
    findings: tuple[str, ...]
    lines: Lines

    @property
    def traits(self) -> list[Trait]:
        return patterns.traits(self.function, self.compiled.arguments, self.entry, self.lines)


def explain(before: Any, after: Any) -> Explanation:
    """What changed from `before` to `after`, each a `Compiled`, a `Side` or a `Simulation`."""
    old, new = _form(before), _form(after)
    diff = normalised_diff(old.compiled.linalg, new.compiled.linalg)
    launched = _launched(old, new)
    if old.compiled.code and old.compiled.code == new.compiled.code:
        return _same(launched)
    if old.compiled.status != OK or new.compiled.status != OK:
        return _failed(old, new, diff)
    if not diff:
        return _other_compiler(old, new, launched)
    return _differ(old, new, launched, diff)


def explain_all(before: Iterable[Any], after: Iterable[Any]) -> Explanation:
    """The same for ops that make several launches: of the launches that differ, one after another."""
    olds, news = list(before), list(after)
    if len(olds) != len(news):
        sentence = f"The job is made of {_times(len(news), 'kernel')} instead of {len(olds)}."
        names = ", ".join(f"`{_compiled(one).kernel}`" for one in news)
        evidence = Evidence("kernels", len(olds), len(news))
        return Explanation((sentence, f"Now they are {names or 'none'}."), (evidence,), True, "", "launches")
    made = [explain(old, new) for old, new in zip(olds, news, strict=True)]
    different = sorted((one for one in made if one.cause != SAME), key=lambda one: not one.known)
    if not different:
        return made[0] if made else _same([])
    return Explanation(
        tuple(sentence for one in different for sentence in one.sentences),
        tuple(evidence for one in different for evidence in one.evidence),
        different[0].known,
        "\n".join(one.diff for one in different if one.diff),
        different[0].cause,
    )


SAME = "same code"
ELSEWHERE = "a change of time is the machine or the driver"


@dataclass(frozen=True)
class Advice:
    """One pattern of a single compiled form that costs, and what to write instead.

    kind: name of the pattern, such as "whole-tile store".  place: file and line it stands at, when known.
    """

    kind: str
    sentence: str
    place: tuple[str, int] | None = None
    source: str = ""


def advise(side: Any) -> tuple[Advice, ...]:
    """What of one form (a `Compiled`, a `Side` or a `Simulation`) is known to cost, the most costly first."""
    form = _form(side)
    if form.compiled.status != OK:
        sentence = _failure(form.compiled)
        return (
            Advice(form.compiled.status, patterns.capital(sentence if sentence.endswith(".") else sentence + ".")),
        )
    heaviest: dict[tuple[str, str], Trait] = {}
    for trait in form.traits:
        if trait.kind not in patterns.RELATIVE and (trait.advice or trait.kind in patterns.MAJOR):
            key = (trait.kind, trait.key)
            if key not in heaviest or trait.weight > heaviest[key].weight:
                heaviest[key] = trait
    found = sorted(heaviest.values(), key=lambda trait: (patterns.RANKS.index(trait.kind), -trait.weight))
    if found and found[0].kind in patterns.MAJOR:
        found = [trait for trait in found if trait.kind not in patterns.BROUGHT]
    return tuple(
        Advice(trait.kind, patterns.alone(trait), trait.place[:2] if trait.place else None, trait.source)
        for trait in found
    )


def scalar_accesses(made: Compiled) -> dict[tuple[str, int], int]:
    """Loads and stores of single elements by source line, weighted by constant trip counts."""
    try:
        entry = parse(made.generic).entry if made.generic else None
    except (ParseError, ValueError):
        entry = None
    found: Counter[tuple[str, int]] = Counter()
    for site in sites(entry) if entry else ():
        place = site.op.loc.rsplit(":", 2)
        if site.op.name in ("memref.load", "memref.store") and not site.rare and len(place) == 3:
            found[place[0], int(place[1])] += site.weight
    return dict(found)


def _same(launched: list[tuple[str, Evidence]]) -> Explanation:
    if launched:
        words, evidence = launched[0]
        return Explanation((f"The compiled code is the same; {words}.",), (evidence,), True, "", "programs")
    return Explanation((f"The compiled code is the same: {ELSEWHERE}.",), (), True, "", SAME)


def _launched(old: Form, new: Form) -> list[tuple[str, Evidence]]:
    if old.programs is None or new.programs is None or old.programs == new.programs:
        return []
    words = f"it is launched as {_times(new.programs, 'program')} instead of {old.programs}"
    return [(words, Evidence("programs", old.programs, new.programs))]


def _compiled(side: Any) -> Compiled:
    made = getattr(side, "compiled", side)
    if not isinstance(made, Compiled):
        raise TypeError(f"expected a Compiled or a Simulation that has one, got {type(side).__name__}")
    return made


def _form(side: Any) -> Form:
    compiled = _compiled(side)
    function = read(compiled.linalg) if compiled.linalg else None
    entry, counts = None, {}
    if compiled.generic:
        try:
            entry = parse(compiled.generic).entry
            counts = static_counts(entry)
        except (ParseError, ValueError):
            entry = None  # a kernel for cube and vector core, or a form of an unknown version
    ran = getattr(side, "program_cycles", ())
    found = tuple(str(finding) for finding in getattr(side, "findings", ()))
    programs = getattr(side, "programs", None) or len(ran) or None
    return Form(compiled, function, entry, counts, programs, found, getattr(side, "lines", line_of))


def _failed(old: Form, new: Form, diff: str) -> Explanation:
    was, now = old.compiled, new.compiled
    if was.status != OK and now.status != OK:
        changed = "still" if was.status == now.status else f"failed with {was.status} and now"
        sentence = f"The kernel {changed} fails to compile: {_failure(now)}"
    elif now.status != OK:
        sentence = f"The kernel no longer compiles: {_failure(now)}"
    else:
        sentence = f"The kernel compiles again; before, it failed: {_failure(was)}"
    others = []
    if was.compiler != now.compiler:
        same = "The kernel is the same for both compilers" if not diff else "The compilers differ too"
        others.append(f"{same}: ascendnpu-ir {was.compiler} and {now.compiler}.")
    return Explanation(
        (sentence, *others, *_notes(old, new)), tuple(_ub_evidence(was, now)), True, diff, f"compile: {now.status}"
        if now.status != OK else f"compile: {was.status}",
    )  # fmt: skip


_NEEDS = re.compile(r"requires (\d+) bits while (\d+) bits available")


def _failure(made: Compiled) -> str:
    words = made.message.strip().splitlines()
    if made.status == UB_OVERFLOW:
        return f"ub overflow, {too_large(made.message)}"
    return f"{made.status}, {words[0]}" if words else made.status


def too_large(message: str) -> str:
    """What the compiler says of tiles that do not fit, in bytes and with what to do."""
    needs = _NEEDS.search(message)
    if needs is None:
        return "its buffers do not fit the unified buffer; use a smaller block or fewer tiles at once."
    wanted, there = (int(bits) // 8 for bits in needs.groups())
    return (
        f"its buffers take {wanted} bytes of unified buffer where {there} are there; use a smaller block or fewer "
        "tiles at once."
    )


def _ub_evidence(was: Compiled, now: Compiled) -> Iterable[Evidence]:
    for made, place in ((was, 0), (now, 1)):
        needs = _NEEDS.search(made.message)
        if needs:
            wanted = int(needs[1]) // 8
            yield Evidence("bytes of unified buffer needed", *((wanted, 0) if place == 0 else (0, wanted)))


def _notes(old: Form, new: Form) -> list[str]:
    return [f"The compiler notes: {note}" for note in new.compiled.notes if note not in old.compiled.notes]


def _other_compiler(old: Form, new: Form, launched: list[tuple[str, Evidence]]) -> Explanation:
    was, now = old.compiled, new.compiled
    if was.compiler == now.compiler and was.target == now.target:
        sentence = f"Only the kernel's name differs in the compiled code: {ELSEWHERE}."
        return Explanation((sentence,), (), True, "", SAME)
    evidence = _counted(old, new)
    pair = (
        f"ascendnpu-ir {was.compiler} and {now.compiler}"
        if was.compiler != now.compiler
        else f"the targets {was.target} and {now.target}"
    )
    what = "make the same code of it" if _bare(was.generic) == _bare(now.generic) else "make other code of it"
    counts = _in_words(evidence) or "with the same counts"
    sentence = f"The kernel is the same for the compiler, and {pair} {what}: {counts}."
    if what.startswith("make the same"):
        sentence = f"The kernel is the same for the compiler, and {pair} {what}."
    return Explanation((sentence, *_notes(old, new)), tuple(evidence), True, "", "compiler version")


def _differ(old: Form, new: Form, launched: list[tuple[str, Evidence]], diff: str) -> Explanation:
    counted = _counted(old, new)
    changes = patterns.changes(old.traits, new.traits)
    sentences, evidence = [], []
    for change in changes:
        if not change.follows:
            sentences.append(change.sentence)
        where, source = _words_of(change.place, (new if change.appeared else old).lines)
        evidence.append(Evidence(change.kind, change.before, change.after, where, source))
    cause = changes[0].kind if changes else ""
    follow = [change.brief for change in changes if change.follows]
    if follow:
        sentences.append(f"The other tile size brings with it: {'; '.join(follow)}.")
    if launched:
        words, one = launched[0]
        evidence.append(one)
        # A job cut into many more or far fewer programs is another algorithm, whatever else differs in it.
        more = max(one.before, one.after) >= 8 * min(one.before, one.after)
        if not changes or (more and changes[0].kind not in patterns.MAJOR):
            sentences.insert(0, f"The job is split another way: {words}.")
            cause = "programs"
        else:
            sentences.append(f"The job is also split another way: {words}.")
    known = bool(sentences)
    if known:
        effect = _in_words(counted)
        sentences.insert(1, f"Counted in the compiled code: {effect or 'no count differs'}.")
    else:
        sentences = _unknown(old, new, counted)
    sentences += [*_arguments(old, new), *_notes(old, new)]
    was, now = old.compiled, new.compiled
    if was.compiler != now.compiler:
        sentences.append(f"The compilers differ too: ascendnpu-ir {was.compiler} and {now.compiler}.")
    fresh = [finding for finding in new.findings if finding not in old.findings]
    if fresh:
        sentences.append(f"The model reports {fresh[0]}.")
    return Explanation(tuple(sentences), (*evidence, *counted), known, diff, cause)


def _arguments(old: Form, new: Form) -> list[str]:
    """Arguments of the same name that are of another type."""

    def types(form: Form) -> dict[str, str]:
        given = form.function.arguments[patterns.IMPLICIT :] if form.function else ()
        return {name: kind for name, (kind, _) in zip(form.compiled.arguments, given, strict=False)}

    was, now = types(old), types(new)
    changed = [
        f"`{name}` is {_element(now[name])} instead of {_element(was[name])}"
        for name in now
        if name in was and was[name] != now[name]
    ]
    return [f"Arguments differ: {', '.join(changed)}."] if changed else []


def _element(kind: str) -> str:
    return re.sub(r"memref<\?x(\w+)>", r"a tensor of \1", kind)


def _unknown(old: Form, new: Form, counted: list[Evidence]) -> list[str]:
    """No pattern is recognised: say so, and give the counted differences and their lines."""
    if not counted:
        return [
            "The compiled code differs, no count of it does, and no known pattern explains a change of time; "
            "the difference is below."
        ]
    first = f"The compiled code differs in no known pattern; counted: {_in_words(counted)}."
    places = [one for one in counted if one.where]
    lines = [
        f"Most of the {one.what} stand at {one.where}{f' `{one.source}`' if one.source else ''}."
        for one in places[:2]
    ]
    return [first, *lines]


def _counted(old: Form, new: Form) -> list[Evidence]:
    """The static counts that differ, the largest factor first, with the line that has most of each."""
    found = []
    for name, words in COUNTED.items():
        was, now = old.counts.get(name), new.counts.get(name)
        if was is None or now is None or was == now:
            continue
        form = new if now > was else old
        where, source = _words_of(_heaviest(form.entry, name), form.lines)
        found.append(Evidence(words, was, now, where, source))
    return sorted(found, key=lambda one: -(max(one.before, one.after) + 1) / (min(one.before, one.after) + 1))


def _heaviest(entry: Op | None, name: str) -> Place | None:
    """The source line with most of what `static_counts` calls `name`."""
    weights: Counter[Place] = Counter()
    for site in sites(entry) if entry else ():
        op = site.op
        counts = {
            "scalar": op.name in ("memref.load", "memref.store"),
            "sync": op.short == "wait_flag" and site.loops and "S" in (op.pipe("set_pipe"), op.pipe("wait_pipe")),
            "dma_in": op.name == "hivm.hir.load",
            "dma_out": op.name == "hivm.hir.store",
        }.get(name, False)  # fmt: skip
        place = op.loc.rsplit(":", 2)
        if counts and not site.rare and len(place) == 3:
            weights[(place[0], int(place[1]), int(place[2]))] += site.weight
    return max(weights, key=lambda place: (weights[place], place)) if weights else None


def _in_words(counted: list[Evidence]) -> str:
    return ", ".join(f"{one.what} {one.before} -> {one.after}" for one in counted)


def _words_of(place: Place | None, lines: Lines) -> tuple[str, str]:
    if place is None:
        return "", ""
    return shortened(f"{place[0]}:{place[1]}"), shortened(lines(place[0], place[1]))


def _times(count: int, one: str) -> str:
    return f"{count} {one if count == 1 else one + 's'}"


_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_MADE = re.compile(r"^\s*(%[\w$.-]+)(?::\d+)? = \"?([\w.]+)")
_CONSTANT = re.compile(r"^\s*(%[\w$.-]+) = arith\.constant (.*?)(?: : [^:]*)?$")


def normalised(linalg: str) -> list[str]:
    """Lines of Linalg text without locations, kernel name, and numbers of values: a value is called after the op
    that makes it, and a constant is its value, so that an inserted line does not rename all that follow."""
    lines = []
    names: dict[str, str] = {}

    def called(match: re.Match[str]) -> str:
        return names.get(match[0].partition("#")[0], match[0])

    for line in _bare(linalg).splitlines():
        constant, made = _CONSTANT.match(line), _MADE.match(line)
        if constant:
            names[constant[1]] = constant[2]
            continue
        if made:
            names[made[1]] = "%" + made[2].rpartition(".")[2]
        lines.append(_VALUE.sub(called, line.rstrip()))
    return lines


def _bare(text: str) -> str:
    return re.sub(r"(func\.func @)[\w$.-]+", r"\1kernel", strip_locations(text))


def normalised_diff(before: str, after: str) -> str:
    """A unified difference of two Linalg texts; "" when they are the same program."""
    if _bare(before) == _bare(after):
        return ""
    found = list(difflib.unified_diff(normalised(before), normalised(after), "before", "after", n=1, lineterm=""))
    if len(found) > DIFF_LINES:
        found = [*found[:DIFF_LINES], f"... {len(found) - DIFF_LINES} more lines"]
    # Two texts can differ in nothing but the order in which constants stand.
    return "\n".join(found) or "(only the order or the numbering of values differs)"


def load(code: str) -> Side | None:
    """The compiled kernel whose code starts with these 16 digits, if it was compiled on this machine."""
    found = stored(code)
    if found is None:
        return None
    compiled, kept = found
    return Side(compiled, lines=lambda file, line: kept.get(f"{file}:{line}", ""))


def explain_codes(before: str, after: str) -> Explanation | None:
    """The same from codes as results keep them: 16 hex digits a launch, joined by `+`; None when one of them was
    not compiled on this machine."""
    sides = [[load(code) for code in text.split("+")] for text in (before, after)]
    if any(one is None for side in sides for one in side):
        return None
    return explain_all(*sides)

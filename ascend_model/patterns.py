"""Source patterns that compile badly on Ascend, found in the compiled form of one kernel.

Each is recognised by what the compiler made of it, never by the source: a store of a whole tile that was read
before, a loop over the elements of a tile, a sum whose result the scalar pipe waits for.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ascend_model.linalg import Function, Node, Place
from ascend_model.metrics import sites
from ascend_model.parse import Op
from ascend_model.source import Lines, mask_at, shortened, turned

IMPLICIT = 2
"""Arguments that triton-ascend puts in front of the kernel's own."""

RANKS = (
    "row by row", "element by element", "whole-tile store", "masked scalar load", "wide integers", "scan",
    "integer compare", "more passes", "pieces of a vector", "more copies", "unrolled loop", "exp and log",
    "nan-quiet minimum", "sum waited for", "carried data", "no double buffering", "one-element vectors",
    "scalar cast", "scalars of vectors", "tile size", "scalar reads", "deeper loop", "scalar address in i64",
    "carried offsets",
)  # fmt: skip
"""Names of the patterns, the most costly first: the order in which differences are told."""

MAJOR = frozenset(RANKS[:6])
"""Patterns that decide a time whatever else differs."""

BROUGHT = frozenset(("scalars of vectors", "one-element vectors"))
"""Patterns that scalar code always brings with it."""

TWO_OR_MORE = "keep values in vectors of two elements or more, such as one for each of several rows"

WIDE = {
    "arith.cmpi": "compare", "arith.muli": "product", "arith.divsi": "quotient", "arith.remsi": "remainder",
    "arith.minsi": "minimum", "arith.maxsi": "maximum", "linalg.reduce": "sum", "arith.addi": "sum",
    "arith.subi": "difference", "arith.shli": "shift", "arith.shrsi": "shift", "arith.shrui": "shift",
    "math.absi": "absolute value",
}  # fmt: skip
"""Ops that the vector unit lacks for int64, and what they make."""

SLOW_MATH = frozenset(("log", "log2", "log10", "log1p", "exp2", "expm1", "powf"))

RELATIVE = frozenset(("more copies", "tile size", "deeper loop", "more passes"))
"""Amounts that both forms have; only where both do can they be compared."""

OF_A_TILE = frozenset(("row by row", "element by element", "wide integers", "scan"))
"""Patterns whose weight counts elements of one tile."""

WITH_TRIPS = frozenset(("scalars of vectors",))
"""Patterns whose weight counts iterations too, so that it grows with the number of tiles in any loop."""


@dataclass(frozen=True)
class Trait:
    """One pattern at one place of a compiled form.

    key:    equal for the same pattern at the same argument in two forms
    weight: how much of it there is: elements, copies, ops
    level:  how deep in loops it stands, of a kind that is told by that: the deeper one is worse
    claim:  what the code does: "the store to `pool` became load, select and store of the whole tile"; of a
            RELATIVE kind with places for both weights: "tiles have {now} elements instead of {was}"
    thing:  the same as a noun, to say that it is gone
    why:    what of the source makes the compiler do so; advice: what to write instead
    """

    kind: str
    key: str
    weight: int
    claim: str
    thing: str
    why: str = ""
    advice: str = ""
    place: Place | None = None
    source: str = ""
    level: int = 0

    @property
    def where(self) -> str:
        return shortened(f"{self.place[0]}:{self.place[1]}") if self.place else ""

    @property
    def at(self) -> str:
        return f" ({self.where}{f': `{self.source}`' if self.source else ''})" if self.place else ""


@dataclass(frozen=True)
class Change:
    """A pattern that one of two forms has more of.

    brief: the same in a few words.  follows: another tile size alone explains it
    """

    kind: str
    appeared: bool
    before: int
    after: int
    sentence: str
    place: Place | None
    brief: str = ""
    follows: bool = False


def changes(before: list[Trait], after: list[Trait]) -> list[Change]:
    """What appeared and what is gone, the most costly kind first; what follows from other tiles behind those."""
    made = []
    follow = _following(before, after)
    for kind in RANKS:
        olds, news = _shared(_amounts(before, kind), _amounts(after, kind), kind)
        more = [t for t in after if t.kind == kind and news[t.key] > olds[t.key]]
        less = [t for t in before if t.kind == kind and olds[t.key] > news[t.key]]
        if not more and not less:
            continue
        levels = [max((t.level for t in side), default=0) for side in (more, less)]
        appeared = (levels[0], sum(news[k] - olds[k] for k in {t.key for t in more})) >= (
            levels[1], sum(olds[k] - news[k] for k in {t.key for t in less})
        )  # fmt: skip
        lead = max(more if appeared else less, key=lambda t: (t.level, t.weight))
        was, now = olds[lead.key], news[lead.key]
        sentence, brief = _sentence(lead, appeared, was, now), _brief(lead, was, now)
        made.append(Change(kind, appeared, was, now, sentence, lead.place, brief, kind in follow))
    made = _loops_joined(made)
    if any(one.follows for one in made):
        at = next(place for place, one in enumerate(made) if one.kind == "tile size")
        first = [one for one in made[: at + 1] if not one.follows]
        made = [*first, *(one for one in made if one not in first)]
    return _joined(made)


def _amounts(found: list[Trait], kind: str) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for trait in found:
        if trait.kind == kind:
            amounts[trait.key] += trait.weight
    return amounts


def _shared(olds: Counter[str], news: Counter[str], kind: str) -> tuple[Counter[str], Counter[str]]:
    """Amounts of both sides, those of a RELATIVE kind only where both have them."""
    if kind not in RELATIVE:
        return olds, news
    both = olds.keys() & news.keys()
    return Counter({k: olds[k] for k in both}), Counter({k: news[k] for k in both})


def _following(before: list[Trait], after: list[Trait]) -> frozenset[str]:
    """Kinds of which both forms have so much that their tile sizes alone explain the difference: f times smaller
    tiles are at most f times as many, and each brings along what one had."""
    olds, news = _shared(_amounts(before, "tile size"), _amounts(after, "tile size"), "tile size")
    factors = [olds[key] / news[key] for key in olds]
    stored = [olds[key] / news[key] for key in olds if key.startswith("store")]
    # A load alone that is cut in pieces is no other tile size of the job, whose stores tell what its tiles are.
    changed = any(one != 1 for one in stored) if stored else all(one != 1 for one in factors)
    if not factors or not changed or max(factors) > 1 > min(factors):
        return frozenset()
    smaller = max(factors) > 1
    few, many = (before, after) if smaller else (after, before)
    factor = max(factors) if smaller else 1 / min(factors)

    def grows(kind: str) -> bool:
        some, more = _shared(_amounts(few, kind), _amounts(many, kind), kind)
        return any(more[key] > some[key] for key in some)

    loops = grows("deeper loop")  # a single tile needs no loop
    often = loops or grows("more copies")
    found = set()
    for kind in RANKS:
        some, more = _shared(_amounts(few, kind), _amounts(many, kind), kind)
        if kind == "sum waited for" and loops:
            some, more = (Counter({"": side.total()} if side else {}) for side in (some, more))
        if kind in ("tile size", "more passes") or not some or some.keys() != more.keys():
            continue
        least = 1 / factor if kind in OF_A_TILE else 1
        most = factor if often or kind in WITH_TRIPS else 1
        spare = kind == "more copies"  # of loads of one tile the last one may have been found needless
        if all(least * some[key] <= more[key] <= most * (some[key] + spare) for key in some):
            found.add(kind)
    return frozenset(found)


def _joined(made: list[Change]) -> list[Change]:
    """Changes that are one thing told as one: what scalar code always brings with it, an offset that is carried in
    another way, and vectors of one element where scalar code shows what they came to."""
    if made and made[0].kind in MAJOR:
        made = [one for one in made if one.kind not in BROUGHT]
        if "carried through" in made[0].sentence:
            made = [one for one in made if one.kind != "carried offsets"]
    by_kind = {one.kind: one for one in made}
    ones, taken = by_kind.get("one-element vectors"), by_kind.get("scalars of vectors")
    if ones is not None and taken is not None and ones.appeared != taken.appeared:
        made = [one for one in made if one is not ones]
    return made


def _loops_joined(made: list[Change]) -> list[Change]:
    """Fewer copies that stand deeper as one change: a loop that is no longer unrolled (or now is)."""
    by_kind = {one.kind: one for one in made}
    copies, depth = by_kind.get("more copies"), by_kind.get("deeper loop")
    if copies is None or depth is None or (copies.after > copies.before) == (depth.after > depth.before):
        return made
    rolled = depth.after > depth.before
    words = "A loop is no longer unrolled" if rolled else "A loop is unrolled"
    sentence = f"{words}: {copies.sentence[:1].lower()}{copies.sentence[1:]}"
    joined = Change("unrolled loop", not rolled, copies.before, copies.after, sentence, copies.place)
    return [joined if one is copies else one for one in made if one is not depth]


def _sentence(trait: Trait, appeared: bool, was: int, now: int) -> str:
    why = f": {trait.why}" if trait.why else ""
    if trait.kind in RELATIVE:
        text = trait.claim.replace("{now}", str(now)).replace("{was}", str(was))
        return f"{capital(text)}{trait.at}."
    if not appeared:
        gone = f"no more {trait.thing}" if now == 0 else f"less of {trait.thing}, {was} -> {now}"
        return f"{capital(gone)}{trait.at}{f'; the reason was that {trait.why}' if trait.why else ''}."
    more = f" ({was} -> {now})" if was else ""
    advice = f"; {trait.advice}" if trait.advice else ""
    return f"{capital(trait.claim)}{more}{why}{advice}{trait.at}."


def _brief(trait: Trait, was: int, now: int) -> str:
    """A change without its reason, advice and quoted line."""
    words = f"{trait.thing} {was} -> {now}"
    if trait.kind in RELATIVE:
        words = trait.claim.replace("{now}", str(now)).replace("{was}", str(was)).partition(": one is added")[0]
    return f"{words} ({trait.where})" if trait.where else words


def alone(trait: Trait) -> str:
    """What one form's code does, why, and what to write instead, without another form to compare with."""
    claim = trait.claim.replace(" any more", "")
    why = f": {trait.why}" if trait.why else ""
    return f"{capital(claim)}{why}{f'; {trait.advice}' if trait.advice else ''}{trait.at}."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def traits(function: Function | None, arguments: tuple[str, ...], entry: Op | None, lines: Lines) -> list[Trait]:
    """Every pattern found in one compiled form."""
    found = list(_Linalg(function, arguments, lines).traits()) if function else []
    return found + list(_last_form(entry)) if entry else found


def _last_form(entry: Op) -> Iterator[Trait]:
    """Patterns that only the last form shows."""
    taken = [
        s for s in sites(entry)
        if s.op.name in ("memref.load", "memref.store") and s.loops and not s.rare
        and any("address_space<ub>" in kind for kind in s.op.operand_types)
    ]  # fmt: skip
    if taken:
        heaviest_taken = max(taken, key=lambda s: s.weight)
        yield Trait(
            "scalars of vectors", "ub", sum(s.weight for s in taken),
            "the scalar pipe takes single values out of the unified buffer in a loop",
            "single values that the scalar pipe takes out of the unified buffer",
            "vectors of one element, or values needed as scalars, are computed by it, and it waits for each",
            TWO_OR_MORE, _place_of(heaviest_taken.op),
        )  # fmt: skip
    pieces: Counter[str] = Counter()
    first: dict[str, Op] = {}
    for site in sites(entry):
        if site.op.short in ("vtranspose", "vinterleave", "vdeinterleave"):
            pieces[site.op.short] += 1
            first.setdefault(site.op.short, site.op)
    if pieces:
        heaviest = pieces.most_common(1)[0][0]
        amounts = ", ".join(f"{count} {name}" for name, count in sorted(pieces.items()))
        yield Trait(
            "pieces of a vector", "pieces", sum(pieces.values()),
            f"vectors are taken apart and joined again ({amounts})", "taking vectors apart and joining them again",
            "halves or columns of a tile are split, joined or interleaved",
            "express the step as a product with a constant matrix or as a sum over an axis",
            _place_of(first[heaviest]),
        )  # fmt: skip
    doubles = sum(1 for op in entry.walk() if op.name == "arith.select" and op.result_types[0].endswith("<ub>>"))
    loads = [s for s in sites(entry) if s.op.name == "hivm.hir.load" and s.loops and not s.rare]
    if loads and not doubles:
        yield Trait(
            "no double buffering", "buffers", 1, "no buffer of a loop is double-buffered any more",
            "loop without any double buffer",
            "the compiler could not hold its tiles twice, so loads do not overlap with work",
            "use smaller tiles, or load in the iteration that uses the value", _place_of(loads[0].op),
        )  # fmt: skip


def _place_of(op: Op) -> Place | None:
    parts = op.loc.rsplit(":", 2)
    return (parts[0], int(parts[1]), int(parts[2])) if len(parts) == 3 else None


@dataclass(frozen=True)
class Access:
    """One access to global memory. form: "tile", "scalar", "elements" (a loop over single ones) or "rows".

    size: elements a time.  trips: iterations of the loop over elements or rows.
    inner: loops between the loop it stands in and the innermost one in there.
    """

    node: Node
    argument: str
    stores: bool
    form: str
    size: int
    trips: int
    depth: int
    inner: int
    address: Node


class _Linalg:
    def __init__(self, function: Function, arguments: tuple[str, ...], lines: Lines):
        self.function = function
        self.lines = lines
        self.names = {
            id(node): arguments[index - IMPLICIT] if 0 <= index - IMPLICIT < len(arguments) else node.text
            for index, node in enumerate(function.inputs)
        }
        self.accesses = list(self.find_accesses())

    def trait(self, kind: str, key: str, weight: int, claim: str, thing: str, why: str = "", advice: str = "",
              at: Node | None = None, level: int = 0) -> Trait:  # fmt: skip
        place = at.place if at is not None else None
        source = shortened(self.lines(place[0], place[1])) if place else ""
        return Trait(kind, key, weight, claim, thing, why, advice, place, source, level)

    def traits(self) -> Iterator[Trait]:
        yield from self.element_loops()
        yield from self.whole_tiles()
        yield from self.masked_scalars()
        yield from self.integers()
        yield from self.calls_and_math()
        yield from self.sums()
        yield from self.carried()
        yield from self.copies()
        yield from self.scalars()

    # ---- accesses

    def find_accesses(self) -> Iterator[Access]:
        for node in self.function.nodes("memref.copy", "memref.load", "bufferization.materialize_in_destination"):
            if not node.inputs:
                continue
            stores = node.op.startswith("bufferization")
            address = self.address(node.inputs[-1 if stores else 0])
            if address is None:
                continue
            argument = self.names.get(id(self.base(address)), "")
            loops = [loop for loop in node.loops if loop.op != "scf.while"]
            single = [loop for loop in loops if "ExtractedLoadOrStore" in loop.marks]
            real = [loop for loop in loops if loop not in single]
            size = _size(address.type)
            form = "tile"
            if single:
                form = "elements" if size <= 1 else "rows"
            elif node.op == "memref.load" or size == 1:
                form = "scalar"
            trips = 1
            for loop in single:
                trips *= _trips(loop) or 1
            within = real[-1] if real else None
            inner = _nesting(within) if within is not None else 0
            yield Access(node, argument, stores, form, size, trips, len(real), inner, address)

    def address(self, node: Node) -> Node | None:
        while node.op in ("memref.subview", "memref.cast") and node.inputs:
            node = node.inputs[0]
        return node if node.op == "memref.reinterpret_cast" and self.base(node) is not None else None

    def base(self, node: Node) -> Node | None:
        while node.inputs and node.op != "argument":
            node = node.inputs[0]
        return node if id(node) in self.names else None

    # ---- patterns

    def element_loops(self) -> Iterator[Trait]:
        for access in self.accesses:
            if access.form not in ("elements", "rows"):
                continue
            why, advice = self.why_scattered(access)
            act = "store to" if access.stores else "load of"
            if access.form == "elements":
                yield self.trait(
                    "element by element", f"{act} {access.argument}", access.trips,
                    f"the {act} `{access.argument}` became single elements, {access.trips} to a tile",
                    f"{act} `{access.argument}` by single elements", why, advice, access.node,
                )  # fmt: skip
            else:
                yield self.trait(
                    "row by row", f"{act} {access.argument}", access.trips,
                    f"the {act} `{access.argument}` is a loop over {access.trips} rows of a tile",
                    f"{act} `{access.argument}` by a vector of rows", why,
                    "give each row an iteration of the kernel's own loop", access.node,
                )  # fmt: skip
        for node in self.function.nodes("linalg.generic"):
            atomic = re.search(r'GenericAtomicRMW = "(\w+)"', node.text)
            loops = [loop for loop in node.loops if "ExtractedLoadOrStore" in loop.marks]
            address = self.address(node.inputs[0]) if atomic and loops and node.inputs else None
            if atomic is None or address is None or _size(address.type) > 1:
                continue
            name, trips = (
                self.names.get(id(self.base(address)), ""),
                math.prod(_trips(loop) or 1 for loop in loops),
            )
            yield self.trait(
                "element by element", f"atomic {name}", trips,
                f"the atomic {atomic[1]} to `{name}` became single elements, {trips} to a tile",
                f"atomic {atomic[1]} to `{name}` by single elements",
                "its addresses are no run of memory, and each element is a copy that the scalar pipe waits for",
                "put the results of a tile together first, such as by comparing its indices with every bin, and "
                "make one atomic access to tl.arange(0, BINS)", node,
            )  # fmt: skip

    def why_scattered(self, access: Access) -> tuple[str, str]:
        """What in the address keeps the compiler from seeing one run of memory."""
        loop = next(loop for loop in reversed(access.node.loops) if "ExtractedLoadOrStore" in loop.marks)
        moving = list(_lanes(access.address, loop))
        ops = {n.short for n in moving}
        loaded = any(_is_loaded(n) for n in moving)
        if ops & {"remsi", "remui"}:
            return (
                "its address has a remainder (`%`) of every lane",
                "take the remainder of the scalar start, or split the access where it wraps",
            )
        if any(n.op == "carried" and n.tensor for n in moving) and "select" in ops:
            return (
                "its offsets are carried through the loop and updated by tl.where",
                "derive the offset from the loop index: offset = i * BLOCK + tl.arange(0, BLOCK)",
            )
        if loaded and access.form == "rows":
            return "its row addresses are a vector loaded from memory", ""
        if loaded:
            return (
                "its addresses are loaded from memory, one for each lane (a gather or scatter)",
                "load runs of memory, or load the tile and use tl.gather on it",
            )
        if ops & {"divsi", "divui", "floordivsi"}:
            return (
                "its address has a division (`//`) of every lane",
                "use a two-dimensional tile: outer[:, None] * width + inner[None, :]",
            )
        if ops & {"andi", "ori", "xori"}:
            return (
                "its address has bit operations (`&`, `|`, `^`) of every lane",
                "use + for `|`, and keep masks of bits out of addresses",
            )
        if "select" in ops:
            return "its address is chosen by tl.where for every lane", "choose between scalars, or use a mask"
        if any(n.op == "carried" and n.tensor for n in moving):
            return (
                "its offsets are carried through the loop",
                "derive the offset from the loop index: offset = i * BLOCK + tl.arange(0, BLOCK)",
            )
        if "subi" in ops:
            return "its address runs backwards", "load forwards and use tl.flip, or reverse the other side"
        if ops & {"reshape", "collapse_shape", "expand_shape", "extract_slice"} or access.stores:
            return (
                "its value is a tile of another shape than its addresses",
                "store with addresses of the tile's own shape: rows[:, None] * width + columns[None, :]",
            )
        return "its address is no run of memory that the compiler recognises", "write it as start + tl.arange(...)"

    def whole_tiles(self) -> Iterator[Trait]:
        for access in self.accesses:
            value = access.node.inputs[0]
            while value.op in ("tensor.extract_slice", "tensor.reshape", "tensor.cast") and value.inputs:
                value = value.inputs[0]
            if not access.stores or value.op != "arith.select" or len(value.inputs) < 3:
                continue
            if not any(self.reads_again(old, access) for old in value.inputs[1:]):
                continue
            words, advice, place = self.why_unknown_mask(value.inputs[0])
            yield self.trait(
                "whole-tile store", access.argument, 1,
                f"the store to `{access.argument}` became load, select and store of the whole tile",
                f"load, select and store of the whole tile for the store to `{access.argument}`",
                f"{words} as a bound, so elements of its neighbours are read and written back, which is unsafe",
                advice, place or access.node,
            )  # fmt: skip

    def reads_again(self, old: Node, access: Access) -> bool:
        """Whether a value is what stood in memory where the store goes."""
        if old.op != "bufferization.to_tensor":
            return False
        buffers = (n for n in old.inputs if n.op == "memref.alloc")
        copies = (c for b in buffers for c in b.inputs if c.op == "memref.copy" and c.inputs)
        return any(self.address(c.inputs[0]) is access.address for c in copies)

    def why_unknown_mask(self, mask: Node) -> tuple[str, str, Node | None]:
        """Why a mask is not recognised as a bound: words, what to write, and where it is made."""
        derive = "derive the offset from the loop index: offset = i * BLOCK + tl.arange(0, BLOCK)"
        chain = list(mask.origins(through=("bufferization.to_tensor",)))
        compares = [n for n in chain if n.op in ("arith.cmpi", "arith.cmpf") and n.tensor]
        first = compares[0] if compares else mask
        text, expression = self.expression(first)
        quoted = f"the mask `{text}`" if text else "the mask"
        carried = [n for n in chain if n.op == "carried"]
        joined = [n for n in chain if n.op in ("arith.ori", "arith.xori") and n.tensor]
        if joined:
            return (
                f"{quoted} joins or negates conditions and is not recognised",
                "use `&` of `<` comparisons",
                joined[0],
            )
        if first.op == "arith.cmpi":
            sense = first.text.split()[1].rstrip(",")
            if sense in ("ne", "eq"):
                return f"{quoted} is an equality and is not recognised", "write it as a `<` comparison", first
            left, right = ([_has_lanes(n) for n in first.inputs[:2]] + [False, False])[:2]
            if right and not left:
                better = turned(expression)
                return (
                    f"{quoted} is not recognised",
                    f"write `{better}`" if better else "write `offset < end`",
                    first,
                )
            if any(n.short == "subi" and n.tensor for one in first.inputs[:1] for n in one.origins()):
                return (
                    f"{quoted} compares a difference and is not recognised",
                    "compare the offset: `offset < end`",
                    first,
                )
            if sense in ("sgt", "sge", "ugt", "uge") and not carried:
                return f"{quoted} is a lower bound and is not recognised", "write it as `offset < end`", first
        if carried:
            loop = carried[0].loops[-1] if carried[0].loops else None
            if loop is not None and loop.op in ("scf.while", "scf.do"):
                return (
                    f"offsets are carried through a `while` loop, and {quoted} of them is not recognised",
                    derive,
                    first,
                )
            return (
                f"offsets are carried through the loop and changed before they are used, and {quoted} of them is "
                "not recognised",
                derive + ", or update the carried one at the end of the loop",
                first,
            )
        loaded = next((n for n in compares if any(_is_loaded(i) for i in _lanes(n, None))), None)
        if loaded is not None:
            text = self.expression(loaded)[0]
            quoted = f"the mask `{text}`" if text else "the mask"
            return f"{quoted} depends on loaded values and is not recognised", "store under a range alone", loaded
        return f"{quoted} is not recognised", "write it as `offset < end`", first

    def expression(self, node: Node) -> tuple[str, ast.expr | None]:
        if node.place is None:
            return "", None
        found = mask_at(self.lines(node.place[0], node.place[1]), node.place[2])
        return (shortened(ast.unparse(found)), found) if found is not None else ("", None)

    def masked_scalars(self) -> Iterator[Trait]:
        """A load of one element under a mask is a load, an insert and a select of one-element vectors."""
        for node in self.function.nodes("arith.select"):
            shape = node.tensor
            if shape is None or _count(shape[0]) != 1 or len(node.inputs) < 3:
                continue
            load = next((i.inputs[0] for i in node.inputs[1:] if i.op == "tensor.insert" and i.inputs
                         and i.inputs[0].op == "memref.load"), None)  # fmt: skip
            if load is None:
                continue
            name = self.names.get(id(self.base(load)), "")
            yield self.trait(
                "masked scalar load", name, 1, f"a single element of `{name}` is loaded under a mask",
                f"masked load of a single element of `{name}`",
                "it becomes an unmasked load and a vector select that the scalar pipe waits for, and it reads "
                "outside the tensor where the mask is false",
                "clamp the index and load without mask", load,
            )  # fmt: skip

    def integers(self) -> Iterator[Trait]:
        slow: dict[str, list[Node]] = {}
        for node in self.function.nodes():
            operands = (
                node.inputs[0].tensor if node.op in ("arith.cmpi", "linalg.reduce") and node.inputs else None
            )
            shape = operands or node.tensor
            if shape is None or _count(shape[0]) <= 1:
                continue
            wide = shape[1] == "i64" and node.op in WIDE
            if wide or (shape[1] == "i16" and node.op == "arith.cmpi"):
                slow.setdefault(shape[1], []).append(node)
        for kind, nodes in slow.items():
            names = sorted({WIDE[n.op] for n in nodes})
            elements = sum(_count((n.inputs[0].tensor or n.tensor or ((1,), ""))[0]) for n in nodes)
            yield self.trait(
                "wide integers", kind, elements,
                f"the {' and '.join(names)} of vectors of {kind} became scalar code",
                f"{' and '.join(names)} of vectors of {kind}",
                f"the vector unit has no such op for {kind}: the scalar pipe goes through {elements} elements",
                "keep vectors in int32 and widen the scalar result", nodes[0],
            )  # fmt: skip
        ordered = [
            n for n in self.function.nodes("arith.cmpi")
            if n.inputs and n.inputs[0].tensor and n.inputs[0].tensor[1] in ("i32", "i8")
            and len(n.inputs[0].tensor[0]) > 1 and n.loops and n.text.split()[1].rstrip(",") not in ("eq", "ne")
        ]  # fmt: skip
        if ordered:
            yield self.trait(
                "integer compare", "ordered", len(ordered), "tiles of integers are compared in a loop",
                "comparison of tiles of integers in a loop",
                "the vector unit compares integers for equality only: `<` and `>=` take a maximum and a compare",
                "compare as float32 where the values or bit patterns allow it", ordered[0],
            )  # fmt: skip

    def calls_and_math(self) -> Iterator[Trait]:
        for node in self.function.nodes("func.call"):
            found = re.search(r"@triton_(cumsum|cumprod)", node.text)
            shape = node.tensor
            if found and shape and not _along_lanes(node, len(shape[0])):
                yield self.trait(
                    "scan", found[1], _count(shape[0]),
                    f"`tl.{found[1]}` became a loop of the scalar pipe", f"`tl.{found[1]}` of a vector",
                    "the compiler has no vector form of it along the last axis",
                    f"put several rows, or one row folded, into a tile and go along its first axis: "
                    f"tl.trans(tl.{found[1]}(tl.trans(tile), 0))", node,
                )  # fmt: skip
        slow = [n for n in self.function.nodes() if n.op.startswith("math.") and n.short in SLOW_MATH]
        for name in sorted({n.short for n in slow}):
            nodes = [n for n in slow if n.short == name]
            yield self.trait(
                "exp and log", name, len(nodes), f"`{name}` is computed", f"computation of `{name}`",
                "it is computed with exponential, logarithm and division of base e: slower, and not exact",
                "for powers of two work on the bits of the float", nodes[0],
            )  # fmt: skip
        quiet = list(self.function.nodes("arith.maxnumf", "arith.minnumf"))
        quiet = [n for n in quiet if n.tensor]
        if quiet:
            yield self.trait(
                "nan-quiet minimum", "maxnumf", len(quiet), "a minimum or maximum must skip NaN",
                "minimum or maximum that must skip NaN",
                "each takes comparisons and selects beside the one vector op",
                "pass propagate_nan=tl.PropagateNan.ALL", quiet[0],
            )  # fmt: skip

    def sums(self) -> Iterator[Trait]:
        """Reductions in loops whose result the scalar pipe takes."""
        for node in self.function.nodes("tensor.extract"):
            source = node.inputs[0] if node.inputs else None
            if source is None or source.op != "linalg.reduce" or not node.loops:
                continue
            depth = len(node.loops)
            within = "a loop" if depth == 1 else f"{depth} nested loops"
            advice = "keep a vector of partial results and reduce once behind the loop, or sum the rows of a tile"
            if self.only_stored(node):
                advice = "it is only stored, so keep it a vector: tl.sum(tile[None, :], 1)"
            yield self.trait(
                "sum waited for", f"depth {depth}", 1, f"a tile is reduced to a scalar inside {within}",
                f"reduction to a scalar inside {within}",
                "the scalar pipe waits for its result in each iteration", advice, source, depth,
            )  # fmt: skip

    def only_stored(self, value: Node) -> bool:
        """Whether a value goes to memory and nowhere else, cast on the way or not."""
        users = self.users.get(id(value), [])
        through = ("arith.truncf", "arith.extf", "tensor.insert")
        return bool(users) and all(
            one.op in ("memref.store", "bufferization.materialize_in_destination")
            or (one.op in through and self.only_stored(one))
            for one in users
        )

    @functools.cached_property
    def users(self) -> dict[int, list[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.function.nodes():
            for one in node.inputs:
                found.setdefault(id(one), []).append(node)
        return found

    def carried(self) -> Iterator[Trait]:
        for loop in self.function.nodes("scf.for", "scf.while"):
            if "ExtractedLoadOrStore" in loop.marks:
                continue
            for held in loop.carries:
                after = held.inputs[1] if len(held.inputs) > 1 else None
                if after is not None and _is_loaded(after):
                    yield self.trait(
                        "carried data", "tile", 1, "a loaded tile is carried into the next iteration",
                        "loaded tile carried into the next iteration",
                        "a prefetch by hand copies the tile once more, and the compiler gives up double buffering",
                        "load in the iteration that uses the value; the compiler overlaps loads itself", after,
                    )  # fmt: skip
                elif after is not None and self.is_offset(held, after):
                    yield self.trait(
                        "carried offsets", "offset", 1, "an offset is carried through the loop",
                        "offset carried through the loop",
                        "it is updated in every iteration instead of being derived from the loop index", "", after,
                    )  # fmt: skip

    def is_offset(self, held: Node, after: Node) -> bool:
        """Whether a carried value is part of an address: a number that is added to, or a vector made anew."""
        added = held.type in ("index", "i32") and after.short == "addi" and any(n is held for n in after.inputs)
        vector = held.tensor is not None and held.tensor[1] in ("i32", "i64") and after is not held
        return (added or vector) and any(self.feeds_address(held, access) for access in self.accesses)

    @staticmethod
    def feeds_address(held: Node, access: Access) -> bool:
        return any(n is held for n in access.address.origins())

    def copies(self) -> Iterator[Trait]:
        """Tiles moved in loops: how large, how many an iteration, how deep."""
        tiles = [a for a in self.accesses if a.form == "tile" and a.depth]
        for argument in sorted({a.argument for a in tiles}):
            for stores in (False, True):
                own = [a for a in tiles if a.argument == argument and a.stores == stores]
                if not own:
                    continue
                act = "store to" if stores else "load of"
                size = max(a.size for a in own)
                lead = next(a for a in own if a.size == size).node
                yield self.trait(
                    "more copies", f"{act} {argument}", len(own),
                    f"copies an iteration for the {act} `{argument}`: {{now}} instead of {{was}}", "", at=lead,
                )  # fmt: skip
                if size:
                    yield self.trait(
                        "tile size", f"{act} {argument}", size,
                        f"the tiles of the {act} `{argument}` have {{now}} elements instead of {{was}}", "",
                        at=lead,
                    )  # fmt: skip
                yield self.trait(
                    "deeper loop", f"{act} {argument}", max(a.depth for a in own),
                    f"the {act} `{argument}` stands in {{now}} nested loops instead of {{was}}: one is added, "
                    "unrolled or taken away", "", at=lead,
                )  # fmt: skip
        passes = Counter(_trips(loop) for loop in self.function.nodes("scf.for")
                         if "ExtractedLoadOrStore" not in loop.marks and _nesting(loop))  # fmt: skip
        for trips, _ in passes.items():
            if trips:
                loop = next(n for n in self.function.nodes("scf.for") if _trips(n) == trips and _nesting(n))
                yield self.trait(
                    "more passes", "trips", trips,
                    "the loop over passes of the data takes {now} of them instead of {was}", "", at=loop,
                )  # fmt: skip

    def scalars(self) -> Iterator[Trait]:
        """Scalar loads from global memory by how far inside the loops they stand."""
        loads = [a for a in self.accesses if a.form == "scalar" and not a.stores and a.depth]
        for argument in sorted({a.argument for a in loads}):
            own = [a for a in loads if a.argument == argument]
            inner = min(a.inner for a in own)
            lead = next(a for a in own if a.inner == inner)
            if inner == 0:
                fixed = next((a for a in own if a.inner == 0 and not _varies(a)), None)
                yield self.trait(
                    "scalar reads", argument, 1, f"`{argument}` is read as a scalar in the innermost loop",
                    f"scalar load of `{argument}` in the innermost loop",
                    f"{'it is looked up again' if fixed else 'another element is read'} in every iteration",
                    "load it in the loop around" if fixed else "", (fixed or lead).node,
                )  # fmt: skip
        ones = [
            n for n in self.function.nodes("tensor.extract", "tensor.insert")
            if n.loops and n.inputs and not _by_elements(n) and not self.only_stored(n)
            and any(i.tensor and _count(i.tensor[0]) == 1 for i in n.inputs)
        ]  # fmt: skip
        if ones:
            yield self.trait(
                "one-element vectors", "ones", len(ones), "single values are computed in vectors of one element",
                "computing single values in vectors of one element",
                "the scalar pipe puts each value in, waits for the vector pipe and takes the result out",
                TWO_OR_MORE, ones[0],
            )  # fmt: skip
        casts = [n for n in self.function.nodes("arith.extf", "arith.truncf")
                 if n.loops and n.tensor is None and n.type in ("f32", "bf16", "f16")]  # fmt: skip
        if casts:
            yield self.trait(
                "scalar cast", "float", len(casts), "a scalar is cast to another float in a loop",
                "float cast of a scalar in a loop",
                "the scalar pipe cannot convert it: it goes through a vector of one element and back",
                "widen bf16 by shifting its bits" if casts[0].short == "extf" else "cast it while it is a vector",
                casts[0],
            )  # fmt: skip
        wide = [n for n in self.function.nodes("arith.muli", "arith.addi", "arith.divsi", "arith.subi")
                if n.loops and n.type == "i64" and not _by_elements(n)]  # fmt: skip
        if wide:
            yield self.trait(
                "scalar address in i64", "i64", len(wide), "positions in a loop are computed in int64",
                "scalar arithmetic in int64 inside a loop", at=wide[0],
            )  # fmt: skip


def _along_lanes(scan: Node, rank: int) -> bool:
    """Whether a scan goes along another axis than the last: each step is one op on the lanes of the others."""
    axis = re.match(r"arith\.constant (\d+) :", scan.inputs[1].text) if len(scan.inputs) > 1 else None
    return axis is not None and int(axis[1]) < rank - 1


def _varies(access: Access) -> bool:
    """Whether the address of an access is another one in each iteration of the loop it stands in."""
    loop = next(loop for loop in reversed(access.node.loops) if loop.op != "scf.while")
    return any(
        n.op in ("induction", "carried", "block argument", "memref.load") and loop in n.loops
        for n in access.address.origins()
    )


def _by_elements(node: Node) -> bool:
    """Whether a statement stands in a loop over single elements or rows that the compiler made, in int64."""
    return any("ExtractedLoadOrStore" in loop.marks for loop in node.loops)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size or 1
    return count


def _size(kind: str) -> int:
    """Elements of the memref a `reinterpret_cast` results in; 0 when not known."""
    found = re.findall(r"memref<((?:(?:\?|\d+)x)*)\w+", kind)
    if not found:
        return 0
    dims = found[-1].split("x")[:-1]
    return 0 if "?" in dims else _count(tuple(int(d) for d in dims))


def _trips(loop: Node) -> int:
    """Iterations of a loop between constants; 0 when not known."""
    bounds = []
    for node in loop.inputs[:3]:
        found = re.match(r"arith\.constant (-?\d+) :", node.text)
        if not found:
            return 0
        bounds.append(int(found[1]))
    return len(range(*bounds)) if len(bounds) == 3 and bounds[2] else 0


def _nesting(loop: Node) -> int:
    """How many loops are nested inside, not counting those over single elements."""
    deepest = 0
    for node in loop.body:
        own = node.op in ("scf.for", "scf.do") and "ExtractedLoadOrStore" not in node.marks
        deepest = max(deepest, _nesting(node) + own if node.body else 0)
    return deepest


def _lanes(value: Node, loop: Node | None) -> Iterator[Node]:
    """What a value is made of that differs from lane to lane: tensors, and what the loop over lanes computes."""
    seen: set[int] = set()
    queue = [value]
    while queue:
        node = queue.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            queue += [n for n in node.inputs if n.tensor is not None or (loop is not None and loop in n.loops)]


def _is_loaded(node: Node) -> bool:
    return node.op == "bufferization.to_tensor" or (
        node.op == "scf.for"
        and "ExtractedLoadOrStore" in node.marks
        and any(n.op == "memref.load" for n in node.walk())
    )


def _has_lanes(node: Node) -> bool:
    return any(
        n.op == "linalg.index" for start in node.origins() for n in start.walk() if start.op == "linalg.generic"
    )

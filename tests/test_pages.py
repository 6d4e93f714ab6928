"""The pages: what they say, what they let through, what they need, and what they do with poor results."""

from __future__ import annotations

import dataclasses
import gzip
import http.client
import json
import math
import re
import shlex
import shutil
import threading
import unicodedata
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import asv_files as asv
import measured_runs
import numpy as np
import page_history
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_model.compile import Compiled
from ascend_model.markup import LIMIT
from dashboards import cli
from dashboards.events import BY_EFFECT, IMPROVEMENT, REGRESSION, find_events, group_events
from dashboards.pages import build, data, event, example, health, kernel, markup, overview, serve, source, view
from dashboards.pages.view import event_path, slug
from dashboards.results import load
from dashboards.series import STATES

KERNEL = "kernel/token_pool.assign.html"
KPOOL = "kernel/kpool.kpool_compress_and_write_cache.html"
INLINE = {"span", "a", "b", "code", "i"}
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Tags with their attributes, and the text, of one page."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in <{tag}>"
        self.tags.append((tag, dict(attrs)))
        self.words.append("" if tag in INLINE else " ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def read(site: Path, name: str = "index.html") -> Page:
    return Page((site / name).read_text(encoding="utf-8"))


def built(place: page_history.Place, site: Path, **how) -> Path:
    build.build(place.results, how.pop("repo", place.repo), site, cache=None, **how)
    return site


def files(site: Path) -> dict[str, Path]:
    return {str(path.relative_to(site)): path for path in sorted(site.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return page_history.plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def site(plain):
    return built(plain, plain.root / "site")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return page_history.hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def hostile_site(hostile):
    return built(hostile, hostile.root / "inside" / "site")


# ---- untrusted text


@given(st.text(max_size=300))
def test_text_comes_out_as_it_went_in(given_text):
    page = Page(markup.tag("p", given_text, title=given_text))
    assert [tag for tag, _ in page.tags if tag != "span"] == ["p"]
    seen = markup.visible(given_text)
    assert "".join(page.words)[1:] == (seen if len(seen) <= LIMIT else seen[: LIMIT - 1] + "…")
    assert page.tags[0][1]["title"] == seen


@given(st.text(alphabet=st.characters(categories=("Cc", "Cf", "Zl", "Zp", "Lu")), max_size=60))
def test_no_hidden_character_gets_through(given_text):
    for one in markup.visible(given_text):
        assert unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(st.text(alphabet="`a<&\u202e ", max_size=30))
def test_prose_shows_every_word_and_nothing_else(given_text):
    page = Page(markup.prose(given_text))
    assert {tag for tag, _ in page.tags} <= {"code"} and not page.open
    seen = markup.visible(given_text)
    assert "".join(page.words) == re.sub("`([^`]+)`", r"\1", seen)


def test_what_stands_between_backticks_is_code():
    assert markup.prose("try `a < b`, or `c") == "try <code>a &lt; b</code>, or `c"
    long = "`x` " + "y" * 400
    (span, *_) = Page(markup.prose(long)).tags
    assert span == ("span", {"title": long})


def test_no_page_shows_a_bare_backtick(site, tmp_path):
    build.build(tmp_path / "none", None, tmp_path / "empty", cache=None)
    build.build(page_history.plain(tmp_path, length=1).results, None, tmp_path / "one", cache=None)
    for place in (site, tmp_path / "empty", tmp_path / "one"):
        for name in files(place):
            # events show source, the example a reason with one
            if name.endswith(".html") and not name.startswith(("event/", "example/")):
                assert "`" not in read(place, name).text, name


def test_direction_characters_are_named():
    assert markup.visible("a\u202eb") == "a⟨U+202E⟩b"


def test_long_text_is_cut_and_kept_as_title():
    page = Page(markup.text("y" * 10_000))
    assert page.tags == [("span", {"title": "y" * 10_000})]
    assert len("".join(page.words)) == LIMIT


@given(st.lists(st.text(max_size=80), min_size=1, max_size=3))
def test_names_of_files_are_harmless_and_tell_texts_apart(parts):
    name = slug(*parts)
    assert re.fullmatch(r"[a-z0-9_.-]{1,160}", name) and not name.startswith(".") and ".." not in name
    assert slug(*parts[:-1], parts[-1] + "!") != name


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_files_hold_what_was_given_and_end_no_script(value):
    text = data.script("a", value)
    assert not set("<>&") & set(text) and text.isascii()
    assert json.loads(text[len('perf.put("a",') : -len(");\n")]) == value


@given(st.lists(st.floats(allow_infinity=False) | st.integers(-(2**53), 2**53), min_size=1, max_size=30))
def test_numbers_come_back(values):
    given_values = np.array(values, float)
    text = data.numbers(given_values)
    if text is None:
        assert np.isnan(given_values).all()
        return
    import base64

    back = np.frombuffer(base64.b64decode(text[1:]), "<f4" if text[0] == "4" else "<f8").astype(float)
    counts = given_values[np.isfinite(given_values)]
    if (counts == np.rint(counts)).all():
        assert np.array_equal(back, given_values, equal_nan=True)
    else:
        assert np.allclose(back, given_values, rtol=1e-6, atol=1e-37, equal_nan=True)


def test_hostile_text_is_text(hostile_site):
    pages = [name for name in files(hostile_site) if name.endswith(".html")]
    assert len(pages) > 10
    for name in pages:
        page = read(hostile_site, name)
        assert not page.open, f"{name} leaves {page.open} open"
        for tag, attributes in page.tags:
            assert tag not in ("img", "iframe", "object", "embed", "base", "style"), name
            assert not [one for one in attributes if one.startswith("on") or one == "style"], (name, tag)
            for key in ("href", "src"):
                target = attributes.get(key)
                assert target is None or re.match(r"(\.\./)*[a-z0-9_./-]*(#.*)?\Z", target, re.S), (name, target)
            if tag == "script":
                assert attributes["src"]
    everything = " ".join(read(hostile_site, name).text for name in pages)
    assert "<script>alert(1)</script>" in everything
    assert "⟨U+202E⟩" in everything and "\u202e" not in everything


def test_links_lead_to_pages(hostile_site, site):
    for place in (hostile_site, site):
        for name in files(place):
            if not name.endswith(".html"):
                continue
            for tag, attributes in read(place, name).tags:
                target = (attributes.get("href") or attributes.get("src") or "").partition("#")[0]
                if target and tag in ("a", "script", "link"):
                    assert ((place / name).parent / target).resolve().is_file(), (name, target)


def test_hostile_text_writes_nowhere_else(hostile, hostile_site):
    around = {str(path.relative_to(hostile.root)) for path in hostile.root.iterdir()}
    assert around == {"repo", "results", "inside"}
    assert [path.name for path in (hostile.root / "inside").iterdir()] == ["site"]
    for name in files(hostile_site):
        assert re.fullmatch(r"[a-zA-Z0-9_./-]+", name) and ".." not in name, name


def test_data_files_are_plain_ascii(hostile_site):
    for name, path in files(hostile_site).items():
        if name.startswith("data/"):
            text = path.read_bytes()
            assert text.isascii() and b"<" not in text and text.startswith(b'perf.put("'), name


# ---- no network


def test_every_page_forbids_everything_but_its_own_files(site):
    for name in files(site):
        if name.endswith(".html"):
            policies = [
                a["content"] for t, a in read(site, name).tags if a.get("http-equiv") == "Content-Security-Policy"
            ]
            assert policies == [markup.POLICY], name
    rules = dict(one.strip().split(" ", 1) for one in markup.POLICY.split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == "'self'"
    assert "connect-src" not in rules and "http" not in markup.POLICY


def test_no_address_of_another_host(site):
    for name, path in files(site).items():
        if name == "assets/plotly.min.js" or name == build.RECORD:
            continue
        text = path.read_text(encoding="utf-8")
        # names of XML formats are no addresses
        bare = text.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/2005/Atom", "")
        assert not re.search(r"https?://|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", bare), name


def test_plotly_is_its_own_unchanged_bundle(site):
    assert (site / "assets/plotly.min.js").read_bytes() == build.plotly_bundle().read_bytes()


def test_overview_is_light(site):
    loaded = [a["src"] for t, a in read(site).tags if t == "script"]
    assert "assets/plotly.min.js" not in loaded
    assert sum((site / one).stat().st_size for one in [*loaded, "index.html", "assets/pages.css"]) < 2_000_000


# ---- what the pages say


def test_headline_counts_open_regressions(site):
    text = read(site).text
    assert "✗ 1 measured and 1 modelled regressions open, 2 of them new in the last 20 commits" in text


def test_headline_without_anything_wrong(tmp_path):
    place = page_history.plain(tmp_path, length=8, factor=1.0)
    text = read(built(place, tmp_path / "site")).text
    assert "✓ Nothing is wrong." in text


def test_overview_says_how_old_the_results_of_each_kind_are(tmp_path, site, plain):
    """The example's modelled results are sixteen commits older than its measured ones."""
    build.build(example.FOLDER, None, tmp_path, cache=None)
    text = read(tmp_path).text
    assert "✓ Nothing is wrong in the newest results of each machine." in text
    assert "measured on nvidia-h200: 985f4ed43d" in text
    assert "modelled on modelled-ascend910b1: 9639bd7022, 16 commits older than the newest with results" in text
    assert "modelled 86 ok" in text and "at 9639bd7022, 16 commits behind" in text
    fresh, newest = read(site).text, plain.commits[-1][:10]
    for place in ("measured on npu-1", "modelled on model"):
        assert f"{place}: {newest} Commit number {page_history.LENGTH - 1}, 2023-11-15" in fresh
    assert fresh.count(f"at {newest}") == 2 and "behind" not in fresh and "older" not in fresh


def test_improvement_is_nothing_wrong(tmp_path):
    place = page_history.plain(tmp_path, length=20, factor=0.5)
    page = read(built(place, tmp_path / "site"))
    assert "✓ Nothing is wrong." in page.text and "improvement" in page.text and "-50.0 %" in page.text


@pytest.mark.parametrize("state", [one for one in STATES if one not in ("ok", "not run")])
def test_states_are_counted_with_their_reasons(tmp_path, state):
    place = page_history.plain(tmp_path, length=4, factor=1.0, wrong=state)
    page = read(built(place, tmp_path / "site"))
    chips = {a["data-pick"]: None for t, a in page.tags if a.get("data-pick")}
    assert list(chips) == list(STATES)
    assert "modelled 3 ok" in page.text and f"1 {state}" in page.text
    assert "out[3] is 5, expected 9" in page.text
    loud = state != "unsupported here"
    assert ("1 case of kernels failing" in page.text) == loud
    assert "out[3] is 5, expected 9" in read(tmp_path / "site", KERNEL).text
    assert "out[3] is 5, expected 9" in read(tmp_path / "site", "health.html").text


def partly(place: page_history.Place, state: str = "") -> None:
    """Measure another op at all commits but the last, where a run left it out; the suite's own speed at all."""
    suite, speed = "bench_moe.ModelledRoute", "bench_model.TypicalLaunch.track_seconds"
    known = json.loads((place.results / "benchmarks.json").read_text())
    units = {name: one["unit"] for name, one in known.items() if isinstance(one, dict)}
    asv.benchmarks_file(place.results, {**units, f"{suite}.track_cycles": "cycles (modelled)", speed: "s"})
    for at, commit in enumerate(place.commits):
        [path] = place.results.glob(f"model/{commit[:8]}-*.json")
        found = json.loads(path.read_text())
        failed = bool(state) and at == len(place.commits) - 2
        value = math.nan if at == len(place.commits) - 1 else None if failed else 7.0
        found["results"][f"{suite}.track_cycles"] = asv.row([value], [["small"], ["op"]])
        found["results"][speed] = asv.row([0.25], [])
        path.write_text(json.dumps(found))
        if failed:
            asv.states_file(
                place.results, commit, [asv.state_line(commit, state=state, suite=suite, machine="model")]
            )


def test_an_op_that_a_run_left_out_is_shown_as_it_was_and_named(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    partly(place)
    page = read(built(place, tmp_path / "site"))
    assert f"Not measured at the newest commit {place.commits[-1][:10]}: route." in page.text
    assert "0 not run" in page.text and "0 unsupported here" in page.text
    assert "✓ Nothing is wrong." in page.text


def test_an_op_that_fails_is_not_forgotten_by_a_run_that_leaves_it_out(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    partly(place, "wrong result")
    assert "1 case of kernels failing" in read(built(place, tmp_path / "site")).text


def test_the_speed_of_the_suite_is_told_apart_from_kernels(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    before = read(built(place, tmp_path / "before")).text
    partly(place)
    page = read(built(place, tmp_path / "site"))
    measured = re.compile(r"measured \d+ ok|measured No measured results")
    assert measured.findall(page.text) == measured.findall(before)
    text = " ".join(page.text.split())
    assert "Other benchmarks Of no kernel" in text and "bench_model.TypicalLaunch.track_seconds 0.25" in text
    assert not any("typical" in name for name in files(tmp_path / "site"))


def test_a_failing_twin_is_no_alarm(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0, wrong="wrong result", wrong_impl="carried")
    text = read(built(place, tmp_path / "site")).text
    assert "✓ Nothing is wrong." in text and "1 wrong result" in text and "out[3] is 5, expected 9" in text


def test_modelled_and_measured_have_their_own_sections(site):
    for name in ("index.html", "events.html", KERNEL, "compilers.html"):
        kinds = {
            a["class"].split()[1]
            for t, a in read(site, name).tags
            if t == "section" and "kind" in (a.get("class") or "")
        }
        assert kinds == {"modelled", "measured"}, name


def test_compiler_versions_are_on_every_page(site):
    for name in files(site):
        if name.endswith(".html"):
            text = read(site, name).text
            assert "triton-ascend 3.2.0" in text and "ascendnpu-ir 1.2.0" in text, name


def test_twins_are_ratios_with_their_hazards(site):
    text = read(site, KERNEL).text
    # 2000 over 1000 * 1.25 and 8000 over 4000 * 1.125
    assert "×1.60 2,000 cycles" in text and "×1.78 8,000 cycles ⚠ 1" in text
    assert "carried: out of bounds read past the pool (large)" in text
    assert "Twins (the same job with one source pattern changed), as a ratio to derived" in text
    # the verdict of the unsafe case does not look like the safe one's
    assert "carried twin okok⚠ 1" in text.replace("ok ", "ok")


def test_other_forms_and_twins_are_named_apart(tmp_path):
    (commit,) = asv.repository(tmp_path / "repo", ["only"])
    results, impls = tmp_path / "results", ("carried", "digits", "derived")
    name = f"{page_history.MODELLED}.track_cycles"
    asv.benchmarks_file(results, {name: "cycles (modelled)"})
    asv.result_file(results, commit, {name: asv.row([3, 2, 1], (("small",), impls))}, machine="model")
    roles = dict(zip(impls, ("twin", "other", "op")))
    asv.states_file(
        results,
        commit,
        [asv.state_line(commit, "small", impl, role=roles[impl], machine="model") for impl in impls],
    )
    build.build(results, tmp_path / "repo", tmp_path / "site", cache=None)
    text = read(tmp_path / "site", KERNEL).text
    assert "Twins (the same job with one source pattern changed) and other forms of the op, as a ratio to" in text
    assert "derived the op's own = 1 cycles digits other form ×2.00 2 cycles carried twin ×3.00 3 cycles" in text


def test_a_time_below_a_cycle_is_given_without_digits(tmp_path):
    build.build(example.FOLDER, None, tmp_path, cache=None)
    text = read(tmp_path, "kernel/token_pool.assign_req_to_token_pool.html").text
    assert "empty-span 104 B 2,223 cycles under 1 cycle 0.0%" in text
    assert "extend-32x512 135,040 B 2,345 cycles 168 cycles 7.1%" in text


def test_compilers_of_a_gpu_are_triton_and_not_told_about_ascends(tmp_path):
    build.build(example.FOLDER, None, tmp_path, cache=None)
    page = read(tmp_path, "compilers.html")
    modelled, measured = re.split("Measured measured", page.text)
    assert "--compiler 1.1.0" in modelled and "--compiler" not in measured
    assert "commit triton 3.6.0 on nvidia-h200" in measured and "compiler named" not in page.text
    assert "ascendnpu-ir 1.2.0, ascend-model 1-dbe26b72 on modelled-ascend910b1" in modelled


def test_roof_buffer_and_pipes(site):
    text = read(site, KERNEL).text
    rate = kernel.bytes_per_cycle()
    assert rate == pytest.approx(1490 / 1.85)
    # small: 4096 B in and out, 1250 cycles
    assert f"{8192 / rate / 1250:.1%}" in text
    assert f"4,096 B {4096 / 196608:.1%}" in text
    # 600 busy and 400 waiting of 1000 cycles on S
    assert "60% 10% 1,000 cycles S waits for MTE2 400" in text.replace("  ", " ")


def test_axes_have_unit_and_direction(site):
    text = (site / data.case_path(_kernel_of(site), "small")).read_text()
    rows = json.loads(text[text.index("[") : -len(");\n")])
    assert {(one["metric"], one["unit"], one["better"], one["modelled"]) for one in rows} == {
        ("cycles", "cycles", "lower", True), ("ub_bytes", "B", "lower", True), ("bytes_in", "B", "lower", True),
        ("bytes_out", "B", "lower", True), ("device_time", "us", "lower", False),
    }  # fmt: skip


def _kernel_of(site: Path):
    from dashboards.pages.view import Kernel

    return Kernel("token_pool", "assign", "token_pool.assign", ())


def event_pages(site: Path) -> dict[str, Page]:
    return {name: read(site, name) for name in files(site) if name.startswith("event/")}


def test_event_page_tells_all(site, plain):
    good, bad = plain.commits[page_history.JUMP - 1], plain.commits[page_history.JUMP]
    pages = {p.text.partition("Skip")[2][:400]: p for p in event_pages(site).values()}
    page = next(p for head, p in pages.items() if "cycles modelled" in head)
    assert "+25.0 %" in page.text and "from 1,000 cycles to 1,250 cycles" in page.text
    assert good in page.text and bad in page.text and f"Commit number {page_history.JUMP}" in page.text
    assert f"-BLOCK = {page_history.JUMP - 1}" in page.text and f"+BLOCK = {page_history.JUMP}" in page.text
    assert "c0de" * 4 in page.text and "0123456789abcdef" in page.text
    commands = [shlex.split(a["data-copy"]) for t, a in page.tags if a.get("data-copy")]
    assert commands == [
        ["ascend-perf", "run", bad, "--ops=assign", "--force"],
        ["ascend-perf", "bisect", "bench_token_pool.ModelledAssign.track_cycles", "--case=small",
         "--impl=derived", "--good", good, "--bad", bad],
    ]  # fmt: skip
    # the twin did not move: twice as slow before, 1.6 times after
    assert "carried twin ×2.00 ×1.60 =" in page.text


def test_words_of_an_improvement_are_not_those_of_a_regression(tmp_path, site):
    faster = built(page_history.plain(tmp_path, length=20, factor=0.5), tmp_path / "site")
    neutral = ["before", "since"]
    ends = {"slower": ["last good", "first bad"], "improvement": neutral}
    seen = set()
    for place in (site, faster):
        for name in event_pages(place):
            content = (place / name).read_text()
            (kind,) = re.findall(r'class="lead"><span class="chip[^>]*>([^<]*)', content)
            terms = re.findall(r"<dt>([^<]*)</dt>", content)
            assert [one for one in terms if one in {*ends["slower"], *neutral}] == ends.get(kind, neutral)
            seen.add(kind)
    assert seen >= set(ends)


def test_events_of_the_same_commits_lead_to_each_other(plain):
    view = build.read(plain.results, plain.repo, "HEAD", None)
    slower = next(one for one in view.events if one.kind == REGRESSION and one.modelled)
    later = dataclasses.replace(slower, last_good_at=slower.first_bad_at, first_bad_at=slower.first_bad_at + 1)
    twin = dataclasses.replace(slower, impl="carried")
    faster = dataclasses.replace(slower, kind=IMPROVEMENT, case="large")
    view = dataclasses.replace(view, events=(slower, faster, later, twin))
    assert event.same_commit(view, slower) == [faster] and event.same_commit(view, later) == []
    page = Page(event.render(view, slower, markup.Markup("")))
    assert "in the same commits improvement: assign derived: cycles modelled" in page.text


def test_no_improvement_of_the_example_is_the_by_effect_of_a_slower_launch(tmp_path):
    """`double_buffers +200 %` of the form that got slower and reads out of bounds is a part of that event."""
    build.build(example.FOLDER, None, tmp_path, cache=None)
    view = build.read(example.FOLDER, None, "HEAD", None)
    modelled = [one for one in view.events if one.modelled]
    assert {one.kind for one in modelled} == {IMPROVEMENT, REGRESSION}
    assert {one.metric for one in modelled} == {"cycles"}
    (slower,) = (one for one in modelled if one.kind == REGRESSION)
    assert slower.impl == "carried-at-top"
    moved = {one.metric: one.cause for one in slower.members}
    assert moved["double_buffers"] == BY_EFFECT and moved["out_of_bounds"] is None
    page = read(tmp_path, event_path(slower))
    (line,) = re.findall(r"double_buffers several-blocks .*?ok.{50}", page.text)
    assert "+200.0 %" in line and "came with what got worse in the same launch" in line


def test_measured_event_has_an_interval_that_holds_the_truth(site):
    page = next(p for p in event_pages(site).values() if "device_time measured" in p.text)
    low, high = re.search(r"change, 99 %\s*([+-][\d.]+) % … ([+-][\d.]+) %", page.text).groups()
    assert float(low) < 25 < float(high)
    assert "9 samples" in page.text


@pytest.mark.parametrize("name", [*page_history.HOSTILE, "--force", "; rm -rf ~", "$(id)", "a\nb"])
def test_commands_are_one_word_an_argument(plain, name):
    view = build.read(plain.results, plain.repo, "HEAD", None)
    one = dataclasses.replace(view.events[0], suite="s", metric="m", op=name, case=name, impl=name)
    good, bad = one.last_good, one.first_bad
    assert [shlex.split(line) for line in event.commands(one).values()] == [
        ["ascend-perf", "run", bad, f"--ops={name}", "--force"],
        ["ascend-perf", "bisect", "s.track_m", f"--case={name}", f"--impl={name}", "--good", good, "--bad", bad],
    ]


def test_compiled_code_is_shown_side_by_side_with_its_explanation(plain, tmp_path, monkeypatch):
    from ascend_model import explain

    kept = {"c0de" * 4: "hivm.hir.vadd", "0123456789abcdef": "memref.load scalar"}
    for cached in (source._cached, source.explained_here):
        cached.cache_clear()

    def load(code):
        text = f"func.func @k\n{kept[code]}\nreturn\n"
        return explain.Side(Compiled("ok", "", "k", "Ascend910B1", "1.2.0", "3.2.0", linalg=text, code=code))

    said = explain.Explanation(("the <b>loads</b> became scalar",), (), True)
    monkeypatch.setattr(explain, "load", load)
    monkeypatch.setattr(explain, "explain_codes", lambda before, after: said)
    site = built(plain, tmp_path / "site", repo=plain.repo)
    page = next(p for p in event_pages(site).values() if "cycles modelled" in p.text)
    assert "hivm.hir.vadd memref.load scalar" in page.text
    assert "the <b>loads</b> became scalar" in page.text
    # it is the suspected cause on the overview, too
    assert "the <b>loads</b> became scalar" in read(site).text
    for cached in (source._cached, source.explained_here):
        cached.cache_clear()


def test_compiled_code_that_came_with_the_results_is_shown(plain, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(plain.results, results)
    (results / "code").mkdir()
    for name, line in (("c0de" * 4, "linalg.fill"), ("0123456789abcdef", "memref.store")):
        text = f"func.func @k\n{line}\nreturn\n"
        (results / "code" / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
    site = built(page_history.Place(tmp_path, plain.commits), tmp_path / "site", repo=plain.repo)
    page = next(p for p in event_pages(site).values() if "cycles modelled" in p.text)
    assert "linalg.fill memref.store" in page.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a b": ["the `loads` became <b>scalar</b>", "more"]}, ("the `loads` became <b>scalar</b>", "more")),
        ({"b a": ["no"]}, ()),
        ({"a b": "no list"}, ()),
        (["a b"], ()),
        ("{", ()),
    ],
)
def test_explanations_that_came_with_the_results(tmp_path, content, said):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / source.EXPLAINED).write_text(text)
    assert source.explained("a", "b", tmp_path) == source.recorded("a", "b", tmp_path) == said
    assert source.recorded("a", "b", None) == source.recorded("a", "b", tmp_path / "none") == ()


def test_example_explains_what_got_slower_without_a_compiler(tmp_path, monkeypatch):
    """What `ascend-perf explain` says of its own two compiled forms, wherever the pages are built."""
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    source.explained_here.cache_clear()
    source._cached.cache_clear()
    build.build(example.FOLDER, Path(__file__).parents[1], tmp_path / "site", cache=None)
    cause = "The store to req_to_token became load, select and store of the whole tile: offsets are carried"
    (page,) = (
        one for one in event_pages(tmp_path / "site").values() if "carried-at-top" in one.text.partition("Skip")[0]
    )
    assert f"suspected cause {cause}" in page.text
    assert "derive the offset from the loop index: offset = i * BLOCK + tl.arange(0, BLOCK)" in page.text
    assert "vector ops in loops 0 -> 6, bytes of unified buffer 8480 -> 37184, double buffers 1 -> 3" in page.text
    assert "these kernels were not compiled" not in page.text.lower()
    assert cause in read(tmp_path / "site").text
    assert "the compiled code changed" not in " ".join(one.text for one in event_pages(tmp_path / "site").values())


class Repo:
    """A repository with files of commits, for the source section of an event's page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        asv.git(folder, "init", "-q", "-b", "main")

    def commit(self, files: dict[str, str | None]) -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        asv.git(self.folder, "add", "--force", *files)
        asv.git(self.folder, "commit", "-q", "--allow-empty", "-m", "a commit")
        return asv.git(self.folder, "rev-parse", "HEAD").strip()

    def shown(self, good: str, bad: str, op: str = "rms_norm", family: str = "kernels", at: str = "") -> str:
        one = view.Kernel(family, op, slug(family, op), ())
        return text_of(str(event._difference(source.difference(self.folder / at, good, bad, one))))


def text_of(markup: str) -> str:
    page = Page(markup)
    return page.text


DESCRIBED = {
    "benchmarks/bench_kernels.py": (
        'from ascend_kernels.harness.describe import op\nOPS = [op("rms_norm", kernel="lib/latest/norms.py:norm", '
        'grid=(8,)), op("copy", call="lib/wrap.py:copy")]\n'
    ),
    "lib/latest/norms.py": "from lib.tiles import TILE\nBLOCK = 2048\n",
    "lib/tiles.py": "TILE = 1\n",
    "lib/wrap.py": "from .kernels import copy_kernel\n",
    "lib/kernels.py": "def copy_kernel(): pass\n",
    "lib/other.py": "x = 1\n",
}
OTHERS = "No file of the kernel itself changed; these did."
UNKNOWN = "Which files are the kernel's is not known; these changed."


@pytest.mark.parametrize(
    ("op", "changed", "others"),
    [
        ("rms_norm", "lib/latest/norms.py", False),
        ("rms_norm", "lib/tiles.py", False),  # it imports that
        ("rms_norm", "lib/other.py", True),
        ("copy", "lib/kernels.py", False),  # of its wrapper
        ("copy", "lib/tiles.py", True),
    ],
)
def test_files_of_a_described_kernel_are_its_own(op, changed, others, tmp_path):
    repo = Repo(tmp_path / "repo")
    good = repo.commit(DESCRIBED)
    bad = repo.commit({changed: DESCRIBED[changed] + "CHANGED = 1\n"})
    for at in ("", "lib"):
        shown = repo.shown(good, bad, op, at=at)
        assert "+CHANGED = 1" in shown
        assert (OTHERS in shown, UNKNOWN in shown) == (others, False)


def test_todays_description_stands_for_commits_from_before_it(tmp_path):
    repo = Repo(tmp_path / "repo")
    bench = "benchmarks/bench_kernels.py"
    before = {name: text for name, text in DESCRIBED.items() if name != bench}
    good = repo.commit(before)
    bad = repo.commit({"lib/latest/norms.py": "BLOCK = 512\n"})
    assert UNKNOWN in repo.shown(good, bad)
    source.files_of.cache_clear()
    (repo.folder / bench).parent.mkdir()
    (repo.folder / bench).write_text(DESCRIBED[bench])
    shown = repo.shown(good, bad)
    assert "-BLOCK = 2048" in shown and OTHERS not in shown and UNKNOWN not in shown


def test_a_description_below_the_repositorys_top_names_files_from_its_own(tmp_path):
    repo = Repo(tmp_path / "repo")
    good = repo.commit({f"python/{name}": text for name, text in DESCRIBED.items()})
    bad = repo.commit({"python/lib/latest/norms.py": "BLOCK = 512\n", "lib/latest/norms.py": ""})
    assert OTHERS not in repo.shown(good, bad)


@pytest.mark.parametrize(
    "text", ["op(", "op('rms_norm', kernel=f'{x}')", "op('rms_norm', kernel='a b:c')", "\x00"]
)
def test_a_description_that_cannot_be_read_is_no_error(text, tmp_path):
    repo = Repo(tmp_path / "repo")
    good = repo.commit({"benchmarks/bench_kernels.py": text, "lib/norms.py": "x = 1\n"})
    bad = repo.commit({"lib/norms.py": "x = 2\n"})
    assert UNKNOWN in repo.shown(good, bad)


def test_an_op_of_the_registry_has_the_file_of_its_name_and_its_familys_folder(tmp_path):
    repo = Repo(tmp_path / "repo")
    files = {f"ascend_kernels/pool/{name}.py": "x = 1\n" for name in ("assign", "plan")}
    good = repo.commit({**files, "ascend_kernels/device.py": "x = 1\n"})
    own = repo.commit({"ascend_kernels/pool/assign.py": "x = 2\n", "ascend_kernels/pool/plan.py": "x = 3\n"})
    plan = repo.commit({"ascend_kernels/pool/plan.py": "x = 4\n"})
    device = repo.commit({"ascend_kernels/device.py": "x = 5\n"})
    shown = repo.shown(good, own, "assign", "pool")
    assert "+x = 2" in shown and "+x = 3" not in shown and OTHERS not in shown
    shown = repo.shown(own, plan, "assign", "pool")
    assert "+x = 4" in shown and OTHERS not in shown
    shown = repo.shown(plan, device, "assign", "pool")
    assert "+x = 5" in shown and OTHERS in shown


@pytest.mark.parametrize("code", ["../../secret", "/etc/passwd", "..", "", "+", "c0de" * 3])
def test_names_of_compiled_code_are_no_paths(code, tmp_path):
    (tmp_path / "results" / "code").mkdir(parents=True)
    (tmp_path / "secret.txt.gz").write_bytes(gzip.compress(b"secret"))
    assert source.compiled(code, code, tmp_path / "results") == ("", "")


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ("a\nb\nc", "a\nx\nc", [("a", "a"), ("b", "x"), ("c", "c")]),
        ("a", "a", []),
        ("a\nb", "a\nb\nc", [("a", "a"), ("b", "b"), (None, "c")]),
    ],
)
def test_pairs_of_lines(before, after, expected):
    assert source.pairs(before, after) == expected


def test_feed_has_every_event_once(site):
    root = ElementTree.parse(site / "feed.xml").getroot()
    atom = "{http://www.w3.org/2005/Atom}"
    entries = root.findall(f"{atom}entry")
    assert len({one.findtext(f"{atom}id") for one in entries}) == len(entries) == len(event_pages(site))
    for one in entries:
        assert (site / one.find(f"{atom}link").attrib["href"]).is_file()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", one.findtext(f"{atom}updated"))


def test_hostile_feed_parses(hostile_site):
    ElementTree.parse(hostile_site / "feed.xml")


def test_compare_has_every_value(site, plain):
    rows = json.loads((site / "data/series.js").read_text().partition(",")[2][: -len(");\n")])
    values = (site / f"data/at/{plain.commits[-1]}.js").read_text()
    import base64

    packed = json.loads(values.partition(",")[2][: -len(");\n")])
    numbers = np.frombuffer(base64.b64decode(packed[1:]), "<f4" if packed[0] == "4" else "<f8")
    named = {
        tuple(rows["texts"][row[at]] for at in (1, 2, 3, 4)): value for row, value in zip(rows["rows"], numbers)
    }
    assert named["assign", "large", "derived", "cycles"] == 4500
    assert named["assign", "small", "carried", "cycles"] == 2000


def test_compilers_are_columns_with_their_ratio(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    for commit in place.commits:
        asv.result_file(
            place.results, commit, {f"{page_history.MODELLED}.track_cycles": asv.row([500, 2000, 2000, 8000],
            (page_history.CASES, page_history.IMPLS))}, machine="model", name="other",
            versions={**asv.VERSIONS, "ascendnpu-ir": "1.1.0"},
        )  # fmt: skip
    text = read(built(place, tmp_path / "site"), "compilers.html").text
    assert "ascendnpu-ir 1.1.0" in text and "ascendnpu-ir 1.2.0" in text
    assert "×0.500" in text or "×2.000" in text


def test_health_shows_noise_and_machines(site):
    text = read(site, "health.html").text
    assert "npu-1 measured" in text and "model modelled" in text
    found = re.search(r"assign device_time npu-1 4 ([\d.]+)%", text)
    assert 0.2 < float(found[1]) < 0.8  # made with 0.4 %
    assert "none seen" in text and "0.8%" not in text


def test_spikes_are_those_that_were_seen(tmp_path):
    """Without one the detector still reckons with some; the page tells what there was."""
    hashes = [f"{at:08x}" + "ab" * 16 for at in range(1, 21)]
    asv.benchmarks_file(tmp_path / "results", {page_history.MEASURED + ".track_device_time": "us"})
    for at, commit in enumerate(hashes):
        calm = 10 + 0.01 * (-1) ** at
        values = [calm, calm + 10 * (at in (5, 12)), calm, calm]
        cases = (("small",), ("derived", "carried", "third", "fourth"))
        rows = {page_history.MEASURED + ".track_device_time": asv.row(values, cases)}
        asv.result_file(tmp_path / "results", commit, rows, machine="npu-1", date=at)
    view = build.read(tmp_path / "results", None, "HEAD", None)
    (row,) = health.noise_rows(view)
    assert (row["series"], row["spikes"], row["points"]) == (4, 2, 4 * 17)
    build.build(tmp_path / "results", None, tmp_path / "site", cache=None)
    assert "2 of 68 points" in read(tmp_path / "site", "health.html").text


def test_health_shows_devices_their_noise_floor_and_marked_runs(tmp_path):
    hashes = [f"{at:08x}" + "ab" * 16 for at in range(1, 9)]
    mark = "slowed down: <b>software power cap</b>"
    measured_runs.write(tmp_path / "results", hashes, seed=1, marks={5: [mark]})
    build.build(tmp_path / "results", None, tmp_path / "site", cache=None)
    page = read(tmp_path / "site", "health.html")
    assert "Some GPU" in page.text
    assert "driver 580.1, toolkit 13.0, clock 1980 MHz, temperature 41 °C" in page.text
    assert "device_time" in page.text and mark in page.text and hashes[5][:10] in page.text
    assert "<b>" not in (tmp_path / "site" / "health.html").read_text()


def test_health_shows_the_detector_with_the_goals_it_misses(site):
    figures = json.loads((Path(build.__file__).parents[1] / "quality.json").read_text())["goals"]
    text = read(site, "health.html").text
    for one in figures:
        said = "yes" if one["met"] else "no"
        assert f"{one['name']} {one['value']:.3g} {one['sense']} {one['goal']:g} {said}" in text


# ---- building again


def test_building_again_writes_nothing(plain, tmp_path):
    site = built(plain, tmp_path / "site")
    before = {name: path.stat().st_mtime_ns for name, path in files(site).items() if name != build.RECORD}
    built(plain, site)
    assert {name: path.stat().st_mtime_ns for name, path in files(site).items() if name != build.RECORD} == before


def test_built_in_steps_is_built_at_once(tmp_path):
    place = page_history.plain(tmp_path)
    last = place.commits[-1]
    aside = tmp_path / "aside"
    aside.mkdir()
    newest = [*place.results.glob(f"*/{last[:8]}-host.json"), place.results / "states" / f"{last}.jsonl"]
    for path in newest:
        (aside / path.parent.name).mkdir(exist_ok=True)
        shutil.move(path, aside / path.parent.name / path.name)
    site = built(place, tmp_path / "site")
    links = set(event_pages(site))
    for path in newest:
        shutil.move(aside / path.parent.name / path.name, path)
    built(place, site)
    whole = built(place, tmp_path / "whole")
    assert {n: p.read_bytes() for n, p in files(site).items() if n != build.RECORD} == {
        n: p.read_bytes() for n, p in files(whole).items() if n != build.RECORD
    }
    assert links <= set(event_pages(site))


def test_links_to_events_that_are_gone_lead_to_a_page(tmp_path):
    place = page_history.plain(tmp_path / "a")
    site = built(place, tmp_path / "site")
    calm = page_history.plain(tmp_path / "b", length=6, factor=1.0)
    before = set(event_pages(site))
    assert before
    for _ in range(2):
        built(calm, site)
        assert {"No such event any more" in page.text for page in event_pages(site).values()} == {True}
        assert set(event_pages(site)) == before


def test_a_folder_of_something_else_is_left_alone(plain, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(build.SiteError, match="something else"):
        built(plain, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_tampered_record_deletes_nothing_outside(plain, tmp_path):
    site = built(plain, tmp_path / "site")
    (tmp_path / "precious").write_text("x")
    record = json.loads((site / build.RECORD).read_text())
    (site / build.RECORD).write_text(json.dumps({**record, "../precious": "1", str(tmp_path / "precious"): "1"}))
    built(plain, site)
    assert (tmp_path / "precious").read_text() == "x"


# ---- poor results


def test_no_results_folder(tmp_path):
    build.build(tmp_path / "none", tmp_path, tmp_path / "site", cache=None)
    text = read(tmp_path / "site").text
    assert "No results yet" in text and "There is no folder" in text and "ascend-perf run --last 5" in text


def test_empty_results_folder(tmp_path):
    (tmp_path / "results").mkdir()
    build.build(tmp_path / "results", None, tmp_path / "site", cache=None)
    page = read(tmp_path / "site")
    assert "ascend-perf run --last 5" in page.text
    for _, attributes in page.tags:
        target = attributes.get("href") or attributes.get("src")
        assert not target or target.startswith("#") or (tmp_path / "site" / target).is_file(), target


def test_example_is_small_and_shows_events_and_twins(tmp_path):
    assert sum(path.stat().st_size for path in example.FOLDER.rglob("*")) < 1_200_000
    site = tmp_path / "site"
    build.build(example.FOLDER, Path(__file__).parents[1], site, cache=None)
    assert event_pages(site)
    assert "⚠" in read(site, "kernel/token_pool.assign_req_to_token_pool.html").text


def test_example_has_a_history_of_a_device(tmp_path):
    """Sixteen commits on one H200: what changed is found, what did not change is called noise."""
    found = load(example.FOLDER, None, cache=None)
    rows = [row for row, one in enumerate(found.series) if one.machine == "nvidia-h200"]
    measured = np.isfinite(found.value[rows]).any(axis=0)
    assert measured.sum() == 16 and len(rows) > 100
    build.build(example.FOLDER, None, tmp_path, cache=None)
    page = read(tmp_path)
    (table,) = (a for t, a in page.tags if t == "table" and a.get("data-machine") == "nvidia-h200")
    hashes = [one.hash[:10] for one, ran in zip(found.commits, measured) if ran]
    assert (table["data-base"], table["data-newest"]) == (hashes[0], hashes[-1])
    assert "≈" in page.text
    # The heat map shows the form that the wrapper chooses on this device.
    assert re.search(r"kpool_compress_and_write_cache\s+n56-p4\s*new", page.text)
    assert "Other forms of the op, as a ratio to sized" in read(tmp_path, KPOOL).text
    large = {
        (one.op, one.first_bad[:7], one.kind)
        for one in group_events(find_events(found))
        if not one.modelled and abs(one.size) > 0.1
    }
    assert large == {
        ("kpool_compress_and_write_cache", "63a3182", IMPROVEMENT),
        ("top_p_renorm_prob", "49b3e47", IMPROVEMENT),
    }


def test_a_form_that_did_not_exist_yet_is_not_marked_as_failing():
    found = build.read(example.FOLDER, None, "HEAD", None)
    rows = {
        (one.impl, one.case): row for row, one in enumerate(found.history.series) if one.metric == "device_time"
    }
    new, old = (data.series_data(found, rows[impl, "n56-p4"], 0, None) for impl in ("sized", "matrix"))
    assert "bad" not in new and "bad" not in old
    crashed = data.series_data(found, rows["lane", "step4-256x8"], 0, None)
    assert len(crashed["bad"]) == 2 and all("illegal memory access" in why for why in crashed["why"].values())


@pytest.mark.parametrize(
    ("change", "noise", "words"),
    [(0.03, 0.0, "▲+3.0 %"), (0.03, 0.05, "≈"), (-0.03, 0.05, "≈"), (-0.06, 0.05, "▼-6.0 %"), (0.0, 0.05, "=")],
)
def test_a_change_within_noise_is_none(change, noise, words):
    assert overview.tone_of(change, "lower", noise)[0] == words


# What the heat map says of each case of `page_history.once_wrong` against its oldest commit.
ONCE_WRONG = {"gap": "was wrong", "text": "no compile", "zero": "▲from 0", "even": "=", "late": "new"}


def test_heat_map_names_the_state_of_a_baseline_that_was_not_ok(tmp_path):
    place = page_history.once_wrong(tmp_path)
    content = (built(place, tmp_path / "site") / "index.html").read_text()
    cells = dict(re.findall(r'data-case="(\w+)"><i>\w+</i><b>([^<]*)', content))
    assert cells == ONCE_WRONG
    assert 'title="gap: wrong result → 7 cycles"' in content
    assert "· not run or unsupported; new: that was so at the baseline." in content


def test_a_state_without_a_reason_says_what_is_known(tmp_path):
    build.build(example.FOLDER, Path(__file__).parents[1], tmp_path, cache=None)
    # A form that is not measured there any more has no state.
    assert re.findall(r"(\d+) unsupported here", read(tmp_path).text) == ["0", "0"]
    place = page_history.once_wrong(tmp_path / "other")
    view = build.read(place.results, place.repo, "HEAD", None)
    rows = {one.case: row for row, one in enumerate(view.history.series)}
    first = place.commits[0][:10]
    assert view.reason(rows["gap"], 0) == "gap wrong result" and view.reason(rows["gap"], 1) == ""
    assert view.reason(rows["late"], 0) == "no result and kept no reason, nor has it ever been anything else"
    view.history.state[rows["gap"], 1] = STATES.index("unsupported here")
    said = view.reason(rows["gap"], 1)
    assert said == f"the run skipped it and kept no reason; wrong result at {first}: gap wrong result"


def test_one_commit(tmp_path):
    place = page_history.plain(tmp_path, length=1)
    text = read(built(place, tmp_path / "site")).text
    assert "One commit is measured" in text and "ascend-perf run --last 5" in text
    assert "1,000 cycles" in read(tmp_path / "site", KERNEL).text


def test_all_failed(tmp_path):
    (commit,) = asv.repository(tmp_path / "repo", ["only"])
    results = tmp_path / "results"
    asv.benchmarks_file(results, {asv.MODELLED: "cycles (modelled)"})
    asv.result_file(results, commit, {asv.MODELLED: asv.row([None] * 4)})
    asv.states_file(results, commit, [asv.state_line(commit, state="compile failed", reason="no such op: vfoo")])
    build.build(results, tmp_path / "repo", tmp_path / "site", cache=None)
    text = read(tmp_path / "site").text
    assert "Nothing that ran gave a number" in text and "no such op: vfoo" in text
    assert "4 cases of kernels failing" in text or "2 cases of kernels failing" in text


def test_nothing_is_described_yet(tmp_path):
    """The first steps in a repository: `init` and `run`, which measures nothing."""
    (commit,) = asv.repository(tmp_path / "repo", ["only"])
    results = tmp_path / "results"
    asv.benchmarks_file(results, {asv.MODELLED: "cycles (modelled)"})
    asv.result_file(results, commit, {asv.MODELLED: asv.row([float("nan")] * 4)})
    asv.states_file(results, commit, [asv.state_line(commit, state="not run", reason="not described yet: line 7")])
    build.build(results, tmp_path / "repo", tmp_path / "site", cache=None)
    text = read(tmp_path / "site").text
    assert "not described yet: line 7" in text


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"--results": "nope"}, "there is no folder"),
        ({"--head": "nope"}, "unknown revision 'nope'"),
        ({"--repo": "nope"}, "unknown revision 'HEAD'"),
    ],
)
def test_what_was_named_has_to_be_there(plain, tmp_path, named, words, capsys):
    given = {"--results": plain.results, "--repo": plain.repo, "--out": tmp_path / "site"}
    given |= {name: tmp_path / value if name != "--head" else value for name, value in named.items()}
    arguments = [str(one) for pair in given.items() for one in pair]
    assert cli.main(["dashboard", *arguments, "--quiet"]) == 4
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "site").exists() and not (tmp_path / "nope").exists()


def test_results_of_another_project(plain, tmp_path):
    asv.repository(tmp_path / "repo", ["something else"])
    site = built(plain, tmp_path / "site", repo=tmp_path / "repo")
    text = read(site).text
    assert f"None of the {page_history.LENGTH} measured commits" in text and "--repo" in text
    assert read(site, KERNEL).text


def test_results_of_two_projects(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    stranger = "f" * 40
    asv.result_file(
        place.results, stranger, {f"{page_history.MODELLED}.track_cycles": asv.row([1, 2, 3, 4])}, machine="model"
    )
    assert "1 measured commits are left out" in read(built(place, tmp_path / "site")).text


def test_no_git_history(plain, tmp_path):
    site = built(plain, tmp_path / "site", repo=tmp_path / "nowhere")
    assert "No git history" in read(site).text
    assert any("git history is not here" in page.text for page in event_pages(site).values())


def test_damaged_files_are_named(tmp_path):
    place = page_history.plain(tmp_path, length=4, factor=1.0)
    (place.results / "model" / "zzz.json").write_text("{")
    site = built(place, tmp_path / "site")
    assert "1 parts of the results could not be read" in read(site).text
    assert "model/zzz.json" in read(site, "health.html").text


# ---- commands


def test_command_prints_the_path_of_the_page_last(plain, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "site"
    assert (
        cli.main(["dashboard", "--results", str(plain.results), "--repo", str(plain.repo), "--out", str(out)]) == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "index.html")


def test_command_refuses_with_a_reason(plain, tmp_path, capsys):
    (tmp_path / "x").write_text("")
    arguments = ["dashboard", "--results", str(plain.results), "--repo", str(plain.repo)]
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 4
    assert "something else" in capsys.readouterr().err
    assert cli.main(["dashboard", "--config", str(tmp_path / "none.json")]) == 4
    assert "cannot be read" in capsys.readouterr().err


@given(
    st.lists(
        st.sampled_from(["..", ".", "%2e%2e", "%2f", "/", "\\", "etc", "index.html", "data", "\0", "link", "%00"]),
        max_size=8,
    )
)
def test_no_path_leaves_the_site(tmp_path_factory, parts):
    root = tmp_path_factory.getbasetemp() / "served"
    if not root.exists():
        (root / "site" / "data").mkdir(parents=True)
        (root / "site" / "index.html").write_text("x")
        (root / "secret").write_text("x")
        (root / "site" / "link").symlink_to(root / "secret")
    found = serve.find((root / "site").resolve(), "/" + "/".join(parts))
    assert found is None or found == root.resolve() / "site" / "index.html"


def test_server_serves_the_site_to_this_machine_alone(site):
    with serve.open_server(site, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def ask(target: str, method: str = "GET", host: str = "") -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            connection.putrequest(method, target, skip_host=bool(host))
            if host:
                connection.putheader("Host", host)
            connection.endheaders()
            return connection.getresponse()

        page = ask("/")
        assert page.status == 200 and b"Is anything wrong now?" in page.read()
        assert page.headers["Content-Security-Policy"].startswith(markup.POLICY)
        assert ask("/assets/pages.js").headers["Content-Type"].startswith("text/javascript")
        for target in (
            "/../../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "//etc/passwd",
            "/.build.json",
            "/nothing",
        ):
            assert ask(target).status == 404, target
        assert ask("/", method="POST").status == 501
        assert ask("/", host="evil.example").status == 403
        assert ask("/", host="localhost").status == 200
        server.shutdown()


def test_a_port_that_is_taken_is_said_in_words(site, capsys):
    with serve.open_server(site, 0) as server:
        port = str(server.server_address[1])
        assert cli.main(["serve", "--site", str(site), "--port", port]) == 4
    assert f"port {port}: Address already in use\n" in capsys.readouterr().err


def test_serving_without_a_site_says_what_to_do(tmp_path, capsys):
    assert cli.main(["serve", "--site", str(tmp_path)]) == 4
    assert "ascend-perf dashboard" in capsys.readouterr().err

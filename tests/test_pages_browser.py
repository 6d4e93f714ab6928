"""The pages in a real browser, from `file://`: no error, no request, filters, links, keys, charts, two widths."""

from __future__ import annotations

import itertools
import shutil
import socket
from pathlib import Path

import measured_runs
import page_history
import pytest

from dashboards.pages import build, example

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

WIDTHS = (390, 1440)
KERNEL = "kernel/token_pool.assign.html"
READY = "document.documentElement.dataset.ready"


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = page_history.plain(tmp_path_factory.mktemp("browser"))
    build.build(place.results, place.repo, place.root / "site", cache=None)
    return place.root / "site"


@pytest.fixture(scope="module")
def example_site(tmp_path_factory):
    out = tmp_path_factory.mktemp("example")
    build.build(example.FOLDER, None, out, cache=None)
    return out


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory):
    # a name of 10 000 characters says the same as one of 300, and the browser has less to lay out
    texts = [one[:300] for one in page_history.HOSTILE]
    place = page_history.hostile(tmp_path_factory.mktemp("browser-hostile"), texts)
    build.build(place.results, place.repo, place.root / "site", cache=None)
    return place.root / "site"


def until(page, condition: str) -> None:
    """Waits for a condition; a string that the page itself would have to evaluate is against its policy."""
    for _ in range(1200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {condition}")


class Visit:
    """One window that remembers everything that must not happen."""

    def __init__(self, browser, width: int = 1440, **how):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.bad: list[str] = []
        self.page.on(
            "console", lambda said: self.bad.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.bad.append(str(error)))
        self.page.on("dialog", self.dialog)
        self.page.on("request", self.request)

    def console(self, said):
        if said.type in ("error", "warning"):
            self.bad.append(said.text)

    def dialog(self, dialog):
        self.bad.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def request(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.bad.append(f"request: {request.url}")

    def go(self, site: Path, name: str, fragment: str = ""):
        self.page.goto("about:blank")
        self.page.goto((site / name).as_uri() + fragment)
        charts = name.startswith(("kernel/", "event/"))
        wanted = "'charts'" if charts else "'compared'" if name == "compare.html" else "'page'"
        until(self.page, f"{READY} === {wanted}")
        return self.page

    def shown_events(self) -> list[str]:
        rows = self.page.locator("table.events tbody tr:visible")
        return [text.split("\n")[0] for text in rows.all_inner_texts()]

    def end(self):
        self.context.close()
        assert self.bad == []


@pytest.fixture
def visit(browser):
    opened = []

    def start(width: int = 1440, **how) -> Visit:
        opened.append(Visit(browser, width, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.end()


def names(site: Path) -> list[str]:
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    events = [name for name in pages if name.startswith("event/")]
    kernels = [name for name in pages if name.startswith("kernel/")]
    return [name for name in pages if name not in events + kernels] + events[:3] + kernels[:2]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_opens_without_error_or_request(site, visit, width):
    window = visit(width)
    for name in names(site):
        page = window.go(site, name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {width}"
        assert page.locator("h1").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_pages_open_without_error_or_request(hostile_site, visit, width):
    window = visit(width)
    for name in names(hostile_site):
        page = window.go(hostile_site, name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {width}"
        assert page.evaluate("document.querySelectorAll('main img, main iframe, main script').length") == 0


def test_policy_stops_what_is_not_the_sites_own(site, browser):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        window = Visit(browser)
        page = window.go(site, "index.html")
        page.evaluate(
            """(port) => {
                const inline = document.createElement("script");
                inline.textContent = "window.ran = 1";
                const handler = document.createElement("div");
                handler.setAttribute("onclick", "window.ran = 2");
                const image = document.createElement("img");
                image.src = `http://127.0.0.1:${port}/x.png`;
                document.body.append(inline, handler, image);
                handler.click();
                fetch(`http://127.0.0.1:${port}/y`).catch(() => null);
            }""",
            server.getsockname()[1],
        )
        with pytest.raises(TimeoutError):
            server.accept()
        assert page.evaluate("window.ran") is None
        assert len([one for one in window.bad if "Content Security Policy" in one]) >= 3
        window.context.close()


def test_filters_and_search(site, visit):
    page = visit().go(site, "index.html")
    rows = page.locator("table.events tbody tr:visible")
    # the op slower in both kinds of number, and its twin slower in measured time with the same code
    assert rows.count() == 3
    page.select_option("[data-filter=metric]", "device_time")
    assert rows.count() == 2
    assert "2 of 3 events" in page.inner_text("#match-count")
    page.fill("#search", "no such words")
    assert rows.count() == 0
    page.click("#clear")
    until(page, "document.querySelectorAll('table.events tbody tr:not([hidden])').length === 3")
    page.fill("#search", "CYCLES 1,250")
    assert rows.count() == 1
    page.fill("#search", "")
    for choice, count in (("open", 3), ("regression", 2), ("same code", 1), ("improvement", 0)):
        page.select_option("[data-filter=state]", choice)
        assert rows.count() == count, choice


def test_filters_are_part_of_the_address(site, visit):
    window = visit()
    page = window.go(site, "index.html", "#q=cycles&device=model")
    assert page.input_value("#search") == "cycles" and page.input_value("[data-filter=device]") == "model"
    assert page.locator("table.events tbody tr:visible").count() == 1
    page.fill("#search", "assign")
    until(page, "location.hash.includes('q=assign')")


def test_states_filter_with_one_click(tmp_path_factory, visit):
    place = page_history.plain(tmp_path_factory.mktemp("wrong"), length=4, factor=1.0, wrong="wrong result")
    build.build(place.results, place.repo, place.root / "site", cache=None)
    page = visit().go(place.root / "site", "index.html")
    assert "✗ 1 case of kernels failing" in page.inner_text(".verdict")
    page.click("button[data-pick='wrong result']:enabled")
    assert page.input_value("[data-filter=state]") == "wrong result"
    assert page.locator("td:has-text('expected 9')").first.is_visible()


def test_keyboard(site, visit):
    page = visit().go(site, "index.html")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("cycles")
    page.keyboard.press("Escape")
    until(page, "document.getElementById('search').value === ''")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.innerText")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.tagName") == "TR"
    assert page.evaluate("document.activeElement.innerText") != first
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/event/*.html")
    until(page, f"{READY} === 'charts'")
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_url("**/health.html")


def test_every_control_has_a_name(site, visit):
    window = visit()
    for name in names(site):
        page = window.go(site, name)
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("main select, main input, main button, main a")].filter((one) =>
                !(one.getAttribute("aria-label") || one.textContent.trim() || one.closest("label"))).length"""
        )
        assert unnamed == 0, name


def chart(page, place: str) -> list[list[float]]:
    return page.evaluate(f"document.getElementById('{place}').data.filter((one) => one.meta).map((one) => one.y)")


def test_chart_shows_the_numbers(site, visit):
    page = visit().go(site, KERNEL)
    own, twin = chart(page, "chart-modelled")
    jump = page_history.JUMP
    assert own == [1000] * jump + [1250] * (page_history.LENGTH - jump)
    assert twin == [2000] * page_history.LENGTH
    title = page.evaluate("document.getElementById('chart-modelled').layout.yaxis.title.text")
    assert title == "cycles (modelled)<br>lower is better"
    assert page.evaluate("document.getElementById('chart-measured').layout.yaxis.title.text").startswith(
        "device_time, us (measured)"
    )
    page.select_option("[data-control=case][data-kind=modelled]", "large")
    until(page, "document.getElementById('chart-modelled').data[0].y[0] === 4000")
    page.uncheck("[data-control=twins][data-kind=modelled]")
    until(page, "document.getElementById('chart-modelled').data.filter((one) => one.meta).length === 1")
    until(page, "location.hash.includes('case=large')")


def test_a_run_whose_device_was_disturbed_is_ringed_and_says_why(tmp_path, visit):
    hashes = [f"{at:08x}" + "ab" * 16 for at in range(1, 9)]
    mark = "slowed down: <b>power cap</b>"
    measured_runs.write(tmp_path / "results", hashes, seed=1, marks={5: [mark]})
    build.build(tmp_path / "results", None, tmp_path / "site", cache=None)
    [name, *_] = [path for path in names(tmp_path / "site") if path.startswith("kernel/")]
    page = visit().go(tmp_path / "site", name)
    ringed = "document.getElementById('chart-measured').data.find((one) => one.name === 'device disturbed')"
    assert set(page.evaluate(f"{ringed}.x")) == {5}
    assert set(page.evaluate(f"{ringed}.y")) <= {line[5] for line in chart(page, "chart-measured")}
    page.evaluate(
        f"(() => {{ const ring = {ringed}; document.getElementById('chart-measured').emit('plotly_hover',"
        "{points: [{x: ring.x[0], y: ring.y[0], customdata: ring.customdata[0], data: ring}]}); })()"
    )
    until(page, "document.getElementById('point-measured').textContent.includes('not to be trusted alone')")
    assert mark in page.inner_text("#point-measured")


def test_links_to_a_case_and_metric_hold(site, visit):
    page = visit().go(site, KERNEL, "#kind=modelled&case=large&metric=ub_bytes")
    assert chart(page, "chart-modelled")[0][0] == 8192
    assert page.input_value("[data-control=case][data-kind=modelled]") == "large"
    # the other chart keeps its own choice
    assert page.input_value("[data-control=metric][data-kind=measured]") == "device_time"
    assert page.locator("[data-twins=ub_bytes]").first.is_visible()
    assert not page.locator("[data-twins=cycles]").first.is_visible()


def test_hovering_tells_commit_and_interval(site, visit):
    page = visit().go(site, KERNEL)
    page.evaluate("document.getElementById('chart-measured').scrollIntoView()")
    box = page.locator("#chart-measured .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.9)
    until(page, "document.getElementById('point-measured').textContent.includes('Commit number')")
    assert "99 %, 9 samples" in page.inner_text("#point-measured")


NAMES_OF_COMMITS = """() => [...document.querySelectorAll("#chart-modelled .xtick text")].map((one) => {
  const box = one.getBoundingClientRect();
  return [one.textContent, box.left, box.right];
})"""


def test_names_of_commits_fit_beside_each_other_at_any_width(example_site, visit):
    window = visit(1280)
    page = window.go(example_site, "kernel/token_pool.assign_req_to_token_pool.html")

    def shown() -> list[str]:
        names = page.evaluate(NAMES_OF_COMMITS)
        assert all(right + 4 < left for (_, _, right), (_, left, _) in itertools.pairwise(names)), names
        return [name for name, _, _ in names]

    wide = shown()
    assert len(wide) > 7 and wide[-1] == "985f4ed4"
    page.set_viewport_size({"width": 390, "height": 900})
    until(page, f"document.querySelectorAll('#chart-modelled .xtick').length < {len(wide)}")
    narrow = shown()
    assert len(narrow) > 3
    assert narrow[0] == "b4333f99" and narrow[-1] == "985f4ed4"
    # of a few commits each has its name
    page.evaluate("Plotly.relayout('chart-modelled', {'xaxis.range': [-0.5, 2.4]})")
    until(page, "document.querySelectorAll('#chart-modelled .xtick').length === 3")
    assert shown() == ["b4333f99", "07a40ee6", "57bcad7e"]


@pytest.mark.parametrize("width", (390, 1280))
def test_legend_lies_whole_below_the_axis(example_site, visit, width):
    page = visit(width).go(example_site, "kernel/token_pool.assign_req_to_token_pool.html")
    chart, title, legend = (
        page.locator(f"#chart-modelled{part}").bounding_box() for part in ("", " .xtitle", " .legend .bg")
    )
    names = page.locator("#chart-modelled .legend .traces")
    last = names.last.bounding_box()
    assert names.count() == 11
    assert title["y"] + title["height"] <= legend["y"]
    assert last["y"] + last["height"] <= legend["y"] + legend["height"] <= chart["y"] + chart["height"] + 1


@pytest.mark.parametrize("width", (390, 1280))
def test_a_table_that_goes_on_shows_it_at_its_edge(example_site, visit, width):
    page = visit(width).go(example_site, "kernel/token_pool.assign_req_to_token_pool.html")
    table = page.locator("[data-twins=cycles]")
    table.scroll_into_view_if_needed()
    assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")

    def edges() -> tuple[bytes, bytes]:
        """The left and right 12 pixels beside the caption, where there is no text."""
        box = table.bounding_box()
        clips = [
            {"x": x, "y": box["y"] + 1, "width": 12, "height": 6} for x in (box["x"], box["x"] + box["width"] - 12)
        ]
        return tuple(page.screenshot(clip=one) for one in clips)

    start = edges()
    table.evaluate("(one) => { one.scrollLeft = 1e6; }")
    end = edges()
    assert start[0] == end[1] and start[1] != start[0] != end[0]


def test_event_chart(site, visit):
    window = visit()
    for path in sorted((site / "event").glob("*.html")):
        page = window.go(site, f"event/{path.name}")
        assert page.locator("#chart-event svg.main-svg").count() > 0
        assert len(chart(page, "chart-event")) == 2


def test_heat_map_follows_its_baseline(site, visit):
    page = visit().go(site, "index.html")
    cell = "table.heat[data-kind=modelled] .cell[data-case=small] b"
    assert page.inner_text(cell) == "▲+25.0 %"
    newest = page.locator("section:has(table.heat[data-kind=modelled]) [data-heat=base] option").first
    page.select_option(
        "section:has(table.heat[data-kind=modelled]) [data-heat=base]", newest.get_attribute("value")
    )
    assert page.inner_text(cell) == "="
    page.click("table.heat[data-kind=modelled] .cell[data-case=large]")
    until(page, f"{READY} === 'charts'")
    assert page.input_value("[data-control=case][data-kind=modelled]") == "large"


def test_heat_map_names_the_state_of_a_baseline_that_was_not_ok(tmp_path, visit):
    place = page_history.once_wrong(tmp_path)
    build.build(place.results, place.repo, tmp_path / "site", cache=None)
    page = visit().go(tmp_path / "site", "index.html")
    cells = page.locator("table.heat .cell")
    before = cells.all_inner_texts()
    assert {"gap\nwas wrong", "late\nnew", "zero\n▲from 0"} < set(before)
    title = page.locator(".cell[data-case=gap]").get_attribute("title")
    chosen = page.locator("[data-heat=base]")
    chosen.select_option("1")
    assert {one.split("\n")[1] for one in cells.all_inner_texts()} == {"="}
    chosen.select_option("0")
    assert cells.all_inner_texts() == before
    assert page.locator(".cell[data-case=gap]").get_attribute("title").startswith("gap: wrong result → 7")
    assert title == "gap: wrong result → 7 cycles"


def test_heat_map_of_each_machine_shows_its_own_newest_commit(example_site, visit):
    """The example holds two machines, and neither measured the newest commit of the other."""
    page = visit().go(example_site, "index.html")
    for kind in ("measured", "modelled"):
        section = f"section:has(table.heat[data-kind={kind}])"
        cells = page.locator(f"table.heat[data-kind={kind}] .cell b")
        before = cells.all_inner_texts()
        chosen = page.locator(f"{section} [data-heat=base]")
        base = chosen.input_value()
        newest = page.get_attribute(f"table.heat[data-kind={kind}]", "data-newest")
        own = page.locator(f"{section} [data-heat=base] option", has_text=newest).get_attribute("value")
        chosen.select_option(own)
        assert set(cells.all_inner_texts()) <= {"=", "·"}  # the newest commit against itself
        chosen.select_option(base)
        assert cells.all_inner_texts() == before


def test_compare(site, visit):
    page = visit().go(site, "compare.html")
    # cycles, unified buffer and bytes in and out of two cases
    assert page.inner_text("#compared") == "Nothing differs in 8 series."
    page.select_option("[data-side=A][data-what=commit]", "0")
    page.wait_for_selector("#compared tbody tr")
    rows = page.locator("#compared tbody tr").all_inner_texts()
    assert any(
        "small\tderived\tcycles, lower is better\t1,000 cycles\t1,250 cycles\t+25.0 %" in one for one in rows
    )
    assert all("carried" not in one for one in rows)
    assert page.locator("#compared section.modelled").count() == 1
    again = page.url
    page.goto("about:blank")
    page.goto(again)
    page.wait_for_selector("#compared tbody tr")
    assert page.input_value("[data-side=A][data-what=commit]") == "0"


def test_compare_opens_with_commits_that_can_be_compared_and_says_when_others_cannot(example_site, visit):
    """The newest commits of the example have measured results alone."""
    page = visit().go(example_site, "compare.html")
    assert page.input_value("[data-side=B][data-what=machine]") == "modelled-ascend910b1"
    page.wait_for_selector("#compared tbody tr")
    assert page.inner_text("#match-count").endswith("224 series compared")
    newest = page.locator("[data-side=B][data-what=commit] option").first
    assert newest.inner_text().endswith("(no results here)")
    page.select_option("[data-side=B][data-what=commit]", newest.get_attribute("value"))
    until(page, "document.getElementById('match-count').textContent === 'nothing compared'")
    said = page.inner_text("#compared")
    assert "Nothing could be compared. B: 985f4ed43d has no results on modelled-ascend910b1" in said
    assert "the newest commit that has some is 9639bd7022" in said and "A:" not in said
    # another machine brings its own environment along
    page.select_option("[data-side=B][data-what=machine]", "nvidia-h200")
    until(page, "document.querySelector('[data-side=B][data-what=env]').value.includes('triton 3.6.0')")
    until(page, "document.getElementById('compared').textContent.includes('has a value on both sides')")


@pytest.mark.parametrize("width", (390, 1280))
def test_words_of_labels_stay_whole(site, visit, width):
    page = visit(width).go(site, "compare.html")
    lines = page.evaluate(
        """() => [...document.querySelectorAll("main label")].map((label) => {
            const words = [...label.childNodes].find((node) => node.nodeType === 3);
            const range = document.createRange();
            range.selectNodeContents(words);
            return [words.data, range.getClientRects().length];
        })"""
    )
    assert len(lines) == 8 and [word for word, count in lines if count > 1 and " " not in word.strip()] == []


def test_themes(site, visit):
    light, dark = (
        visit(color_scheme="light").go(site, "index.html"),
        visit(color_scheme="dark").go(site, "index.html"),
    )
    background = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(background) == "rgb(255, 255, 255)" != dark.evaluate(background)
    light.keyboard.press("t")
    light.keyboard.press("t")
    assert light.evaluate(background) == dark.evaluate(background)
    assert light.get_attribute("html", "data-theme") == "dark"


CONTRAST = """() => {
  const parse = (text) => {
    const found = text.match(/[\\d.]+/g).map(Number);
    return found.length > 3 && found[3] === 0 ? null : found;
  };
  const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !one.offsetParent || one.matches(":disabled, :disabled *, svg *, .cell.fails *")) continue;
    const a = light(parse(getComputedStyle(one).color) || [0, 0, 0]), b = light(behind(one));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([one.tagName, one.className, ratio.toFixed(2), one.textContent.slice(0, 30)].join());
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(site, visit, scheme):
    window = visit(color_scheme=scheme)
    for name in ("index.html", KERNEL, "health.html", "compilers.html"):
        assert window.go(site, name).evaluate(CONTRAST) == [], name


def test_print_leaves_the_controls_out(site, visit):
    page = visit().go(site, "index.html")
    page.emulate_media(media="print")
    assert not page.locator("header").is_visible() and not page.locator(".filters").is_visible()
    assert page.locator(".verdict").is_visible()


def test_pages_tell_their_story_without_scripts(site, visit):
    window = visit(java_script_enabled=False)
    window.page.goto((site / KERNEL).as_uri())
    assert window.page.locator(".spark").first.is_visible()
    assert "×1.60" in window.page.inner_text("main")

"""The page of `ascend-perf model --html` in a real browser: no error, no request, zoom, a line lit, two widths."""

from __future__ import annotations

import shutil

import pytest

from dashboards import cli

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.compiler,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def before(x, out, n, BLOCK: tl.constexpr):
    for i in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < n  # </td><script>document.title = "broken"</script>
        tl.store(out + offset, tl.exp(tl.load(x + offset, mask=mask)), mask=mask)

@triton.jit
def after(x, out, n, BLOCK: tl.constexpr):
    for i in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + offset, tl.exp(tl.load(x + offset, mask=n > offset)), mask=n > offset)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    file, page = folder / "browser_kernels.py", folder / "report.html"
    file.write_text(KERNELS)
    arguments = ["--arg", "x=f32[8192]", "--arg", "out=f32[8192]", "--arg", "n=8000", "--const", "BLOCK=512"]
    what = [
        "model",
        f"{file}:after",
        "--against",
        f"{file}:before",
        *arguments,
        "--grid",
        "2",
        "--html",
        str(page),
    ]
    assert cli.main(what) == 0
    return page


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_works(browser, report, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert page.title() == "before → after · ascend-perf"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [one for one in asked if not one.startswith("data:")] == [report.as_uri()]
    figure = page.locator("figure.timeline").first
    canvas = figure.locator("canvas")
    assert canvas.is_visible() and not figure.locator(".window").is_visible()
    drawn = (
        "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.some(v => v) }"
    )
    assert canvas.evaluate(drawn)
    # Zooming in shows where in the strip one is, and what is under the pointer is named and lit in the source.
    canvas.press("+")
    assert figure.locator(".window").is_visible()
    canvas.press("0")
    assert not figure.locator(".window").is_visible()
    box = canvas.bounding_box()
    for step in range(1, 200):
        canvas.hover(position={"x": 48 + step * (box["width"] - 60) / 200, "y": 22 + 40 + 15})
        if figure.locator(".told").inner_text().startswith("V "):
            break
    said = figure.locator(".told").inner_text()
    assert said.startswith("V v") and "browser_kernels.py:" in said
    line = said.partition("browser_kernels.py:")[2].partition(":")[0]
    lit = page.locator("tr.lit")
    assert lit.count() >= 1
    assert lit.first.get_attribute("data-place") == f"browser_kernels.py:{line}"
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert not wrong
    page.close()

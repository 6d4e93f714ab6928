"""Which files a row depends on: every edit that can change a number changes the digest, no other one does."""

import importlib
import itertools
import sys

import pytest

from ascend_kernels.harness import sources
from ascend_kernels.harness.spec import Case, Op
from ascend_kernels.registry import OPS

NAMES = itertools.count()
FILES = {
    "__init__.py": "",
    "family/__init__.py": "",
    "family/op.py": "from . import plan\nfrom ..shared import helper\ndef call(**_):\n    helper.double(1)\n",
    "family/plan.py": "GRID = 48\n",
    "family/rows.py": "TOLERANCE = 0\n",
    "family/reference.py": "def reference(**_):\n    from {package}.late import find\n    return find()\n",
    "shared/__init__.py": "",
    "shared/helper.py": "from .deep import two\n\ndef double(x):\n    return two * x\n",
    "shared/deep.py": "two = 2\n",
    "late.py": "def find():\n    return 2\n",
    "other/__init__.py": "",
    "other/unrelated.py": "x = 1\n",
    "cases.py": "def make(generator):\n    return dict()\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of its own for every test, and its op's digest read afresh."""
    name = f"outside{next(NAMES)}"
    for file, text in FILES.items():
        place = tmp_path / name / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("{package}", name))
    monkeypatch.syspath_prepend(tmp_path)

    def digest():
        for function in (sources._file, sources._package, sources.imports):
            function.cache_clear()
        modules = [importlib.import_module(f"{name}.{one}") for one in ("family.op", "family.reference", "cases")]
        op = Op("op", "family", modules[0].call, modules[1].reference, {"one": Case(modules[2].make)})
        return sources.digest(op)

    yield tmp_path / name, digest
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


@pytest.mark.parametrize(
    "file",
    ["family/op.py", "family/plan.py", "family/rows.py", "family/reference.py", "shared/helper.py",
     "shared/deep.py", "late.py", "cases.py"],
)  # fmt: skip
def test_an_edit_of_what_it_is_made_of_is_seen(package, file):
    root, digest = package
    before = digest()
    (root / file).write_text((root / file).read_text() + "# edited\n")
    assert digest() != before


def test_an_edit_elsewhere_is_not(package):
    root, digest = package
    before = digest()
    (root / "other/unrelated.py").write_text("x = 2\n")
    assert digest() == before


def test_a_function_held_by_another_one_counts(package):
    root, digest = package
    digest()
    inner = importlib.import_module(f"{root.name}.other.unrelated")
    exec("def job():\n    return 1\n", inner.__dict__)
    inner.job.__module__ = inner.__name__
    held = inner.job

    def call(**_):
        return held()

    op = Op("op", "family", call, call, {})
    assert inner.__name__ in set(sources.modules_of(op))


def test_the_instrument_counts(package, monkeypatch):
    _, digest = package
    before = digest()
    monkeypatch.setattr(sources, "INSTRUMENT", ("ascend_kernels.harness",))
    assert digest() != before


@pytest.mark.parametrize("name", ["padded_gather", "decode_step"])
def test_families_of_this_project(name):
    found = sources.closure(set(sources.modules_of(OPS[name])), set())
    family = "ascend_kernels.padded_moe" if name == "padded_gather" else "ascend_kernels.eagle"
    for part in ("plan", "reference", "cases", "ops"):
        assert f"{family}.{part}" in found
    assert "ascend_kernels.harness.launch" in found
    assert not any(one.startswith(("torch", "triton", "numpy")) for one in found)
    assert "ascend_kernels.kpool.plan" not in found


def test_packages_that_an_environment_inherits_are_libraries(tmp_path, monkeypatch):
    """asv's environments see the host's site-packages, which are not their own."""
    place = tmp_path / "host" / "site-packages"
    place.mkdir(parents=True)
    (place / "inherited_one.py").write_text("")
    monkeypatch.syspath_prepend(str(place))
    sources._libraries.cache_clear()
    try:
        assert sources.is_library("inherited_one", set())
        assert not sources.is_library("inherited_one", {"inherited_one"})
    finally:
        sources._libraries.cache_clear()
        sources._file.cache_clear()


def test_a_package_that_raises_when_it_is_imported_is_no_file(tmp_path, monkeypatch):
    (tmp_path / "raising_one").mkdir()
    (tmp_path / "raising_one" / "__init__.py").write_text("raise RuntimeError('0 active drivers')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources._file("raising_one.part") is None

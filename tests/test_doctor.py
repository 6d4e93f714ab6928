"""The doctor: a set-up that is whole, every fault planted in it, and fake modules and programs end to end."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_programs as fake
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards import cli, doctor
from dashboards.doctor import MISSING, OK, WRONG, Host, examine, modes

ROOT = Path(__file__).parent.parent
BASE = {
    "torch": "2.7.1",
    "numpy": "2.1",
    "ml_dtypes": "0.5",
    "xxhash": "3.5",
    "asv": "0.6.6",
    "asv_runner": "0.3.2",
    "plotly": "6",
    "rich": "14",
}
MODEL = Host(
    distributions={**BASE, "triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "pybind11": "3"},
    programs={"git": "/usr/bin/git", "chromium": "/usr/bin/chromium"},
    compilers=("1.1.0", "1.2.0"),
    cache="/cache",
    free_bytes=100 << 30,
    probe={"torch": "2.7.1", "cuda": None, "kind": "cpu", "errors": {}, "triton": "3.2.0 in /x"},
)
DEVICE = {
    "device": {"name": "NVIDIA H200", "cores": 132},
    "adds": True,
    "events": True,
    "memory": [99, 100],
    "state": {"driver": "580.1", "clock_mhz": 1980.0, "persistence": "Enabled", "ecc": "Enabled"},
}
GPU = replace(
    MODEL,
    distributions={**BASE, "triton": "3.6.0"},
    programs={**MODEL.programs, "nvidia-smi": "/bin/nvidia-smi", "compute-sanitizer": "/bin/compute-sanitizer"},
    compilers=(),
    probe={**MODEL.probe, **DEVICE, "cuda": "13.0", "kind": "cuda"},
)
NPU = replace(
    MODEL,
    distributions={**MODEL.distributions, "torch_npu": "2.7.1.post1"},
    programs={**MODEL.programs, "npu-smi": "/bin/npu-smi"},
    cann="/usr/local/Ascend/ascend-toolkit/latest",
    devices=("davinci0",),
    probe={
        **MODEL.probe,
        **DEVICE,
        "kind": "npu",
        "device": {"name": "Ascend910B1", "cores": 48},
        "profiler": True,
    },
)


@pytest.mark.parametrize("host, works", [(MODEL, ["model"]), (GPU, ["gpu"]), (NPU, ["model", "npu"])])
def test_a_set_up_that_is_whole(host, works):
    checks = examine(host)
    assert modes(checks) == works
    for one in checks:
        if one.mode in (*works, "all"):
            assert (one.state, one.advice) == (OK, ""), one


def without(table, *names):
    return {name: value for name, value in table.items() if name not in names}


def probing(host, **changes):
    return {"probe": {**host.probe, **changes}}


def state(host, **changes):
    return probing(host, state={**host.probe["state"], **changes})


FAULTS = [
    # host, changes, mode, check, state, words in what was found or in the advice, whether the mode still works
    (MODEL, {"programs": {}}, "all", "git", MISSING, "Install git", False),
    (MODEL, {"distributions": without(MODEL.distributions, "asv")}, "all", "asv", MISSING, "brings asv", False),
    (MODEL, {"distributions": {**MODEL.distributions, "asv": "0.7"}}, "all", "asv", WRONG, "with 0.6", False),
    (MODEL, {"free_bytes": 1 << 20}, "all", "disk space", WRONG, "ASCEND_PERF_CACHE", False),
    (MODEL, {"cache_writable": False}, "all", "cache folder", WRONG, "cannot be written", False),
    (MODEL, {"python": (3, 9)}, "all", "python", WRONG, "3.10 or newer", False),
    (MODEL, {"programs": {"git": "g"}}, "all", "chromium", MISSING, "tests of the pages", True),
    (MODEL, {"python": (3, 12)}, "model", "python", WRONG, "3.10 and 3.11 only", False),
    (
        MODEL,
        {"distributions": {**MODEL.distributions, "triton": "3.6.0"}},
        "model", "triton-ascend", WRONG, "overwrite each other", False,
    ),
    (
        MODEL,
        probing(MODEL, errors={"triton": "ImportError: no module triton._C"}),
        "model", "triton-ascend", WRONG, "no module triton._C", False,
    ),
    (MODEL, {"compilers": ()}, "model", "ascendnpu-ir", MISSING, "ascendnpu-ir==1.2.0", False),
    (MODEL, {"compiler_runs": "not found: libc"}, "model", "bishengir-compile", WRONG, "libc", False),
    (
        MODEL,
        {"distributions": without(MODEL.distributions, "pybind11")},
        "model", "pybind11", MISSING, "pip install pybind11", False,
    ),
    (GPU, {**probing(GPU, cuda=None)}, "gpu", "torch built for CUDA", MISSING, "CPU build", False),
    (
        GPU,
        {"distributions": {**BASE, "triton-ascend": "3.2.0"}},
        "gpu", "triton", MISSING, "another environment", False,
    ),
    (
        GPU,
        {"distributions": {**GPU.distributions, "triton-ascend": "3.2.0"}},
        "gpu", "triton", WRONG, "overwrite each other", False,
    ),
    (
        GPU,
        {"programs": without(GPU.programs, "nvidia-smi"), **state(GPU, driver="")},
        "gpu", "driver (nvidia-smi)", MISSING, "NVIDIA's driver", False,
    ),
    (GPU, {"probe": {"error": "killed"}}, "gpu", "device in torch", MISSING, "killed", False),
    (
        GPU,
        probing(GPU, device=None, errors={"device": "RuntimeError: CUDA error 999"}),
        "gpu", "device in torch", WRONG, "CUDA error 999", False,
    ),
    (
        GPU,
        {"environment": {"ASCEND_KERNELS_DEVICE": "cpu"}, **probing(GPU, kind="cpu")},
        "gpu", "device in torch", WRONG, "Unset ASCEND_KERNELS_DEVICE", False,
    ),
    (
        GPU,
        probing(GPU, events=None, errors={"events": "TimingError: no timing events"}),
        "gpu", "timing events", WRONG, "no timing events", False,
    ),
    (GPU, probing(GPU, adds=False), "gpu", "runs a kernel", WRONG, "1 + 1 is not 2", False),
    (
        GPU,
        state(GPU, others=[{"pid": 7, "name": "train.py"}]),
        "gpu", "no other process", WRONG, "7 (train.py)", True,
    ),
    (GPU, probing(GPU, memory=[10, 100]), "gpu", "free memory", WRONG, "10%", True),
    (GPU, state(GPU, slowed=["software power cap"]), "gpu", "clock", WRONG, "software power cap", True),
    (GPU, state(GPU, clock_mhz=None), "gpu", "clock", MISSING, "cannot be marked", True),
    (GPU, state(GPU, persistence="Disabled"), "gpu", "persistence mode", WRONG, "nvidia-smi -pm 1", True),
    (GPU, state(GPU, ecc=""), "gpu", "ECC", MISSING, "keep it the same", True),
    (
        GPU,
        {"programs": without(GPU.programs, "compute-sanitizer")},
        "gpu", "compute-sanitizer", MISSING, "CUDA toolkit", True,
    ),
    (
        NPU,
        {"programs": without(NPU.programs, "npu-smi"), **state(NPU, driver="")},
        "npu", "driver (npu-smi)", MISSING, "Ascend driver", False,
    ),
    (NPU, {"devices": ()}, "npu", "/dev/davinci*", MISSING, "--device /dev/davinci0", False),
    (NPU, {"cann": ""}, "npu", "CANN toolkit", MISSING, "set_env.sh", False),
    (NPU, {"cann": "/gone (no such folder)"}, "npu", "CANN toolkit", WRONG, "set_env.sh", False),
    (
        NPU,
        {"distributions": without(NPU.distributions, "torch_npu")},
        "npu", "torch_npu", MISSING, "release for torch 2.7", False,
    ),
    (
        NPU,
        {"distributions": {**NPU.distributions, "torch_npu": "2.6.0"}},
        "npu", "torch_npu", WRONG, "made for torch 2.6", False,
    ),
    (
        NPU,
        {"environment": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}},
        "npu", "backend autoload", WRONG, "unset TORCH_DEVICE_BACKEND_AUTOLOAD", False,
    ),
    (
        NPU,
        {"distributions": {**NPU.distributions, "triton": "3.6.0"}},
        "npu", "triton-ascend", WRONG, "overwrite each other", False,
    ),
    (
        NPU,
        probing(NPU, device={"name": "Ascend910B1", "cores": 0}),
        "npu", "vector cores", MISSING, "Update torch_npu", False,
    ),
    (
        NPU,
        probing(NPU, profiler=None, errors={"profiler": "AttributeError: torch_npu.profiler has no profile"}),
        "npu", "profiler", WRONG, "has no profile", True,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "host, changes, mode, name, bad, words, works", FAULTS, ids=lambda v: v if type(v) is str else ""
)
def test_a_planted_fault_is_named_with_what_to_do(host, changes, mode, name, bad, words, works):
    checks = examine(replace(host, **changes))
    [one] = [one for one in checks if (one.mode, one.name) == (mode, name)]
    assert one.state == bad and words in f"{one.found} {one.advice}"
    assert one.advice.rstrip("`)").endswith(".") and "\n" not in one.advice
    before = modes(examine(host))
    lost = before if mode == "all" else [mode, "model"] if name == "triton-ascend" else [mode]
    assert modes(checks) == (before if works else [one for one in before if one not in lost])


def test_every_check_that_a_whole_set_up_has_is_planted():
    planted = {(mode, name) for _, _, mode, name, *_ in FAULTS}
    seen = {(one.mode, one.name) for host in (MODEL, GPU, NPU) for one in examine(host)}
    same_code = {(mode, name) for mode in ("gpu", "npu") for name in (
        "device in torch", "runs a kernel", "timing events", "no other process", "free memory", "clock",
        "multiprocessors", "vector cores",
    )}  # fmt: skip
    plain = {("all", name) for name in ("torch", "numpy", "ml_dtypes", "xxhash", "rich", "plotly")} | {
        ("npu", "ascendnpu-ir")
    }
    assert seen - planted - same_code - plain == set()


@given(
    st.sampled_from([MODEL, GPU, NPU]),
    st.dictionaries(st.sampled_from(["kind", "errors", "device", "state", "memory", "events", "adds"]), st.none()),
    st.sets(st.sampled_from([*NPU.distributions, "triton"])),
)
def test_whatever_is_gone_no_mode_works_with_a_needed_check_that_is_not_ok(host, gone, dists):
    probe = {name: value for name, value in host.probe.items() if name not in gone}
    host = replace(host, probe=probe, distributions=without(host.distributions, *dists))
    checks = examine(host)
    for mode in modes(checks):
        assert all(one.state == OK for one in checks if one.mode in (mode, "all") and one.needed)
    assert all(one.advice for one in checks if one.state != OK)


# ---- end to end


@pytest.fixture
def npu_host(tmp_path, monkeypatch):
    """A host that looks as if it had an NPU: modules, distributions, programs, /dev, CANN."""
    site = tmp_path / "site"
    site.mkdir()
    for name, version in (("torch_npu", "2.13.0"),):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    # What torch's own loading of backends does on an NPU host.
    (site / "sitecustomize.py").write_text("import torch_npu\n")
    fake.npu_smi(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    monkeypatch.setattr(doctor, "DEV", tmp_path / "dev")
    (tmp_path / "cann").mkdir()
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "cann"))
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    monkeypatch.setenv("FAKE_NPU", json.dumps({"adds": 1}))
    sys.modules.pop("torch_npu", None)
    return tmp_path


def found(capsys, *arguments):
    code = cli.main(["doctor", "--json", *arguments])
    said = json.loads(capsys.readouterr().out)
    return code, said["works"], {(one["mode"], one["name"]): one for one in said["checks"]}


@pytest.mark.compiler
def test_a_whole_npu_host_end_to_end(npu_host, capsys):
    code, works, checks = found(capsys, "--mode", "npu")
    npu = {name: one["state"] for (mode, name), one in checks.items() if mode == "npu"}
    assert code == 0 and "npu" in works, checks
    assert set(npu.values()) <= {OK}, npu
    assert checks["npu", "vector cores"]["found"] == "48" and checks["npu", "clock"]["found"] == "1650 MHz"
    assert checks["npu", "driver (npu-smi)"]["found"] == "24.1.rc2"


@pytest.mark.compiler
@pytest.mark.parametrize(
    "said, name, words",
    [
        ({"adds": 1, "events": False}, "timing events", "EE9999"),
        ({"adds": 1, "init": "EL0005: the device is busy"}, "device in torch", "EL0005"),
        ({"adds": 1, "available": False}, "device in torch", ""),
    ],
)
def test_an_ill_npu_end_to_end(npu_host, capsys, monkeypatch, said, name, words):
    monkeypatch.setenv("FAKE_NPU", json.dumps(said))
    code, works, checks = found(capsys, "--mode", "npu")
    assert code == 1 and "npu" not in works
    assert checks["npu", name]["state"] != OK and words in checks["npu", name]["found"]


@pytest.fixture
def without_ml_dtypes(monkeypatch):
    """A Python without a package that the model needs."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ascend_model", "ml_dtypes")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dashboards.run", raising=False)
    real = importlib.metadata.version

    def version(name):
        if name == "ml_dtypes":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_package_of_ours_that_is_missing_is_named(without_ml_dtypes, capsys):
    code, works, checks = found(capsys)
    assert code == 1 and works == []
    assert checks["all", "ml_dtypes"]["state"] == MISSING and "pip install" in checks["all", "ml_dtypes"]["advice"]


@pytest.mark.parametrize(
    ("package", "arguments", "code", "words"),
    [
        ("rich", ["doctor", "--mode", "gpu"], 1, "NVIDIA GPU: does not work"),
        ("ml_dtypes", ["run", "--help"], 4, "has no package ml_dtypes; see `ascend-perf doctor`"),
        ("torch", ["model", "--list"], 4, "has no package torch; see `ascend-perf doctor`"),
    ],
)
def test_without_a_package_a_command_works_or_says_so(package, arguments, code, words):
    script = f"import sys\nsys.modules[{package!r}] = None\nfrom dashboards.cli import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code and words in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_this_host_without_a_device(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(doctor, "DEV", tmp_path)
    code = cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "NVIDIA GPU: does not work" in out and "Ascend NPU: does not work" in out
    assert code == (0 if "works here: model" in out else 1)

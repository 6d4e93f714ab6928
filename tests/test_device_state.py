"""State of a device, from programs that say what drivers say."""

import os

import fake_programs as fake
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_kernels.harness import state
from ascend_kernels.harness.state import DeviceState, Process, marks


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    return tmp_path / "bin"


@pytest.mark.parametrize("old", [False, True], ids=["new driver", "old driver"])
def test_gpu(path, old):
    fake.nvidia_smi(path, reasons="0x0000000000000024", old=old)
    found = state.read_gpu()
    assert (found.name, found.driver) == ("NVIDIA H200", "580.159.03")
    assert (found.clock_mhz, found.memory_clock_mhz, found.temperature_c) == (1980, 3201, 41)
    assert (found.power_w, found.power_limit_w) == (120.5, 700)
    assert (found.persistence, found.ecc) == ("Enabled", "Enabled")
    assert found.slowed == ("software power cap", "software thermal slowdown")
    assert found.others == () and found.problem == ""


def test_gpu_that_does_not_say_everything(path):
    fake.nvidia_smi(path, row="NVIDIA H200, 580.1, [N/A], [Not Supported], 41, N/A, 700, [N/A], Enabled")
    found = state.read_gpu()
    assert found.clock_mhz is None and found.memory_clock_mhz is None and found.power_w is None
    assert found.persistence == "" and found.power_limit_w == 700
    assert "clock_mhz" not in found.as_dict() and found.as_dict()["temperature_c"] == 41


@pytest.mark.parametrize("reasons", ["0x0000000000000001", "0x0000000000000102", "0x10", "[N/A]"])
def test_an_idle_clock_and_settings_are_no_throttling(path, reasons):
    fake.nvidia_smi(path, reasons=reasons)
    assert state.read_gpu().slowed == ()


def test_other_processes_of_a_gpu(path):
    fake.nvidia_smi(path, apps=f"{os.getpid()}, python, 300\\n{os.getppid()}, pytest, 10\\n1, a\\tb, [N/A]\\n")
    assert [(one.pid, one.memory_mib) for one in state.read_gpu().others] == [(1, None)]


def test_a_single_process_of_another_numbering_is_our_own(path):
    fake.nvidia_smi(path, apps="99999999, python, 300\\n")
    assert state.read_gpu().others == ()
    fake.nvidia_smi(path, apps="99999999, python, 300\\n99999998, other, 300\\n")
    assert len(state.read_gpu().others) == 2


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: None, "nvidia-smi is not on PATH"),
        (lambda path: fake.nvidia_smi(path, broken="No devices were found"), "No devices were found"),
        (lambda path: fake.nvidia_smi(path, row="something else"), "answered in another form"),
    ],
)
def test_gpu_without_an_answer(path, monkeypatch, make, words):
    make(path)
    monkeypatch.setenv("PATH", str(path) + (":/bin" if path.exists() else ""))
    found = state.read_gpu()
    assert words in found.problem and found.name == ""


def test_an_answer_that_never_comes(path, monkeypatch):
    fake.program(path, "nvidia-smi", "#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(state, "SECONDS", 0.2)
    assert "gave no answer" in state.read_gpu().problem


def test_npu(path, monkeypatch, tmp_path):
    fake.npu_smi(path)
    (tmp_path / "8.2.RC1").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "8.2.RC1")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "latest"))
    found = state.read_npu()
    assert (found.name, found.driver, found.toolkit) == ("910B1", "24.1.rc2", "8.2.RC1")
    assert (found.clock_mhz, found.temperature_c, found.power_w) == (1650, 36, 93.4)
    assert found.slowed == () and found.others == () and found.problem == ""
    assert state.read_npu("1").temperature_c == 38
    assert "lists no NPU 7" in state.read_npu("7").problem


def test_npu_that_is_ill_and_in_use(path):
    fake.npu_smi(path, health="Alarm", processes=fake.NPU_BUSY)
    found = state.read_npu()
    assert found.slowed == ("health Alarm",)
    assert found.others == (Process(1, "python3", 1204),)


@pytest.mark.parametrize(
    "before, after, words",
    [
        ({}, {}, ()),
        ({"clock_mhz": 1980.0}, {"clock_mhz": 1965.0}, ()),
        ({"clock_mhz": 1980.0}, {"clock_mhz": 1755.0}, ("clock 1980 -> 1755 MHz",)),
        ({"clock_mhz": 1980.0}, {}, ()),
        ({"memory_clock_mhz": 3201.0}, {"memory_clock_mhz": 1593.0}, ("memory clock 3201 -> 1593 MHz",)),
        ({"power_limit_w": 700.0}, {"power_limit_w": 500.0}, ("power limit 700 -> 500 W",)),
        ({"slowed": ("a",)}, {"slowed": ("a", "b")}, ("slowed down: a, b",)),
        ({}, {"others": (Process(7, "x"),)}, ("process 7 (x) used the device too",)),
    ],
)
def test_marks(before, after, words):
    assert marks(DeviceState(**before), DeviceState(**after)) == words


@given(st.text(max_size=40))
def test_numbers_are_read_or_are_none(text):
    found = state.number(text)
    assert found is None or text.strip()[:1] in "-0123456789" or text.strip()[:1].isdigit()


@given(st.binary(max_size=400))
def test_any_answer_is_read_without_an_error(tmp_path_factory, noise):
    folder = tmp_path_factory.mktemp("noise")
    (folder / "said").write_bytes(noise)
    for name in ("nvidia-smi", "npu-smi"):
        fake.program(folder, name, f"#!/bin/sh\ncat {folder}/said\n")
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        assert isinstance(state.read_gpu(), DeviceState) and isinstance(state.read_npu(), DeviceState)
    finally:
        os.environ["PATH"] = before

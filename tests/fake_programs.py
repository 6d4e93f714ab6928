"""Programs of drivers and tools, as shell scripts that say what they are told to."""

from __future__ import annotations

from pathlib import Path

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *clocks_event_reasons*) {event} ;;
  *query-compute-apps*) {apps} ;;
  *query-gpu*) {gpu} ;;
  *) echo "GPU 0: NVIDIA H200 (UUID: GPU-1)" ;;
esac
"""
ROW = "NVIDIA H200, 580.159.03, 1980, 3201, 41, 120.50, 700.00, Enabled, Enabled"
NPU_TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | {health:<14}| 93.4        {temperature}                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3416 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | OK            | 91.0        38                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3400 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
{processes}
+===========================+===============+====================================================+
"""
NPU_IDLE = "| No running processes found in NPU 0                                                            |"
NPU_BUSY = "| 0       0                 | 1             | python3                  | 1204                    |"
NPU_COMMON = """\
	NPU ID                         : 0
	Chip ID                        : 0
	Memory Usage Rate(%)           : 3
	Aicore Usage Rate(%)           : 0
	Aicore Freq(MHZ)               : 1800
	Aicore curFreq(MHZ)            : 1650
	Aicore Count                   : 24
	Temperature(C)                 : 45
"""


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / name
    place.write_text(script)
    place.chmod(0o755)
    return place


def nvidia_smi(folder: Path, row: str = ROW, reasons: str = "0x0000000000000000", apps: str = "", **more) -> Path:
    """more: `old` driver without the new name of the reasons; `broken`: words it ends with."""
    if "broken" in more:
        return program(folder, "nvidia-smi", f"#!/bin/sh\necho '{more['broken']}' >&2\nexit 9\n")
    gpu = f"echo '{row}, {reasons}'"
    event = 'echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; exit 2'
    script = NVIDIA_SMI.format(event=event if more.get("old") else gpu, gpu=gpu, apps=f"printf '{apps}'")
    return program(folder, "nvidia-smi", script)


def npu_smi(folder: Path, health: str = "OK", temperature: int = 36, processes: str = NPU_IDLE) -> Path:
    table = NPU_TABLE.format(health=health, temperature=temperature, processes=processes)
    script = (
        f"#!/bin/sh\ncase \"$*\" in\n  *common*) cat <<'END'\n{NPU_COMMON}END\n  ;;\n"
        f"  *) cat <<'END'\n{table}END\n  ;;\nesac\n"
    )
    return program(folder, "npu-smi", script)

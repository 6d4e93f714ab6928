"""`ascend-perf`: one command for the suite.  Each subcommand is a module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from typing import NamedTuple

from .asv_config import ConfigError

USAGE = 4  # exit code of a usage or environment error, in every subcommand
NEEDED = (
    "asv", "asv_runner", "fsspec", "ml_dtypes", "numpy", "plotly", "pybind11", "ray", "rich", "tomli", "torch",
    "triton", "xxhash",
)  # fmt: skip


class Command(NamedTuple):
    """module: loaded only when the command runs.  help: one line."""

    module: str
    help: str


COMMANDS = {
    "init": Command("dashboards.init_command", "describe the kernels of your own repository, as far as it tells"),
    "run": Command("dashboards.run", "measure commits with asv: verdict first, then numbers"),
    "dashboard": Command("dashboards.pages.build", "build the pages from the results"),
    "serve": Command("dashboards.pages.serve", "serve the pages to this machine alone"),
    "check": Command("dashboards.check", "is a commit worse than its base or its history? (the gate for CI)"),
    "bisect": Command("dashboards.bisect_command", "which commit or compiler made a benchmark slower or wrong"),
    "detect": Command("dashboards.detect_command", "change points of a series in a file"),
    "model": Command("ascend_kernels.harness.model_command", "what Ascend's compiler makes of a kernel, executed"),
    "watch": Command("ascend_kernels.harness.watch_command", "on every save of a kernel: what the edit changed"),
    "explain": Command("ascend_kernels.harness.explain_command", "why two compiled forms of a kernel differ"),
    "fleet": Command("dashboards.fleet_command", "commits x compilers x machines over a Ray cluster"),
    "results": Command("dashboards.results_command", "merge results folders and stores; check one"),
    "doctor": Command("dashboards.doctor", "what a CPU-only, GPU or NPU set-up still needs on this host"),
    "compilers": Command("ascend_model.compilers_command", "list, add ascendnpu-ir versions to compare"),
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    chosen = next((word for word in given if not word.startswith("-")), "")
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks is no reason to stop.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(given, chosen)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("ascend-perf: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # Python flushes it once more at its end
        return 0
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        words = f"this Python ({sys.executable}) has no package {error.name}; see `ascend-perf doctor`"
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        with contextlib.suppress(OSError):
            sys.stdout.close()
        words = f"no space is left for {error.filename or 'the output'}"
    except ConfigError as error:
        words = str(error)
    except Exception as error:
        spec = sys.modules.get("ascend_kernels.harness.spec")
        if spec is None or not isinstance(error, spec.NotDescribed):
            raise
        words = str(error)
    print(f"ascend-perf {chosen}: {words}", file=sys.stderr)
    return USAGE


def _run(given: list[str], chosen: str) -> int:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(
        prog="ascend-perf",
        description="Which Triton kernel got slower or wrong on Ascend: since which commit and compiler, and why.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name, help=command.help, description=command.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    try:
        parsed = parser.parse_args(given)
    except SystemExit as leaving:
        return USAGE if leaving.code not in (0, None) else 0
    return int(parsed.run(parsed))


def _version() -> str:
    import importlib.metadata

    try:
        return f"ascend-perf {importlib.metadata.version('ascend-perf')}"
    except importlib.metadata.PackageNotFoundError:
        return "ascend-perf (not installed)"


if __name__ == "__main__":
    sys.exit(main())

"""`ascend-perf bisect` with an evaluator that reads a commit's file `value` instead of measuring it.

python tests/bisect_fake.py SECONDS ARGUMENT...   each evaluation takes SECONDS
The file holds a number, perhaps with the hash of its code, or a state, or `absent`: no benchmark there.
"""

import sys
import time

from dashboards import cli
from dashboards.bisect import Outcome, Point
from dashboards.evaluate import Evaluator
from dashboards.repository import git
from dashboards.series import NOT_RUN, OK


def evaluate(self: Evaluator, point: Point, seconds: float = 0.0) -> Outcome:
    """Stands in for Evaluator.evaluate."""
    assert (self.work / "tree" / "asv.conf.json").is_file()
    time.sleep(seconds)
    text = git(self.repo, "show", f"{self.commits[point.commit][0]}:value").strip()
    compiler = self.compilers[point.compiler]
    if text == "absent":
        return Outcome(NOT_RUN)
    words = text.split()
    try:
        value = float(words[0])
    except ValueError:
        return Outcome(text, reason=f"it is {text}", code=text)
    code = words[1] if words[1:] else f"{int(value):x}"
    return Outcome(OK, value + (5 if compiler == "2.0" else 0), code=code, facts={"cycles": value})


if __name__ == "__main__":
    pause = float(sys.argv[1])
    Evaluator.evaluate = lambda self, point: evaluate(self, point, pause)
    sys.exit(cli.main(["bisect", *sys.argv[2:]]))

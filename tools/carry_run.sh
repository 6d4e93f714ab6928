#!/usr/bin/env bash
# Measure the packed commits on this machine, without a network.  See tools/carry.py.
#   ./run.sh OUT [--no-asv] [--tools] [options of `ascend-perf run`, such as --ops NAME,...]
# --no-asv: with tools/gpu_history.py, which needs no git.  --tools: also tools/gpu_all.sh (20 minutes).
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || { sed -n '3,4s/^# \{0,1\}//p' "$0" >&2; exit 4; }
out="$1"; shift
asv=1 tools= options=()
for word in "$@"; do
  case "$word" in
    --no-asv) asv= ;;
    --tools) tools=1 ;;
    *) options+=("$word") ;;
  esac
done
mkdir -p "$out" && out="$(cd "$out" && pwd)" || exit 4
work="${WORK:-$out/work}"
mkdir -p "$work"
"$python" -c 'import torch' 2> "$out/python.log" || {
  echo "run.sh: $python has no torch (PYTHON names another): $(tail -n 1 "$out/python.log")" >&2; exit 4; }

# Beside the machine's own packages, never into them.
if ls "$here"/wheels/*.whl > /dev/null 2>&1 && [ ! -d "$work/site" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --find-links "$here/wheels" \
    --target "$work/site" "$here"/wheels/*.whl > "$out/pip.log" 2>&1 || {
    echo "run.sh: the wheels cannot be installed: $(tail -n 1 "$out/pip.log")" >&2; exit 4; }
fi
[ -z "$asv" ] || command -v git > /dev/null || { echo "run.sh: no git here; --no-asv needs none" >&2; exit 4; }
if [ ! -d "$work/tree" ]; then
  mkdir "$work/tree" && tar -xf "$here/tree.tar" -C "$work/tree" || exit 4
  if [ -n "$asv" ]; then
    git clone --quiet --bare "$here/commits.bundle" "$work/commits" && mv "$work/commits" "$work/tree/.git" &&
      git -C "$work/tree" config core.bare false && git -C "$work/tree" reset --quiet "$(cat "$here/head")" || exit 4
  fi
fi
export PYTHONPATH="$work/tree:$work/site${PYTHONPATH:+:$PYTHONPATH}" ASCEND_PERF_CACHE="$work/cache" PYTHONUNBUFFERED=1
export ASCEND_PERF_COMMIT="$(cat "$here/head")"
cd "$work/tree"
worst=0 stopped=
trap 'stopped=1 worst=1' INT HUP  # what runs has the signal too; what there is then is packed
note() { printf '%s: exit %s\n' "$1" "$2" | tee -a "$out/summary.txt"; [ "$2" -eq 0 ] || worst=1; }
: > "$out/summary.txt"
"$python" -m dashboards.cli doctor --json > "$out/doctor.json" 2> "$out/doctor.log" || echo "doctor: no mode works, see doctor.json" >> "$out/summary.txt"
results="$work/tree/.asv/results"
if [ -n "$asv" ]; then
  while read -r commit; do
    [ -z "$stopped" ] || { echo "run ${commit:0:10}: not begun" | tee -a "$out/summary.txt"; continue; }
    "$python" -m dashboards.cli run "$commit" --every-commit --quiet ${options[@]+"${options[@]}"} \
      >> "$out/run.log" 2>&1; note "run ${commit:0:10}" $?
    cp .asv/asv.log "$out/asv-${commit:0:10}.log" 2> /dev/null
  done < "$here/commits"
else
  "$python" tools/gpu_history.py --specimens "$here/specimens" --json "$out/history.json" \
    ${options[@]+"${options[@]}"} > "$out/history.log" 2>&1; note history $?
  [ ! -s "$out/history.json" ] || {
    "$python" tools/gpu_history.py --from "$out/history.json" --results "$results" >> "$out/history.log" 2>&1
    note "history as asv results" $?; }
fi
[ -z "$tools" ] || [ -n "$stopped" ] || { tools/gpu_all.sh "$out/tools" --specimens "$here/specimens" > "$out/tools.log" 2>&1; note tools $?; }
[ -d "$results" ] && tar -czf "$out/results.tar.gz" -C "$results" . && echo "$out/results.tar.gz"
[ -s "$out/results.tar.gz" ] || { echo "run.sh: nothing was measured; see $out" >&2; exit 3; }
exit $worst

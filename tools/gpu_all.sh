#!/usr/bin/env bash
# Everything that needs a device, in one run of under 20 minutes; what is done is kept when a part is cut short.
#
#   tools/gpu_all.sh OUT [--dry] [--specimens FOLDER] [--ops NAME,...] [--parts compare,history,sanitize]
#
# OUT gets doctor.json, compare.json, history.json, sanitize.json, sanitize-*.txt, a log of each part, summary.txt
# and all of it as devices.tar.gz.  What an earlier run of a part left there goes into earlier-N.  Ctrl-C stops the
# part that runs, and packs.  Exit code: 0 every part ended with 0, 1 some did not or it was stopped, 4 usage.
set -uo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || { sed -n '4,8s/^# \{0,1\}//p' "$0" >&2; exit 4; }
out="$1"; shift
dry= ops= specimens= parts=compare,history,sanitize
while [ $# -gt 0 ]; do
  case "$1" in
    --ops | --parts | --specimens) [ $# -ge 2 ] || { echo "gpu_all: $1 needs a value" >&2; exit 4; } ;;
  esac
  case "$1" in
    --dry) dry=--dry; shift ;;
    --ops) ops="$2"; shift 2 ;;
    --parts) parts="$2"; shift 2 ;;
    --specimens) specimens="$(cd "$2" && pwd)" || exit 4; shift 2 ;;
    *) echo "gpu_all: unknown option $1" >&2; exit 4 ;;
  esac
done
for name in ${parts//,/ }; do
  case "$name" in compare | history | sanitize) ;; *) echo "gpu_all: no part $name" >&2; exit 4 ;; esac
done
mkdir -p "$out" && out="$(cd "$out" && pwd)" || exit 4
[ -z "$dry" ] || export ASCEND_KERNELS_DEVICE=dry
: >> "$out/summary.txt" || exit 4
number=1
while [ -e "$out/earlier-$number" ]; do number=$((number + 1)); done
worst=0 child= stopped=
# timeout puts a part into a process group of its own, which a terminal's Ctrl-C does not reach.
trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null' INT TERM HUP

part() {  # name, seconds, command...: the command is stopped at its limit and the next part begins
  local name="$1" limit="$2" begin code
  case ",$parts," in *",$name,"*) ;; *) return ;; esac
  [ -z "$stopped" ] || { worst=1; echo "$name: not begun" | tee -a "$out/summary.txt"; return; }
  shift 2
  if [ -e "$out/$name.json" ]; then
    mkdir -p "$out/earlier-$number" && mv "$out/$name"[.-]* "$out/earlier-$number/" || exit 4
  fi
  begin=$SECONDS
  timeout --kill-after=10 "$limit" "$@" > "$out/$name.log" 2>&1 &
  child=$!
  wait "$child"; code=$?
  while kill -0 "$child" 2> /dev/null; do wait "$child"; code=$?; done  # a signal ends a wait too soon
  child=
  [ $code -eq 0 ] || worst=1
  printf '%-10s exit %-4s %4s s of %s\n' "$name" "$code" "$((SECONDS - begin))" "$limit" | tee -a "$out/summary.txt"
}

set --
[ -z "$ops" ] || set -- "$@" --ops "$ops"
[ -z "$dry" ] || set -- "$@" --dry
cd "$here"
"$python" -m dashboards.cli doctor --json > "$out/doctor.json" 2> "$out/doctor.log" || echo "doctor: no mode works" | tee -a "$out/summary.txt"
part compare 400 "$python" tools/gpu_compare.py --json "$out/compare.json" --seconds 380 "$@"
history=(--last "${LAST:-12}")
[ -z "$specimens" ] || history=(--specimens "$specimens")
part history 330 "$python" tools/gpu_history.py --json "$out/history.json" --seconds 310 "${history[@]}" "$@"
part sanitize 390 "$python" tools/gpu_sanitize.py --json "$out/sanitize.json" --seconds 370 --fuzz "${FUZZ:-20}" "$@"
(cd "$out" && tar -czf devices.tar.gz --exclude=devices.tar.gz ./*)
echo "$out/devices.tar.gz"
exit $worst

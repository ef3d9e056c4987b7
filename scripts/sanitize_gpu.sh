#!/usr/bin/env bash
# scripts/sanitize_gpu.sh [--tools memcheck,racecheck,initcheck,synccheck] PROGRAM...
#
# Runs GoogleTest programs on the GPU under compute-sanitizer, each under every tool, with random
# campaigns cut short (KVARENA_SANITIZE_GPU=1): about eight minutes for all of them on an H200. Prints
# one line for each tool and program, and the log of those that fail. PROGRAM is a path; a GoogleTest
# filter may follow it: build/ci/tests/kernel/cuda_kernel_tests:CudaAppend.*. Without one, tests that
# break the device on purpose are left out.
#
# racecheck wants a build with -DKVARENA_RACECHECK=ON (CONTRIBUTING.md says why).
#
# Exit status: 0 no report and every test passed; 1 a report, a failed test or a test that found no GPU;
# 2 wrong arguments; 3 no compute-sanitizer on PATH (or in SANITIZER).
set -euo pipefail

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

tools=memcheck,racecheck,initcheck,synccheck
case "${1:-}" in
  --tools)
    tools=${2:-}
    shift 2 || { usage >&2; exit 2; }
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    usage >&2
    exit 2
    ;;
esac
if (($# == 0)); then
  usage >&2
  exit 2
fi
sanitizer=${SANITIZER:-compute-sanitizer}
if ! command -v "$sanitizer" > /dev/null; then
  echo "no $sanitizer: it comes with the CUDA toolkit (set SANITIZER to its path)" >&2
  exit 3
fi

# What the tool has to say at its end when it has nothing to report.
clean_summaries() {
  case "$1" in
    memcheck) printf '%s\n' 'LEAK SUMMARY: 0 bytes leaked' 'ERROR SUMMARY: 0 errors' ;;
    racecheck) printf '%s\n' 'RACECHECK SUMMARY: 0 hazards displayed' ;;
    *) printf '%s\n' 'ERROR SUMMARY: 0 errors' ;;
  esac
}

export KVARENA_SANITIZE_GPU=1 KVARENA_REQUIRE_GPU=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
for tool in ${tools//,/ }; do
  options=(--tool "$tool" --target-processes application-only --report-api-errors no --error-exitcode 9)
  case "$tool" in
    memcheck) options+=(--leak-check full) ;;
    racecheck) options+=(--racecheck-report all) ;;
    initcheck | synccheck) ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  for argument in "$@"; do
    program=${argument%%:*}
    filter=*:-*Lost*:*Fault*:*Death*
    if [[ $argument == *:* ]]; then filter=${argument#*:}; fi
    begin=$SECONDS
    status=0
    "$sanitizer" "${options[@]}" "$program" --gtest_brief=1 --gtest_filter="$filter" > "$log" 2>&1 || status=$?
    verdict=clean
    while IFS= read -r summary; do
      if ! grep -qF "$summary" "$log"; then verdict="no '$summary'"; fi
    done < <(clean_summaries "$tool")
    if ! grep -qE '\[  PASSED  \] [1-9]' "$log"; then verdict="no test passed"; fi
    if ((status != 0)); then verdict="exit status $status, $verdict"; fi
    tests=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\?.*/\1/p' "$log" | tail -1)
    echo "$tool $(basename "$program"): $verdict, ${tests:-0} tests passed, $((SECONDS - begin)) s"
    if [[ $verdict != clean ]]; then
      failures=$((failures + 1))
      head -c 20000 "$log"
    fi
  done
done
((failures == 0))

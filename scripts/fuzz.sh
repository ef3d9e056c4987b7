#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [TARGET...]
#
# Feeds bytes that nobody would send to what reads bytes from outside: libFuzzer under AddressSanitizer
# and UndefinedBehaviorSanitizer, so many seconds for each target (60), beginning with
# tests/fuzz/TARGET_corpus. Without a target, all of them. Builds in build/fuzz; inputs found on the way
# stay in build/fuzz/found/TARGET, and what breaks a target is build/fuzz/found/TARGET-crash-...: put it
# into the corpus with its repair. KVARENA_FUZZ_BUILD names another build folder.
#
# Exit status: 0 nothing broke; 1 something did; 2 wrong arguments; 3 no clang with libFuzzer.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/machine.sh disable=SC1091
source "$here/scripts/machine.sh"

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

seconds=60
case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  [0-9]*)
    seconds=$1
    shift
    ;;
esac
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in "$here"/tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" _fuzz.cpp)"); done
fi
for target in "${targets[@]}"; do
  [[ -f $here/tests/fuzz/${target}_fuzz.cpp ]] && continue
  say "no fuzz target '$target'; there are: $(cd "$here/tests/fuzz" && echo *_fuzz.cpp | sed 's/_fuzz\.cpp//g')"
  exit 2
done

# Any clang with libFuzzer does; the newest wins.
compiler=${CXX:-}
for version in -21 -20 -19 -18 -17 -16 ""; do
  [[ -n $compiler ]] || compiler=$(command -v "clang++$version" || true)
done
probe='extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
if [[ -z $compiler ]] || ! "$compiler" -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - <<< "$probe" 2> /dev/null; then
  say "no clang++ with libFuzzer${compiler:+ ($compiler has none)}. On Debian: apt-get install clang-19"
  exit 3
fi

build=${KVARENA_FUZZ_BUILD:-$here/build/fuzz}
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" -DKVARENA_SANITIZE=address,undefined,fuzzer-no-link \
  -DKVARENA_FUZZ=ON -DKVARENA_CUDA=OFF -DKVARENA_BUILD_BENCH=OFF -DKVARENA_BUILD_EXAMPLES=OFF > /dev/null
cmake --build "$build" -j "$(build_jobs)" --target "${targets[@]/%/_fuzz}"

broken=()
for target in "${targets[@]}"; do
  say "== $target: $seconds s"
  found=$build/found/$target
  mkdir -p "$found"
  "$build/tests/fuzz/${target}_fuzz" "$found" "$here/tests/fuzz/${target}_corpus" -max_len=16384 \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$found-" || broken+=("$target")
done
if ((${#broken[@]} > 0)); then
  say "broken: ${broken[*]}; the inputs are in $build/found"
  exit 1
fi
say "nothing broke in ${#targets[@]} targets"

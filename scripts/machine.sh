# shellcheck shell=bash
# Shared by ./run and ./check: install what is missing, and know how much the machine can build at once.

# Everything for people goes to standard error; standard output belongs to the program that is run.
say() { printf '%s\n' "$*" >&2; }

die() {
  say "$0: $*"
  exit 1
}

# is_missing PACKAGE[=PROGRAM]: a program that is there counts, wherever it came from.
is_missing() {
  local package=${1%%=*} program=${1#*=}
  if [[ $1 == *=* ]] && command -v "$program" > /dev/null; then return 1; fi
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) != installed ]]
}

# ensure_packages PACKAGE[=PROGRAM]...: installs the Debian packages that are missing, and only those.
ensure_packages() {
  if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    say "Not a Debian system: please see to these packages (Debian's names): ${*%%=*}"
    return
  fi
  local missing=() as_root=() package
  for package in "$@"; do
    if is_missing "$package"; then missing+=("${package%%=*}"); fi
  done
  if ((${#missing[@]} == 0)); then return; fi
  if ((EUID != 0)); then
    command -v sudo > /dev/null || die "missing packages, and neither root nor sudo to install them:" \
      "apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing: ${missing[*]}"
  local options=(-qq -o Dpkg::Use-Pty=0)
  "${as_root[@]}" apt-get "${options[@]}" update >&2 || die "apt-get update failed (is there a network?)"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y \
    --no-install-recommends "${missing[@]}" >&2 || die "could not install: ${missing[*]}"
}

# What the library and the command need; tests and checks name theirs in ./check.
# shellcheck disable=SC2034
TOOL_PACKAGES=("g++=g++" "cmake=cmake" "ninja-build=ninja" libspdlog-dev libfmt-dev nlohmann-json3-dev
  libcli11-dev libcpp-httplib-dev libtomlplusplus-dev prometheus-cpp-dev)

# fetch_promtool FOLDER: Prometheus's own checker of metrics, for the tests; sets KVARENA_PROMTOOL. Taken
# out of Debian's package without installing it, since that would start a server.
fetch_promtool() {
  local folder=$1
  if command -v promtool > /dev/null; then
    KVARENA_PROMTOOL=$(command -v promtool)
  elif [[ -x $folder/usr/bin/promtool ]]; then
    KVARENA_PROMTOOL=$folder/usr/bin/promtool
  elif mkdir -p "$folder" && (cd "$folder" && apt-get -qq download prometheus) > /dev/null 2>&1 &&
    dpkg -x "$folder"/prometheus_*.deb "$folder" && rm -f "$folder"/prometheus_*.deb; then
    KVARENA_PROMTOOL=$folder/usr/bin/promtool
  else
    say "promtool could not be fetched (apt-get download prometheus); its test is skipped"
    return 0
  fi
  export KVARENA_PROMTOOL
}

# Compilers to run at once: one a core, and 1.5 GiB of free memory for each.
build_jobs() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  by_memory=$((memory_kib / 1572864))
  echo $((by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores))
}

# Builds repeat faster where ccache is installed; nothing depends on it. It keeps what includes a precompiled
# header only with these two words.
if command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
fi

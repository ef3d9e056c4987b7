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

# take_yes ARGUMENTS: `--yes` as the first argument answers every question of ensure_packages. Sets arguments to
# the others.
arguments=()
take_yes() {
  assume_yes=${KVARENA_YES:-}
  if [[ ${1:-} == --yes ]]; then
    assume_yes=1
    shift
  fi
  # shellcheck disable=SC2034
  arguments=("$@")
}

# as_root COMMAND...
as_root() { if ((EUID == 0)); then "$@"; else sudo "$@"; fi; }

# ask_for QUESTION: yes at once after --yes and where nobody can answer, else what the terminal says.
ask_for() {
  if [[ -n ${assume_yes:-} || ! -t 0 || ! -t 2 ]]; then return 0; fi
  local answer
  read -r -p "$1 [Y/n] " answer || return 1
  [[ $answer =~ ^([Yy]([Ee][Ss])?)?$ ]]
}

# ensure_packages PACKAGE[=PROGRAM]...: installs the Debian packages that are missing, and what they need. On a
# terminal it asks first. It upgrades nothing, unless --yes was given.
ensure_packages() {
  if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    say "Not a Debian system: please see to these packages (Debian's names): ${*%%=*}"
    return
  fi
  local missing=() package
  for package in "$@"; do
    if is_missing "$package"; then missing+=("${package%%=*}"); fi
  done
  if ((${#missing[@]} == 0)); then return; fi
  if ((EUID != 0)) && ! command -v sudo > /dev/null; then
    die "missing packages, and neither root nor sudo to install them: apt-get install ${missing[*]}"
  fi
  say "These packages are missing: ${missing[*]}"
  ask_for "Install them and what they need with apt-get?" ||
    die "nothing was installed; do it yourself with: apt-get install --no-install-recommends ${missing[*]}"
  local options=(-qq -o Dpkg::Use-Pty=0 --no-install-recommends)
  as_root apt-get -qq update >&2 || die "apt-get update failed (is there a network?)"
  local plan upgrades
  plan=$(apt-get "${options[@]}" -s install "${missing[@]}") || die "could not install: ${missing[*]}"
  upgrades=$(sed -n 's/^Inst \([^ ]*\) \[.*/\1/p' <<< "$plan" | tr '\n' ' ')
  if [[ -n $upgrades && -z ${assume_yes:-} ]]; then
    die "installing ${missing[*]} would upgrade $upgrades: run it again with --yes to allow that," \
      "or upgrade the machine first"
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y "${missing[@]}" >&2 ||
    die "could not install: ${missing[*]}"
}

# download FOLDER PACKAGE...: the .deb files, in a folder.
download() { (cd "$1" && apt-get -qq download "${@:2}") > /dev/null 2>&1; }

# unpack_package FOLDER PACKAGE...: the files of Debian packages in a folder of the build, without installing
# what the packages need or start.
unpack_package() {
  local folder=$1
  shift
  rm -rf "$folder.part"
  mkdir -p "$folder.part"
  download "$folder.part" "$@" || { as_root apt-get -qq update && download "$folder.part" "$@"; } || return 1
  (cd "$folder.part" && for package in ./*.deb; do dpkg -x "$package" .; done && rm -f ./*.deb)
  rm -rf "$folder"
  mv "$folder.part" "$folder"
}

# What the library and the command need; tests and checks name theirs in ./check.
# shellcheck disable=SC2034
TOOL_PACKAGES=("g++=g++" "cmake=cmake" "ninja-build=ninja" libspdlog-dev libxxhash-dev libfmt-dev nlohmann-json3-dev
  libcli11-dev libcurl4-openssl-dev libmicrohttpd-dev zlib1g-dev libzstd-dev)

# ensure_tool_packages [PACKAGE[=PROGRAM]...]: the packages of the command, and others.
ensure_tool_packages() { ensure_packages "${TOOL_PACKAGES[@]}" "$@"; }

# fetch_promtool FOLDER: Prometheus's own checker of metrics, for the tests; sets KVARENA_PROMTOOL. Unpacked,
# since installing its package would start a server.
fetch_promtool() {
  local folder=$1
  if command -v promtool > /dev/null; then
    KVARENA_PROMTOOL=$(command -v promtool)
  elif [[ -x $folder/usr/bin/promtool ]] || unpack_package "$folder" prometheus; then
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

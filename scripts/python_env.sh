# shellcheck shell=bash
# Shared by check_python.sh and check_engines.sh: virtual environments of pinned packages.

# skip REASON: ends the test as skipped; ctest and scripts/ctest_totals.py know the form.
skip() {
  echo "Skipped: $*"
  exit 77
}

# make_environment FOLDER REQUIREMENTS: a virtual environment that has exactly these hashed packages. It is made
# again when the list has changed. Several scripts may ask for the same one at once.
make_environment() {
  local folder=$1 requirements=$2 lock
  exec {lock}> "$folder.lock"
  flock "$lock"
  fill_environment "$folder" "$requirements"
  exec {lock}>&-
}

fill_environment() {
  local folder=$1 requirements=$2
  if cmp -s "$requirements" "$folder/requirements.txt"; then return; fi
  rm -rf "$folder"
  python3 -m venv "$folder" 2> /dev/null || skip "python3 has no venv (apt-get install python3-venv)"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps -r "$requirements" ||
    skip "the packages of $(basename "$requirements") cannot be had"
  cp "$requirements" "$folder/requirements.txt"
}

# build_wheel ENVIRONMENT LIBRARY FOLDER: the package around a library that is there already, as FOLDER/*.whl.
build_wheel() {
  local environment=$1 library=$2 folder=$3 lock
  # They share a folder of objects beside the sources.
  exec {lock}> "$(dirname "$folder")/wheel.lock"
  flock "$lock"
  rm -rf "$folder"
  PATH=$environment/bin:$PATH "$environment/bin/python" -m build --wheel --no-isolation \
    -Ccmake.define.KVARENA_C_LIBRARY="$library" -o "$folder" "$source_dir/python" > "$folder.log" 2>&1 ||
    { cat "$folder.log"; exit 1; }
  exec {lock}>&-
}

#!/usr/bin/env bash
# scripts/check_engines.sh LIBRARY FOLDER TRANSFORMERS: tests the engine clients with one version of transformers.
# The packages are pinned and hashed; what cannot be had is skipped, with the reason. torch comes without its
# dependencies and runs on the libraries of the CUDA toolkit.
set -euo pipefail
library=$(readlink -f "$1")
mkdir -p "$2"
work=$(cd "$2" && pwd)
version=$3
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/python_env.sh
source "$source_dir/scripts/python_env.sh"

tests=$source_dir/python/tests
make_environment "$work/build" "$tests/requirements.txt"
make_environment "$work/torch" "$tests/requirements-torch.txt"
make_environment "$work/environment-$version" "$tests/requirements-engines-$version.txt"
python=$work/environment-$version/bin/python
# torch is installed once for all versions.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$work/torch/${packages#"$work/environment-$version/"}" > "$packages/torch.pth"
"$python" -c "import torch" 2> "$work/torch-$version.log" ||
  skip "torch cannot be imported: $(tail -n 1 "$work/torch-$version.log")"
build_wheel "$work/build" "$library" "$work/wheel-$version"
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  "$work/wheel-$version"/*.whl

# What needs no torch was seen by check_python.sh.
mapfile -t programs < <(grep -l torch "$tests"/test_*.py)
cd "$work"
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$python" -m pytest -q -p no:cacheprovider "${programs[@]}"

#!/usr/bin/env bash
# scripts/check_python.sh LIBRARY FOLDER: builds the Python package around a libkvarena.so, installs it in a virtual
# environment in FOLDER, and tests it as a user meets it: tests, types, and what the wheel needs of a machine.
set -euo pipefail
library=$(readlink -f "$1")
mkdir -p "$2"
work=$(cd "$2" && pwd)
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/python_env.sh
source "$source_dir/scripts/python_env.sh"

make_environment "$work/environment" "$source_dir/python/tests/requirements.txt"
python=$work/environment/bin/python
build_wheel "$work/environment" "$library" "$work/wheel"
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$work"/wheel/*.whl

# Nothing but a C++ runtime, and at most 40 MB.
"$python" -m auditwheel show "$work"/wheel/*.whl | grep -o "manylinux_2_[0-9]*_x86_64" | sed -n 1p ||
  { echo "the wheel is not for manylinux"; "$python" -m auditwheel show "$work"/wheel/*.whl; exit 1; }
size=$(stat -c %s "$work"/wheel/*.whl)
echo "wheel: $((size / 1000)) kB"
((size <= 40000000)) || { echo "the wheel is larger than 40 MB"; exit 1; }

cd "$work"
"$python" -m pytest -q -p no:cacheprovider "$source_dir/python/tests"
configuration=$source_dir/python/pyproject.toml
"$python" -m mypy --config-file "$configuration" -p kvarena
"$python" -m mypy.stubtest kvarena._core --ignore-disjoint-bases --ignore-unused-allowlist \
  --mypy-config-file "$configuration" --allowlist "$source_dir/python/tests/stubtest_allowlist.txt"

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
# Nothing but a C++ runtime: the wheel gets the tag of the machines that it is for, and at most 40 MB.
verdict=$("$python" -m auditwheel show "$work"/wheel/*.whl)
platform=$(tr '\n' ' ' <<< "$verdict" |
  sed -n 's/.* is consistent with the following platform tag: *"\(manylinux_2_[0-9]*_x86_64\)".*/\1/p')
[[ $platform ]] || { echo "the wheel is not for manylinux"; echo "$verdict"; exit 1; }
PATH=$work/environment/bin:$PATH "$python" -m auditwheel repair --plat "$platform" --only-plat -w "$work/tagged" \
  "$work"/wheel/*.whl > "$work/tagged.log" 2>&1 || { cat "$work/tagged.log"; exit 1; }
rm -rf "$work/wheel"
mv "$work/tagged" "$work/wheel"
name=$(cd "$work/wheel" && ls)
[[ $name =~ ^kvarena-[0-9.]+-cp310-abi3-manylinux_2_[0-9]+_x86_64\.whl$ ]] ||
  { echo "the wheel has the wrong name: $name"; exit 1; }
echo "wheel: $name"
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$work"/wheel/*.whl
size=$(stat -c %s "$work"/wheel/*.whl)
echo "wheel: $((size / 1000)) kB"
((size <= 40000000)) || { echo "the wheel is larger than 40 MB"; exit 1; }

cd "$work"
"$python" -m pytest -q -p no:cacheprovider "$source_dir/python/tests"
configuration=$source_dir/python/pyproject.toml
"$python" -m mypy --config-file "$configuration" -p kvarena
"$python" -m mypy.stubtest kvarena._core --ignore-disjoint-bases --ignore-unused-allowlist \
  --mypy-config-file "$configuration" --allowlist "$source_dir/python/tests/stubtest_allowlist.txt"

#!/bin/sh
# arm.sh FOLDER PYTHON [LEVEL...]: an arm64 Debian and Python in FOLDER, cpu_native compiled for it, and its
# conformance at each LEVEL (all, where none is named) under an emulator of the CPU.
#
# As root, on a machine whose apt is Debian's; PYTHON has what `make` installs.  Packages of Python are the
# wheels for Arm of those pinned.  Each level takes some minutes.  What is there already is kept, save what is
# ours: remove FOLDER for newer packages.
set -eu

root=$1 python=$2
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)

if [ "$(id -u)" != 0 ]; then
  echo "arm.sh: only root may make a file system of its own: sudo make arm" >&2
  exit 1
fi
for tool in debootstrap aarch64-linux-gnu-g++ qemu-aarch64-static; do
  if ! command -v "$tool" >/dev/null; then
    echo "arm.sh: no $tool: apt-get install debootstrap g++-aarch64-linux-gnu qemu-user-static" >&2
    exit 1
  fi
done

mkdir -p "$root"
root=$(cd "$root" && pwd)
debian=$root/debian
pip() {
  PATH="$(dirname "$python"):$PATH" "$python" -m pip --disable-pip-version-check --quiet install --upgrade "$@"
}

if [ ! -e "$root/.complete" ]; then
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
  debootstrap --foreign --arch=arm64 --variant=minbase \
    --include=python3.11,libpython3.11-stdlib,libpython3.11-dev,libstdc++6 bookworm "$debian" "$mirror"
  # Nothing of it is set up, which would need an emulator of all: files alone do.
  for package in "$debian"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$debian"; done
  pip --target "$root/site" --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    -c "$here/requirements/run.txt" pluggy importlib_metadata numpy ml_dtypes pydantic pydantic-settings \
    structlog click rich scipy threadpoolctl
  if [ ! -e "$debian/usr/bin/python3.11" ]; then  # debootstrap takes no path with spaces, and does not say so
    echo "arm.sh: debootstrap left no Python in $debian: is there a space in the path?" >&2
    exit 1
  fi
  touch "$root/.complete"
fi

# An ordinary program, which Python starts again for each process that it asks for.
cat >"$root/python" <<EOF
#!/bin/sh
export PYTHONHOME="$debian/usr" PYTHONPATH="$root/ours:$root/site"
exec qemu-aarch64-static -cpu max -L "$debian" -0 "\$0" "$debian/usr/bin/python3.11" "\$@"
EOF
chmod +x "$root/python"

rm -rf "$root/ours"
define=--config-settings=cmake.define
pip --target "$root/ours" --no-deps --no-build-isolation --config-settings=build-dir="$root/build" \
  "$define.CMAKE_SYSTEM_NAME=Linux" "$define.CMAKE_SYSTEM_PROCESSOR=aarch64" \
  "$define.CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++" "$define.Python_SOABI=cpython-311-aarch64-linux-gnu" \
  "$define.Python_INCLUDE_DIR=$debian/usr/include/python3.11" \
  "$define.CMAKE_CXX_FLAGS=-idirafter \"$debian/usr/include\"" "$here/plugins/cpu_native"
pip --target "$root/ours" --no-deps --no-build-isolation "$here/core" "$here/conformance" "$here/plugins/cpu_ref"

# The emulator shows this machine's features of the CPU, not those that it emulates: levels are named.
if [ $# = 0 ]; then
  set -- $("$root/python" -c 'from propolis_cpu_native._native import levels; print(*levels())')
fi
export PROPOLIS_PLUGINS=cpu_native,cpu_ref OPENBLAS_NUM_THREADS=1
for level in "$@"; do
  echo "$level:"
  CPU_NATIVE_LEVEL=$level "$root/python" -m propolis conformance cpu_native --quick --seconds 1200 --timeout 300
done

#!/bin/sh
# rocm_root.sh FOLDER [ARCH]: a Debian with the real HIP, hipRTC, rocBLAS and MIOpen in FOLDER, and
# what our plugins say of them there.  No GPU is needed: what needs one is not run.
#
# As root, on a machine whose apt is Debian's: the packages are unstable's, from the same mirror.
# Of the libraries' machine code only ARCH's is kept (gfx1100); all of it takes ten times the room.
# What is there already is kept: remove FOLDER for newer packages.
set -eu

root=$1 arch=${2:-gfx1100}
here=$(cd "$(dirname "$0")/.." && pwd)

if [ "$(id -u)" != 0 ]; then
  echo "rocm_root.sh: only root may make a file system of its own: sudo make rocm-root" >&2
  exit 1
fi

# Mounts are of its own namespace: none stays, however it ends.
inside() {
  unshare --mount --propagation private sh -euc '
    mount --rbind /proc "$0/proc"
    mount --rbind /dev "$0/dev"
    exec chroot "$0" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$@"' "$root" "$@"
}

if [ ! -e "$root/.complete" ]; then
  if ! command -v debootstrap >/dev/null; then
    echo "rocm_root.sh: no debootstrap: apt-get install debootstrap" >&2
    exit 1
  fi
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
  mkdir -p "$root"
  root=$(cd "$root" && pwd)
  debootstrap --variant=minbase sid "$root" "$mirror"
  echo "deb $mirror sid main" >"$root/etc/apt/sources.list"
  # A mirror that stands still, or is behind a proxy, is used as this machine uses it.
  apt-config dump | grep -E '^Acquire::(Check-|https?::)' >"$root/etc/apt/apt.conf.d/90host" || true
  for kind in lib/*/rocblas share/miopen; do
    echo "path-exclude=/usr/$kind/*gfx*"
    echo "path-include=/usr/$kind/*$arch*"
  done >"$root/etc/dpkg/dpkg.cfg.d/machine-code"
  inside apt-get -qq update
  inside apt-get -qq --no-install-recommends install ca-certificates make python3-venv \
    libamdhip64-dev librocblas-dev libmiopen-dev
  for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
  done
  touch "$root/.complete"
fi
root=$(cd "$root" && pwd)

# The working tree as it is, without what is built of it.
rm -rf "$root/propolis"
mkdir "$root/propolis"
git -c safe.directory="$here" -C "$here" ls-files -z --cached --others --exclude-standard |
  tar -C "$here" --null --ignore-failed-read -cT - | tar -C "$root/propolis" -x

inside make --no-print-directory -sC /propolis VENV=/venv /venv/.installed-run
inside /venv/bin/propolis doctor
inside /venv/bin/python /propolis/tools/rocm_symbols.py

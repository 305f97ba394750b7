#!/bin/sh
# Gets what building policies to Wasm needs where rustup cannot add the target: Debian's
# rustc-web and the sources of its standard library, unpacked into a cache folder, and
# Debian's Wasm linker. `tandem policy build` finds them there. Needs root for the linker.
#
# Where rustup reaches its server, `rustup target add wasm32-unknown-unknown` is all.
set -eu

root=${TANDEM_WASM_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/wasm-root}
rust=1.96

command -v wasm-ld-22 >/dev/null || apt-get install -y --no-install-recommends libllvm22 lld-22
mkdir -p "$root"
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
cd "$packages"
apt-get download rustc-web "libstd-rust-web-$rust" libstd-rust-web-dev rust-web-src
for package in *.deb; do
    dpkg -x "$package" "$root"
done
"$root/usr/bin/rustc" --version 2>/dev/null || LD_LIBRARY_PATH="$root/usr/lib/$(uname -m)-linux-gnu" "$root/usr/bin/rustc" --version
echo "Policies can be built now: $root"

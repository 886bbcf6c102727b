#!/bin/sh
# Checks that the oldest compiler that Cargo.toml promises (`rust-version`) still builds everything. Needs rustup.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
if ! rustup run "$version" rustc --version >/dev/null 2>&1; then
    rustup toolchain install --profile minimal "$version"
fi
scripts/deps.sh --test
RUSTUP_TOOLCHAIN=$version cargo check --locked --workspace --all-targets

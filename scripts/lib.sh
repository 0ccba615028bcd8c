# Functions for the other scripts in this folder, which source this file.
# shellcheck shell=bash

say() {
    printf '== %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# The tests, the examples and their dependencies need this compiler. The library needs only that of
# `rust-version` in Cargo.toml: see check_rust_version.
rust_for_tests=1.95

# What scripts/test tests, as arguments for cargo: who builds the same builds nothing twice.
# shellcheck disable=SC2034 # other scripts use it
all_tests=(--workspace --features tls,sasl)

# The version of the installed cargo, if it runs.
cargo_version() {
    cargo --version 2>/dev/null | cut -d' ' -f2
}

# Whether the second version is at least the first.
is_at_least() {
    [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

# Makes a cargo runnable that is new enough, even if HOME is unset or empty.
ensure_cargo() {
    local account directory present
    account=$(getent passwd "$(id -u)" | cut -d: -f6) || account=
    # A distribution's cargo, which is older, may come first in PATH.
    present=$(cargo_version) || present=0
    if ! is_at_least "$rust_for_tests" "$present"; then
        for directory in "${CARGO_HOME:+$CARGO_HOME/bin}" "${HOME:-}/.cargo/bin" "$account/.cargo/bin" \
            /usr/local/cargo/bin; do
            if [[ -x $directory/cargo ]]; then
                PATH=$directory:$PATH
                break
            fi
        done
    fi
    command -v cargo >/dev/null ||
        fail "cargo is not installed; see https://rustup.rs, or run: curl -sSf https://sh.rustup.rs | sh"

    # A cargo installed by rustup looks for its toolchain in HOME, unless RUSTUP_HOME is set.
    if ! cargo --version >/dev/null 2>&1; then
        directory=$(dirname "$(dirname "$(command -v cargo)")")
        if [[ -d ${directory%/.cargo}/.rustup ]]; then
            export RUSTUP_HOME=${directory%/.cargo}/.rustup
            [[ -n ${CARGO_HOME:-} || ! -w $directory ]] || export CARGO_HOME=$directory
        fi
    fi
    cargo --version >/dev/null || fail "cargo is at $(command -v cargo), but does not run"

    present=$(cargo_version)
    is_at_least "$rust_for_tests" "$present" ||
        fail "cargo is $present; but the tests require Rust $rust_for_tests or newer: run rustup update, or see" \
            "https://rustup.rs"
    # cargo links by it, unless it is told of another one.
    command -v cc >/dev/null || install_packages gcc libc6-dev ||
        say "there is no C compiler, which cargo links with; on Debian: apt-get install gcc libc6-dev"
}

# Checks the library with the oldest supported compiler: rustup's, or Debian's in /usr/bin, which is
# installed if necessary. If neither is available, it says so and skips the check.
check_rust_version() {
    local version toolchain features
    local as_cargo=(env RUSTC=/usr/bin/rustc /usr/bin/cargo)
    version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

    toolchain=$(rustup toolchain list 2>/dev/null | cut -d' ' -f1 | grep -E "^${version//./\\.}[.-]" |
        head -n 1) || toolchain=
    if [[ -n $toolchain ]]; then
        as_cargo=(rustup run "$toolchain" cargo)
    elif ! debian_has_rust "$version" &&
        ! { install_packages {rustc-web,cargo-web,libstd-rust-web-dev}="$version.*" &&
            debian_has_rust "$version"; }; then
        say "skipped: no Rust $version, the oldest that the library supports; to check it, run: rustup" \
            "toolchain install $version"
        return
    fi

    say "cargo check --lib with Rust $version (${toolchain:-/usr/bin/rustc})"
    for features in "" --no-default-features --features=tls,sasl; do
        CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/rust-$version \
            "${as_cargo[@]}" check --package zklock --lib --locked ${features:+"$features"}
    done
    say "cargo check of the command, zklock-metrics and zklock-testing with Rust $version"
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/rust-$version \
        "${as_cargo[@]}" check --package zklock-cli --bins --package zklock-metrics --package zklock-testing --lib --locked
}

# Whether Debian's compiler is installed in this version.
debian_has_rust() {
    [[ -x /usr/bin/cargo && $(/usr/bin/rustc --version 2>/dev/null) == "rustc $1."* ]]
}

# Whether ZooKeeper servers can be started on this machine.
have_servers() {
    local jars=${ZKLOCK_ZOOKEEPER_JARS:-/usr/share/java}
    command -v java >/dev/null && [[ -f $jars/zookeeper.jar && -f $jars/slf4j-simple.jar ]]
}

# Ensures that there is a ZooKeeper to use: the one that ZKLOCK_HOSTS names, or Java and the jars
# to start one, which are installed if they are missing.
ensure_zookeeper() {
    if [[ -n ${ZKLOCK_HOSTS:-} ]]; then
        say "using the ZooKeeper at $ZKLOCK_HOSTS (ZKLOCK_HOSTS)"
        return
    fi
    if have_servers; then
        return
    fi

    local packages=(libzookeeper-java libslf4j-java)
    command -v java >/dev/null || packages=(default-jre-headless "${packages[@]}")
    install_packages "${packages[@]}" ||
        fail "no ZooKeeper found. On Debian or Ubuntu, as root: apt-get install ${packages[*]}," \
            "or set ZKLOCK_HOSTS to a running ZooKeeper"
    have_servers || fail "installed ${packages[*]}, but java, zookeeper.jar or slf4j-simple.jar is" \
        "still missing"
}

# Ensures that there is a browser for the tests of the page of `zklock serve`, which are skipped without one.
ensure_browser() {
    if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
        return
    fi
    install_packages chromium chromium-driver || say "skipped: the tests of the page in a browser"
}

# Installs faketime, which gives a command another time than its host has. Without it, a test is skipped.
ensure_faketime() {
    command -v faketime >/dev/null || install_packages faketime || say "skipped: hosts whose clocks differ"
}

# Installs packages with apt-get. If that is not allowed or fails, prints why and returns 1.
install_packages() {
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo -n)
    fi
    if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
        say "cannot install $*: no apt-get, or no root rights"
        return 1
    fi

    say "installing $* (apt-get)"
    local apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -q -o DPkg::Lock::Timeout=120)
    if ! "${apt_get[@]}" update || ! "${apt_get[@]}" install -y --no-install-recommends "$@"; then
        say "cannot install $*: apt-get failed"
        return 1
    fi
}

# Sets ZKLOCK_PROMTOOL to Prometheus' own reader of metrics, if it can be had. It is not installed, as that would start
# a server.
ensure_promtool() {
    local folder=${CARGO_TARGET_DIR:-target}/tmp/prometheus
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd -P)
    ZKLOCK_PROMTOOL=${ZKLOCK_PROMTOOL:-$(command -v promtool || echo "$folder/usr/bin/promtool")}
    if [[ ! -x $ZKLOCK_PROMTOOL ]]; then
        (cd "$folder" && rm -f prometheus_*.deb &&
            { apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }; } &&
            dpkg -x prometheus_*.deb .) ||
            say "skipped: what Prometheus' promtool says of metrics; on Debian: apt-get install prometheus"
    fi
    [[ ! -x $ZKLOCK_PROMTOOL ]] || export ZKLOCK_PROMTOOL
}

# Runs a command in its own process group. A signal that ends this script ends the whole group.
run() {
    local status=0
    trap 'end_run INT 130' INT
    trap 'end_run TERM 143' TERM HUP
    set -m
    "$@" </dev/null &
    run_group=$!
    set +m
    wait "$run_group" || status=$?
    trap - INT TERM HUP
    return "$status"
}

end_run() {
    trap '' INT TERM HUP
    kill -"$1" -- "-$run_group" 2>/dev/null || true
    wait "$run_group" || true
    exit "$2"
}

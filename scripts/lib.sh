# Functions for the scripts beside this file, which source it.
# shellcheck shell=bash

say() {
    printf '== %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Makes cargo runnable, also where HOME is unset or empty.
ensure_cargo() {
    local account directory
    account=$(getent passwd "$(id -u)" | cut -d: -f6) || account=
    if ! command -v cargo >/dev/null; then
        for directory in "${CARGO_HOME:-}/bin" "${HOME:-}/.cargo/bin" "$account/.cargo/bin" \
            /usr/local/cargo/bin; do
            if [[ -x $directory/cargo ]]; then
                PATH=$directory:$PATH
                break
            fi
        done
    fi
    command -v cargo >/dev/null ||
        fail "cargo is not installed; see https://rustup.rs, or run: curl -sSf https://sh.rustup.rs | sh"

    # A cargo that rustup manages looks for its toolchain in HOME, unless it is told where it is.
    if ! cargo --version >/dev/null 2>&1; then
        directory=$(dirname "$(dirname "$(command -v cargo)")")
        if [[ -d ${directory%/.cargo}/.rustup ]]; then
            export RUSTUP_HOME=${directory%/.cargo}/.rustup
            [[ -n ${CARGO_HOME:-} || ! -w $directory ]] || export CARGO_HOME=$directory
        fi
    fi
    cargo --version >/dev/null || fail "cargo is at $(command -v cargo), but does not run"

    local needed present
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    present=$(cargo --version | cut -d' ' -f2)
    if [[ $(printf '%s\n' "$needed" "$present" | sort -V | head -n 1) != "$needed" ]]; then
        fail "cargo is $present; needed is Rust $needed or newer: rustup update, or see https://rustup.rs"
    fi
}

# Whether servers can be started here.
have_servers() {
    local jars=${ZKLOCK_ZOOKEEPER_JARS:-/usr/share/java}
    command -v java >/dev/null && [[ -f $jars/zookeeper.jar && -f $jars/slf4j-simple.jar ]]
}

# Makes sure that there is a ZooKeeper to use: the one that ZKLOCK_HOSTS names, or jars and a Java
# to start one with, which are installed if need be.
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
        fail "no ZooKeeper; on Debian or Ubuntu, as root: apt-get install ${packages[*]}, or set" \
            "ZKLOCK_HOSTS to a running ZooKeeper"
    have_servers || fail "installed, but java, zookeeper.jar or slf4j-simple.jar is still missing"
}

# Installs packages with apt-get; where that may not be done, or fails, says why and is false.
install_packages() {
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo -n)
    fi
    if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
        say "no right to install $*"
        return 1
    fi

    say "installing $* (apt-get)"
    local apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -q -o DPkg::Lock::Timeout=120)
    if ! "${apt_get[@]}" update || ! "${apt_get[@]}" install -y --no-install-recommends "$@"; then
        say "$* could not be installed"
        return 1
    fi
}

# Runs a command in a process group of its own, all of which ends when this script is told to.
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

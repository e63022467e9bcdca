# What quickstart and tests/run ask of the machine.  Sourced by bash, not run.

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root: $*  (run it as root, or install sudo)"
    fi
}

# Debian packages of the names given that are not installed, one a line.
packages_missing() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null)" = "ii " ] || echo "$name"
    done
}

# Installs what is missing of the packages named; tells how far it is.
packages_install() {
    command -v apt-get >/dev/null || {
        say "no apt-get here: expecting what these Debian packages give: $*"
        return 0
    }
    local missing log
    mapfile -t missing < <(packages_missing "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    log=$(mktemp)
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600)
    # A list that can't be refreshed (one foreign source is down) matters only if the install fails.
    as_root "${apt[@]}" update >"$log" 2>&1 </dev/null || true
    if ! as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" 2>&1 </dev/null |
        tee -a "$log" | awk '
            / newly installed/ { n = $1 + $3 }
            /^Setting up / { k++; if (n < 40 || k % 10 == 0 || k == n) printf "    %d of %d: %s\n", k, n, $3; fflush() }' >&2
    then
        tail -n 30 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install ${missing[*]}; its last words are above"
    fi
    rm -f "$log"
}

# What building needs, and what the program needs to run: the tests run in Python, chat templates in jinja2.
PACKAGES_BUILD=(build-essential cmake ninja-build pkg-config libmicrohttpd-dev libjansson-dev libuv1-dev
    libpcre2-dev libseccomp-dev libcurl4-openssl-dev zlib1g-dev)
PACKAGES_RUN=(python3 python3-jinja2 python3-pip python3-venv ca-certificates curl)

# A build folder remembers where its sources were; after a move it is no use.
build_folder_check() {
    local cache=$1/CMakeCache.txt
    if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$2" "$cache"; then
        say "$1 was made for another folder: making it anew"
        rm -rf "$1"
    fi
}

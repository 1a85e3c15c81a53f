# --- this machine

have() { command -v "$1" >/dev/null 2>&1; }

has_systemd() { [ -d /run/systemd/system ] && have systemctl; }

find_python() {
    for candidate in python3 /usr/libexec/platform-python; do
        found=$(command -v "$candidate") || continue
        if "$found" -c 'import sys, ssl, zipfile; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then
            echo "$found"
            return
        fi
    done
}

architecture() {
    case $(uname -m) in
        x86_64 | amd64) echo amd64 ;;
        aarch64 | arm64) echo arm64 ;;
        *) fatal 1 "architecture $(uname -m): not supported by the node agent" ;;
    esac
}

digest() { # FILE
    if have sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif have shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif have openssl; then
        openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
    else
        fatal 1 "sha256sum, shasum or openssl is required to verify the manager"
    fi
}

prefix() {
    if [ -n "$CATTLE_AGENT_BIN_PREFIX" ]; then
        echo "$CATTLE_AGENT_BIN_PREFIX"
    elif (umask 022 && mkdir -p /usr/local/bin 2>/dev/null) && [ -w /usr/local/bin ] && ! is_mount /usr/local; then
        echo /usr/local
    else
        echo /opt/$SERVICE
    fi
}

is_mount() {
    # A process machine mounts its own /usr/local, which is writable. Other mounts there are usually part of an image.
    [ ! -d /etc/herder/boot.d ] && [ -r /proc/mounts ] && grep -q " $1 " /proc/mounts
}

create_directory() { # PATH MODE
    if ! mkdir -p "$1" || ! chmod "$2" "$1"; then fatal 1 "$1: cannot create the directory; run this script as root"; fi
}

install_file() { # FILE MODE DESTINATION
    if ! chmod "$2" "$1" || ! mv "$1" "$3"; then fatal 1 "$3: cannot write the file; run this script as root"; fi
}

create_directories() {
    interlock=$CATTLE_AGENT_VAR_DIR/interlock
    for path in "$CATTLE_AGENT_VAR_DIR" "$CATTLE_AGENT_CONFIG_DIR" "$interlock"; do
        create_directory "$path" 700
    done
    scratch=$(mktemp -d "$CATTLE_AGENT_VAR_DIR/.install.XXXXXX") || fatal 1 "$CATTLE_AGENT_VAR_DIR: not writable; run this script as root"
    trap clean_up EXIT
    trap 'exit 1' INT TERM HUP
}

clean_up() {
    # If the new agent could not be installed, the old one must not stay stopped.
    if [ "$stopped" = yes ]; then
        if has_systemd; then systemctl start rancher-system-agent; else start_boot_script; fi
    fi
    rm -rf "$scratch" "$interlock/restart-pending"
}

wait_for_agent() {
    # A running agent finishes its current plan and starts no other.
    : >"$interlock/restart-pending"
    waited=0
    while [ -e "$interlock/applyinator-active" ] && is_running && [ $waited -lt 300 ]; do
        [ $waited -gt 0 ] || info "waiting for the running agent to finish its plan"
        sleep 1
        waited=$((waited + 1))
    done
}

is_running() {
    if has_systemd; then
        systemctl is-active --quiet $SERVICE
    else
        [ -s /run/$SERVICE.pid ] && kill -0 "$(cat /run/$SERVICE.pid)" 2>/dev/null
    fi
}

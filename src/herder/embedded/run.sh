#!/bin/sh
# Install a server or a node of the embedded distribution on this machine, and restart it if its configuration
# changed. The script is idempotent.
set -eu

here=${CATTLE_AGENT_EXECUTION_PWD:-$(dirname "$0")}
data=${HERDER_DATA_DIR:-/var/lib/rancher/herder}
case ${INSTALL_HERDER_EXEC:-server} in
    agent*) role=node ;;
    *) role=server ;;
esac
service=herder-$role
boot=/etc/herder/boot.d/60-$service
# Exists while a restore can still be undone. The server must not serve its data before, also if the machine restarts.
journal=$data/server/db/snapshots/.restore/journal.json

fail() {
    echo "herder installer: $*" >&2
    exit 1
}

case $data in
    /*) ;;
    *) fail "data directory $data: must be an absolute path" ;;
esac
case $data in
    *[!A-Za-z0-9/._-]*) fail "data directory $data: must consist of letters, digits and / . _ -" ;;
esac

version=$(cat "$here/VERSION")
payload=$(cat "$here/PAYLOAD")
wanted=$(cat "$here/PYTHON")

find_python() {
    for candidate in "python$wanted" python3; do
        found=$(command -v "$candidate") || continue
        if "$found" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$wanted"; then
            echo "$found"
            return
        fi
    done
    fail "Python $wanted, the version of the manager, is required on this machine"
}

unpack() {
    if [ ! -d "$data/payloads/$payload" ]; then
        mkdir -p "$data/payloads"
        rm -rf "$data/payloads/.new"
        mv "$here/payload" "$data/payloads/.new"
        mv "$data/payloads/.new" "$data/payloads/$payload"
    fi
    for old in "$data/payloads"/*; do
        [ "$old" = "$data/payloads/$payload" ] || rm -rf "$old"
    done
}

write_if_changed() { # PATH MODE; true if the file changed
    cat > "$1.new"
    chmod "$2" "$1.new"
    if [ -f "$1" ] && cmp -s "$1" "$1.new"; then
        rm "$1.new"
        return 1
    fi
    mv "$1.new" "$1"
}

# The directory of the payload changes with each version, so plans call these programs.
install_program() { # NAME MODULE
    mkdir -p "$data/bin"
    write_if_changed "$data/bin/$1" 755 << SCRIPT || true
#!/bin/sh
export PYTHONPATH=$data/payloads/$payload
exec $python -m $2 "\$@"
SCRIPT
}

# --- with systemd -----------------------------------------------------------------------------------------------------

with_systemd() {
    if write_if_changed "/etc/systemd/system/$service.service" 644 <<UNIT
[Unit]
Description=Herder's embedded distribution, $role
After=network-online.target
Wants=network-online.target
ConditionPathExists=!$journal

[Service]
Environment=PYTHONPATH=$data/payloads/$payload
ExecStart=$python -m herder.embedded $role --version $version
ExecReload=/bin/kill -HUP \$MAINPID
Restart=always
RestartSec=2s

[Install]
WantedBy=multi-user.target
UNIT
    then
        systemctl daemon-reload
        systemctl enable -q "$service"
        changed=yes
    fi
    if [ "$changed" = yes ] || ! systemctl is-active -q "$service"; then
        systemctl restart "$service"
    elif [ "$role" = server ]; then
        systemctl reload "$service"
    fi
}

# --- without systemd --------------------------------------------------------------------------------------------------

is_running() {
    [ -s "/run/$service.pid" ] && kill -0 "$(cat "/run/$service.pid")" 2>/dev/null
}

stop() {
    is_running || return 0
    kill "$(cat "/run/$service.pid")"
    while is_running; do sleep 0.05; done
}

without_systemd() {
    mkdir -p "$(dirname "$boot")"
    if write_if_changed "$boot" 755 <<SCRIPT
#!/bin/sh
# Keep $service running while the machine is up.
[ ! -e "$journal" ] || exit 0
echo \$\$ > /run/$service.pid
child=
trap 'trap "" TERM; [ -z "\$child" ] || kill "\$child" 2>/dev/null; wait; rm -f /run/$service.pid; exit 0' TERM
export PYTHONPATH=$data/payloads/$payload
while :; do
    if [ -f "$data/$role.log" ] && [ "\$(wc -c < "$data/$role.log")" -gt 10000000 ]; then
        mv "$data/$role.log" "$data/$role.log.1"
    fi
    $python -m herder.embedded $role --version $version >> "$data/$role.log" 2>&1 < /dev/null &
    child=\$!
    echo \$child > /run/$service.child
    wait \$child
    sleep 1
done
SCRIPT
    then
        changed=yes
    fi
    if [ "$changed" = yes ] || ! is_running; then
        stop
        setsid "$boot" > /dev/null 2>&1 < /dev/null &
    elif [ "$role" = server ]; then
        kill -HUP "$(cat "/run/$service.child")"
    fi
}

python=$(find_python)
unpack
if [ "$role" = server ]; then
    install_program herder-snapshots herder.snapshots
    install_program herder-stale-nodes herder.embedded.stale_nodes
fi
if [ "${INSTALL_HERDER_SKIP_START:-}" = true ]; then
    PYTHONPATH=$data/payloads/$payload $python -m herder.embedded.keys
    echo "herder $role $version is installed; it is not started"
    exit
fi
changed=no
stamp="${RESTART_STAMP:-}"
if [ "$stamp" != "$(cat "$data/restart_stamp" 2>/dev/null || true)" ]; then
    changed=yes
fi
if [ -d /run/systemd/system ]; then
    with_systemd
else
    without_systemd
fi
echo "$stamp" > "$data/restart_stamp"
echo "herder $role $version is started"

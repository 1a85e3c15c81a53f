#!/bin/sh
# Install k3s on this machine as a server or an agent, and restart it if its configuration changed. Returns when the
# service is active. The script is idempotent.
set -eu

here=${CATTLE_AGENT_EXECUTION_PWD:-$(cd "$(dirname "$0")" && pwd)}
data=${K3S_DATA_DIR:-/var/lib/rancher/k3s}
stamp=${RESTART_STAMP:-}
retry_seconds=${INSTALL_K3S_RETRY_SECONDS:-10}
bin=/usr/local/bin
units=/etc/systemd/system
export PATH="$bin:$PATH"

say() { echo "k3s installer: $*"; }

fail() {
    echo "k3s installer: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "must be root"
[ -d /run/systemd/system ] || fail "systemd is required on this machine"
case $data in
    /*) ;;
    *) fail "K3S_DATA_DIR=$data: must be an absolute path" ;;
esac
case $data in
    *[!A-Za-z0-9/._-]*) fail "K3S_DATA_DIR=$data: must consist of letters, digits and / . _ -" ;;
esac

# --- server or agent --------------------------------------------------------------------------------------------------

command=${INSTALL_K3S_EXEC:-server}
case $command in
    -*) command="server $command" ;;
esac
case $command in
    server | "server "*) service=k3s type=notify ;;
    agent | "agent "*) service=k3s-agent type=exec ;;
    *) fail "INSTALL_K3S_EXEC=$command: must begin with server or agent" ;;
esac
case $command in # it is part of a systemd unit, where other characters are special
    *[!A-Za-z0-9\ =:,./_@+-]*) fail "INSTALL_K3S_EXEC=$command: contains special characters; put such options into the config file of k3s" ;;
esac
unit=$units/$service.service
environment=$unit.env

# --- files ------------------------------------------------------------------------------------------------------------

changed=no # whether the service needs a restart

replace_if_changed() { # PATH MODE: replace PATH with PATH.new if they differ
    chmod "$2" "$1.new"
    if cmp -s "$1" "$1.new"; then
        rm "$1.new"
    else
        mv "$1.new" "$1"
        changed=yes
    fi
}

# The binary may be running, so it is replaced by a rename. A binary that this machine cannot run is not installed.
install_binary() {
    mkdir -p "$bin"
    if cmp -s "$here/k3s" "$bin/k3s"; then return; fi
    cp "$here/k3s" "$bin/k3s.new"
    chown root:root "$bin/k3s.new"
    chmod 755 "$bin/k3s.new"
    if ! output=$("$bin/k3s.new" --version 2>&1); then
        rm "$bin/k3s.new"
        fail "the k3s of this image ($(cat "$here/VERSION")) does not run on this machine ($(uname -m)): $output"
    fi
    replace_if_changed "$bin/k3s" 755
}

# k3s acts as these programs if it is called by their names. Existing programs of the machine are kept.
link_programs() {
    for name in kubectl crictl ctr; do
        command -v "$name" > /dev/null || ln -sf k3s "$bin/$name"
    done
}

install_scripts() {
    install -m 755 "$here/killall.sh" "$bin/k3s-killall.sh"
    install -m 755 "$here/uninstall.sh" "$bin/$service-uninstall.sh"
}

# Pass on the variables for k3s and containerd, and the proxy settings.
write_environment() {
    pattern='^(K3S_|CONTAINERD_|(no|NO|http|HTTP|https|HTTPS)_(proxy|PROXY)=)'
    umask 077
    env | grep -E "$pattern" | LC_ALL=C sort | sed 's/\\/\\\\/g; s/"/\\"/g; s/^\([^=]*\)=\(.*\)$/\1="\2"/' > "$environment.new"
    umask 022
    replace_if_changed "$environment" 600
}

write_unit() {
    cat > "$unit.new" << UNIT
[Unit]
Description=Lightweight Kubernetes
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=$type
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
EnvironmentFile=-$environment
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=$bin/k3s $command
# Containers keep running while k3s restarts.
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s

[Install]
WantedBy=multi-user.target
UNIT
    replace_if_changed "$unit" 644
    [ "$changed" = no ] || systemctl daemon-reload
}

# --- the service ------------------------------------------------------------------------------------------------------

# Servers join etcd one at a time: etcd rejects a second learner, so this server retries.
start_service() { # restart or start
    verb=$1
    since=$(date +%s)
    until systemctl "$verb" "$service"; do
        journalctl --sync || true # the last lines may not be in the journal yet
        log=$(journalctl --no-pager -o cat -u "$service" --since "@$since" | tail -n 200)
        case $log in
            *"too many learner members"*) ;;
            *) fail "$service does not start; last lines of its log:
$(echo "$log" | tail -n 15)" ;;
        esac
        say "another server is joining etcd; retrying $service in $retry_seconds s"
        sleep "$retry_seconds"
        verb=start # systemd may have restarted it in the meantime
        since=$(date +%s)
    done
}

install_binary
link_programs
install_scripts
write_environment
write_unit
[ "${INSTALL_K3S_SKIP_ENABLE:-}" = true ] || systemctl enable -q "$service"
if [ "${INSTALL_K3S_SKIP_START:-}" = true ]; then
    say "$(cat "$here/VERSION") is installed; $service is not started"
    exit 0
fi
mkdir -p "$data"
[ "$stamp" = "$(cat "$data/restart_stamp" 2> /dev/null || true)" ] || changed=yes
if [ "$changed" = yes ]; then
    rm -f "$data/restart_stamp" # an interrupted restart is repeated
    start_service restart
elif ! systemctl is-active -q "$service"; then
    start_service start
fi
echo "$stamp" > "$data/restart_stamp"
say "$service is running, $(cat "$here/VERSION")"

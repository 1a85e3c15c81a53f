#!/bin/sh
# Installs k3s on this machine, as a server or an agent, and starts it again when what it was told is new. Returns when
# the service is up. Run as often as anybody likes: what is already so costs nothing.
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
[ -d /run/systemd/system ] || fail "systemd is needed on this machine"
case $data in
    /*) ;;
    *) fail "K3S_DATA_DIR=$data: must be an absolute path" ;;
esac
case $data in
    *[!A-Za-z0-9/._-]*) fail "K3S_DATA_DIR=$data: only letters, digits and / . _ - can be used" ;;
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
case $command in # it stands in a unit of systemd, where other characters have a meaning
    *[!A-Za-z0-9\ =:,./_@+-]*) fail "INSTALL_K3S_EXEC=$command: what else k3s is to know belongs into its config file" ;;
esac
unit=$units/$service.service
environment=$unit.env

# --- files ------------------------------------------------------------------------------------------------------------

new=no # whether anything is, of what the service runs with

take_over() { # PATH MODE: what is at PATH.new takes its place, unless it is the same
    chmod "$2" "$1.new"
    if cmp -s "$1" "$1.new"; then
        rm "$1.new"
    else
        mv "$1.new" "$1"
        new=yes
    fi
}

# Replaced beside and renamed, for it may be running; and not by what cannot be run here.
install_binary() {
    mkdir -p "$bin"
    if cmp -s "$here/k3s" "$bin/k3s"; then return; fi
    cp "$here/k3s" "$bin/k3s.new"
    chown root:root "$bin/k3s.new"
    chmod 755 "$bin/k3s.new"
    if ! told=$("$bin/k3s.new" --version 2>&1); then
        rm "$bin/k3s.new"
        fail "the k3s of this image ($(cat "$here/VERSION")) cannot be run on this machine, $(uname -m): $told"
    fi
    take_over "$bin/k3s" 755
}

# K3s is these programs too, when it is called so. Those that a machine has of its own stay.
link_programs() {
    for name in kubectl crictl ctr; do
        command -v "$name" > /dev/null || ln -sf k3s "$bin/$name"
    done
}

install_scripts() {
    install -m 755 "$here/killall.sh" "$bin/k3s-killall.sh"
    install -m 755 "$here/uninstall.sh" "$bin/$service-uninstall.sh"
}

# What is meant for k3s of what the installer was given, and by which way it gets out.
write_environment() {
    meant='^(K3S_|CONTAINERD_|(no|NO|http|HTTP|https|HTTPS)_(proxy|PROXY)=)'
    umask 077
    env | grep -E "$meant" | LC_ALL=C sort | sed 's/\\/\\\\/g; s/"/\\"/g; s/^\([^=]*\)=\(.*\)$/\1="\2"/' > "$environment.new"
    umask 022
    take_over "$environment" 600
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
# Containers go on while k3s is started again.
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
    take_over "$unit" 644
    [ "$new" = no ] || systemctl daemon-reload
}

# --- the service ------------------------------------------------------------------------------------------------------

# Servers join etcd one after the other: who comes while another is about to is refused, and comes again.
bring_up() { # restart or start
    verb=$1
    since=$(date +%s)
    until systemctl "$verb" "$service"; do
        journalctl --sync || true # what it wrote last may still be on its way there
        told=$(journalctl --no-pager -o cat -u "$service" --since "@$since" | tail -n 200)
        case $told in
            *"too many learner members"*) ;;
            *) fail "$service does not start; the end of its log:
$(echo "$told" | tail -n 15)" ;;
        esac
        say "another server is about to join etcd: $service tries again in $retry_seconds s"
        sleep "$retry_seconds"
        verb=start # systemd may have started it again meanwhile
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
    say "$(cat "$here/VERSION") is installed; $service is left as it is"
    exit 0
fi
mkdir -p "$data"
[ "$stamp" = "$(cat "$data/restart_stamp" 2> /dev/null || true)" ] || new=yes
if [ "$new" = yes ]; then
    rm -f "$data/restart_stamp" # what was interrupted is done again
    bring_up restart
elif ! systemctl is-active -q "$service"; then
    bring_up start
fi
echo "$stamp" > "$data/restart_stamp"
say "$service runs, $(cat "$here/VERSION")"

#!/bin/sh
# Uninstall the node agent. Software that its plans installed, such as Kubernetes, has uninstallers of its own.
set -u

SERVICE=rancher-system-agent
: "${CATTLE_AGENT_CONFIG_DIR:=/etc/rancher/agent}" "${CATTLE_AGENT_VAR_DIR:=/var/lib/rancher/agent}"
for directory in "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR"; do
    case $directory in
        /*/*[!/.]*) ;;
        *)
            echo "$directory: not a directory of the node agent; nothing is removed" >&2
            exit 2
            ;;
    esac
done

if [ -d /run/systemd/system ]; then
    systemctl disable --now $SERVICE 2>/dev/null
    rm -f /etc/systemd/system/$SERVICE.service /etc/systemd/system/$SERVICE.env
    systemctl daemon-reload
    systemctl reset-failed $SERVICE 2>/dev/null
elif [ -s /run/$SERVICE.pid ]; then
    kill "$(cat /run/$SERVICE.pid)" 2>/dev/null
fi
rm -f "/etc/herder/boot.d/40-$SERVICE"
rm -rf "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR"
for prefix in "${CATTLE_AGENT_BIN_PREFIX:-/usr/local}" /usr/local /opt/$SERVICE; do
    rm -f "$prefix/bin/$SERVICE" "$prefix/bin/$SERVICE.previous" "$prefix/bin/$SERVICE-uninstall.sh"
done

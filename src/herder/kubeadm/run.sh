#!/bin/sh
# Makes this machine a server or a worker of a kubeadm cluster, and brings what it is told later to what runs here.
# Run as often as anybody likes: what is already so costs nothing.
set -eu

here=${CATTLE_AGENT_EXECUTION_PWD:-$(cd "$(dirname "$0")" && pwd)}
config=/etc/rancher/kubeadm
state=/var/lib/rancher/kubeadm
role=${INSTALL_KUBEADM_EXEC:-server} # init, server or agent
admin=/etc/kubernetes/admin.conf
version=$(cat "$here/VERSION")
export PATH="/usr/local/bin:$PATH"

say() { echo "kubeadm installer: $*"; }

fail() {
    echo "kubeadm installer: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "must be root"
[ -d /run/systemd/system ] || fail "systemd is needed on this machine"
command -v containerd > /dev/null || fail "containerd is needed on this machine; install the package containerd"
command -v python3 > /dev/null || fail "python3 is needed on this machine"
mkdir -p "$state" /etc/kubernetes /etc/cni/net.d
name=$(cat "$config/node-name" 2> /dev/null || true)
[ -n "$name" ] || name=$(hostname | tr '[:upper:]' '[:lower:]')
installed=$(cat "$state/version" 2> /dev/null || true)
new=no
[ "${RESTART_STAMP:-}" = "$(cat "$state/restart_stamp" 2> /dev/null || true)" ] || new=yes

write_if_new() { # PATH MODE; true if the file was another
    cat > "$1.new"
    chmod "$2" "$1.new"
    if [ -f "$1" ] && cmp -s "$1" "$1.new"; then
        rm "$1.new"
        return 1
    fi
    mv "$1.new" "$1"
}

install_program() { # NAME; replaced beside and renamed, for it may be running
    if ! cmp -s "$here/bin/$1" "/usr/local/bin/$1"; then
        cp "$here/bin/$1" "/usr/local/bin/.$1.new"
        chmod 755 "/usr/local/bin/.$1.new"
        mv "/usr/local/bin/.$1.new" "/usr/local/bin/$1"
    fi
}

# --- what the machine needs -------------------------------------------------------------------------------------------

prepare_network() {
    write_if_new /etc/sysctl.d/90-herder-kubeadm.conf 644 << 'SYSCTL' || true
net.ipv4.ip_forward = 1
net.ipv6.conf.all.forwarding = 1
SYSCTL
    sysctl -q -w net.ipv4.ip_forward=1
    sysctl -q -w net.ipv6.conf.all.forwarding=1 2> /dev/null || true
}

# The servers by one name: whoever asks for it tries each of them in turn.
name_servers() {
    mark='# control plane of this cluster'
    { grep -v "$mark\$" /etc/hosts || true; sed "s/\$/ control-plane.herder.internal $mark/" "$config/endpoints"; } > "$state/hosts"
    cmp -s "$state/hosts" /etc/hosts || cat "$state/hosts" > /etc/hosts
}

import_images() {
    [ "$(cat "$state/images" 2> /dev/null || true)" = "$version $role" ] && return
    systemctl is-active -q containerd || systemctl restart containerd
    for archive in "$here"/images/*.tar; do
        case $role in
            agent) case $archive in */pause.tar) ;; *) continue ;; esac ;;
        esac
        ctr -n k8s.io images import "$archive" > /dev/null
    done
    name_pause_as_wanted
    echo "$version $role" > "$state/images"
}

# The runtime starts every pod with an image of its own choice: the one that is here is called so too.
name_pause_as_wanted() {
    wanted=$(containerd config dump | sed -n 's/^ *sandbox_image = "\(.*\)"$/\1/p' | head -n 1)
    there=$(ctr -n k8s.io images list -q | grep '/pause:' | head -n 1)
    if [ -n "$wanted" ] && [ -n "$there" ] && [ "$wanted" != "$there" ]; then
        ctr -n k8s.io images tag --force "$there" "$wanted" > /dev/null
    fi
}

kubelet_service() {
    changed=no
    write_if_new /etc/systemd/system/kubelet.service 644 << 'UNIT' && changed=yes
[Unit]
Description=kubelet
After=containerd.service
Wants=containerd.service
StartLimitIntervalSec=0

[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/rancher/kubeadm/kubelet.env
ExecStart=/usr/local/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
    --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \
    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1s

[Install]
WantedBy=multi-user.target
UNIT
    [ "$changed" = no ] || systemctl daemon-reload
    systemctl enable -q kubelet
}

# --- becoming a member ------------------------------------------------------------------------------------------------

authorities() {
    [ "$role" != agent ] || return 0
    mkdir -p /etc/kubernetes/pki/etcd
    for file in ca.crt ca.key sa.key sa.pub front-proxy-ca.crt front-proxy-ca.key etcd/ca.crt etcd/ca.key; do
        install -m 600 "$config/pki/$file" "/etc/kubernetes/pki/$file"
    done
}

become_member() {
    if [ -e "$state/member" ]; then return; fi
    if [ -e "$state/joining" ]; then
        say "the last attempt was not finished: what it left is removed first"
        kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock || true
        rm -rf /etc/cni/net.d/*herder*
    fi
    touch "$state/joining"
    authorities
    if [ "$role" = init ]; then
        kubeadm init --config "$config/init.yaml"
    else
        kubeadm join --config "$config/join.yaml"
    fi
    echo "$version" > "$state/version"
    touch "$state/member"
    rm "$state/joining"
    installed=$version
    new=no
}

# --- what changes later -----------------------------------------------------------------------------------------------

upgrade() {
    [ "$installed" != "$version" ] || return 0
    ignored=SystemVerification,CoreDNSUnsupportedPlugins,CoreDNSMigration,CreateJob
    if [ "$role" = init ]; then
        kubeadm init phase upload-config kubeadm --config "$config/init.yaml"
        kubeadm upgrade apply "v${version#v}" --yes --ignore-preflight-errors="$ignored" --certificate-renewal=false
    else
        kubeadm upgrade node --ignore-preflight-errors="$ignored" --certificate-renewal=false
    fi
    install_program kubelet
    systemctl restart kubelet
    echo "$version" > "$state/version"
}

reconfigure() {
    [ "$new" = yes ] || return 0
    if [ "$role" != agent ]; then
        kubeadm init phase certs apiserver --config "$config/init.yaml" > /dev/null
        kubeadm init phase control-plane all --config "$config/init.yaml" > /dev/null
        [ "$role" != init ] || kubeadm init phase upload-config kubeadm --config "$config/init.yaml" > /dev/null
    fi
    systemctl restart kubelet
}

labels() {
    [ -s "$config/labels" ] || return 0
    who=/etc/kubernetes/kubelet.conf
    [ ! -e "$admin" ] || who=$admin
    # A machine that has just joined registers its Node a moment later. One word for each label, as the file has one
    # line for each: labels have no spaces.
    tries=60
    until xargs kubectl --kubeconfig "$who" label --overwrite node "$name" < "$config/labels" > /dev/null 2> "$state/problem"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "labels: $(cat "$state/problem")"
        sleep 1
    done
}

manifests() {
    [ "$role" = init ] || return 0
    for file in "$config"/manifests/*.yaml; do
        [ -s "$file" ] || continue
        kubectl --kubeconfig "$admin" apply --server-side --force-conflicts --field-manager=deploy@herder -f "$file"
    done
}

# --- beside the kubelet -----------------------------------------------------------------------------------------------

beside() {
    install -m 644 "$here/node_service.py" "$state/node_service.py.new"
    if ! cmp -s "$state/node_service.py.new" "$state/node_service.py"; then restart_beside=yes; else restart_beside=$new; fi
    mv "$state/node_service.py.new" "$state/node_service.py"
    server=
    [ "$role" = agent ] || server=--server
    write_if_new /etc/systemd/system/kube-proxy.service 644 << 'UNIT' && restart_beside=yes
[Unit]
Description=kube-proxy
After=kubelet.service

[Service]
ExecStart=/usr/local/bin/kube-proxy --config=/etc/rancher/kubeadm/kube-proxy.yaml
Restart=always
RestartSec=1s

[Install]
WantedBy=multi-user.target
UNIT
    write_if_new /etc/systemd/system/herder-node-service.service 644 << UNIT && restart_beside=yes
[Unit]
Description=Routes to the pods of other machines
After=kubelet.service

[Service]
ExecStart=/usr/bin/env python3 $state/node_service.py --kubeconfig $config/nodes.kubeconfig --node $name --pods $(cat "$config/pods") $server
Restart=always
RestartSec=1s

[Install]
WantedBy=multi-user.target
UNIT
    [ "$restart_beside" = yes ] || return 0
    systemctl daemon-reload
    systemctl enable -q kube-proxy herder-node-service
    systemctl restart kube-proxy herder-node-service
}

case $name in
    *[!a-z0-9.-]*) fail "node name $name: only lower case letters, digits, . and - can be used" ;;
esac

prepare_network
name_servers
install_program kubeadm
install_program kubectl
install_program kube-proxy
[ "$role" = agent ] || install_program etcdctl
[ -n "$installed" ] || install_program kubelet
import_images
kubelet_service
become_member
upgrade
reconfigure
labels
manifests
beside
echo "${RESTART_STAMP:-}" > "$state/restart_stamp"
say "$name is a member, $version"

#!/bin/sh
# Join this machine to a kubeadm cluster as a server or a worker, and apply later changes of its configuration.
# The script is idempotent.
set -eu

here=${CATTLE_AGENT_EXECUTION_PWD:-$(cd "$(dirname "$0")" && pwd)}
config=/etc/rancher/kubeadm
state=/var/lib/rancher/kubeadm
role=${INSTALL_KUBEADM_EXEC:-server} # init, server or agent
admin=/etc/kubernetes/admin.conf
manifests=/etc/kubernetes/manifests
kubelet_pki=/var/lib/kubelet/pki
pki=/etc/kubernetes/pki
patches=$state/patches # of the manifests; init.yaml and join.yaml name this directory
stopped=/etc/kubernetes/stopped-manifests # of a server that an operation has stopped
build=$(cat "$here/VERSION") # such as v1.36.3+kubeadm1
version=${build%%+*}
export PATH="/usr/local/bin:$PATH"

say() { echo "kubeadm installer: $*"; }

fail() {
    echo "kubeadm installer: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "must be root"
[ -d /run/systemd/system ] || fail "systemd is required on this machine"
command -v containerd > /dev/null || fail "containerd is required on this machine; install the package containerd"
command -v python3 > /dev/null || fail "python3 is required on this machine"
mkdir -p "$state" /etc/kubernetes /etc/cni/net.d
name=$(cat "$config/node-name" 2> /dev/null || true)
[ -n "$name" ] || name=$(hostname | tr '[:upper:]' '[:lower:]')
installed=$(cat "$state/version" 2> /dev/null || true)
changed=no
[ "${RESTART_STAMP:-}" = "$(cat "$state/restart_stamp" 2> /dev/null || true)" ] || changed=yes
ignored=
[ -e /sys/fs/cgroup/cgroup.controllers ] || ignored=SystemVerification # it rejects version 1 of control groups

write_if_changed() { # PATH MODE; true if the file changed
    cat > "$1.new"
    chmod "$2" "$1.new"
    if [ -f "$1" ] && cmp -s "$1" "$1.new"; then
        rm "$1.new"
        return 1
    fi
    mv "$1.new" "$1"
}

install_program() { # NAME; true if it changed. The program may be running, so it is replaced by a rename
    if cmp -s "$here/bin/$1" "/usr/local/bin/$1"; then return 1; fi
    cp "$here/bin/$1" "/usr/local/bin/.$1.new"
    chmod 755 "/usr/local/bin/.$1.new"
    mv "/usr/local/bin/.$1.new" "/usr/local/bin/$1"
}

# The etcd of a stopped server has the data of before a restore. Only the operation starts it, or drops the data.
refuse_stopped() {
    [ ! -e "$stopped/etcd.yaml" ] || fail "a restore has stopped this server and has not finished; request the restore \
again, or delete the machine"
}

# What snapshots of etcd and rotations of encryption keys need.
install_etcd_tools() {
    for each in etcdctl etcdutl herder-snapshots; do
        install_program "$each" || true
    done
    write_if_changed "$state/reencrypt.py" 644 < "$here/reencrypt.py" || true
}

# --- prerequisites ----------------------------------------------------------------------------------------------------

prepare_network() {
    write_if_changed /etc/sysctl.d/90-herder-kubeadm.conf 644 << 'SYSCTL' || true
net.ipv4.ip_forward = 1
net.ipv6.conf.all.forwarding = 1
SYSCTL
    sysctl -q -w net.ipv4.ip_forward=1
    sysctl -q -w net.ipv6.conf.all.forwarding=1 2> /dev/null || true
}

# All servers have one name; clients try its addresses in turn.
write_hosts() {
    mark='# control plane of this cluster'
    { grep -v "$mark\$" /etc/hosts || true; sed "s/\$/ control-plane.herder.internal $mark/" "$config/endpoints"; } > "$state/hosts"
    cmp -s "$state/hosts" /etc/hosts || cat "$state/hosts" > /etc/hosts
}

container_runtime() {
    serves_kubernetes || systemctl restart containerd
    serves_kubernetes || fail "the CRI plug-in of containerd does not run; for the reason, run: journalctl -u containerd. \
\"too many open files\" means that the host's limit fs.inotify.max_user_instances is reached"
}

serves_kubernetes() { ctr plugins list 2> /dev/null | awk '$2 == "cri" && $4 != "ok" { bad = 1 } END { exit bad || !NR }'; }

import_images() {
    [ "$(cat "$state/images" 2> /dev/null || true)" = "$build $role" ] && return
    for archive in "$here"/images/*.tar; do
        case $role in
            agent) case $archive in */pause.tar) ;; *) continue ;; esac ;;
        esac
        ctr -n k8s.io images import "$archive" > /dev/null
    done
    tag_pause_image
    echo "$build $role" > "$state/images"
}

# containerd starts every pod with the sandbox image of its configuration; the imported image gets that name too.
tag_pause_image() {
    wanted=$(containerd config dump | sed -n 's/^ *sandbox_image = "\(.*\)"$/\1/p' | head -n 1)
    imported=$(ctr -n k8s.io images list -q | grep '/pause:' | head -n 1)
    if [ -n "$wanted" ] && [ -n "$imported" ] && [ "$wanted" != "$imported" ]; then
        ctr -n k8s.io images tag --force "$imported" "$wanted" > /dev/null
    fi
}

# Another build of the same version has images of the same names. The annotation makes the kubelet restart the pods.
# etcd is left out: the kubelet first deletes the old mirror pod through the API, which needs etcd.
annotate_build() {
    mkdir -p "$patches"
    for each in kube-apiserver kube-controller-manager kube-scheduler; do
        echo "{\"metadata\": {\"annotations\": {\"kubeadm.herder.io/build\": \"$build\"}}}" > "$patches/$each+merge.json"
    done
    # csr_approver.py approves instead, because this controller approves any node name for the token that workers have.
    # The first mention of a controller takes precedence, so this flag precedes those of kubeadm and of users.
    cat > "$patches/kube-controller-manager-approval+json.json" << 'PATCH'
[{"op": "add", "path": "/spec/containers/0/command/1",
  "value": "--controllers=-certificatesigningrequest-approving-controller"}]
PATCH
}

# These settings depend on the machine: the version of its control groups and their manager.
kubelet_settings() {
    mkdir -p "$state/kubelet.conf.d"
    driver=cgroupfs
    ! containerd config dump | grep -q 'SystemdCgroup = true' || driver=systemd
    fail_cgroup_v1=true
    [ -e /sys/fs/cgroup/cgroup.controllers ] || fail_cgroup_v1=false
    write_if_changed "$state/kubelet.conf.d/10-machine.conf" 600 << SETTINGS || true
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: $driver
failCgroupV1: $fail_cgroup_v1
SETTINGS
}

kubelet_service() {
    kubelet_settings
    write_if_changed /etc/systemd/system/kubelet.service 644 << UNIT && systemctl daemon-reload
[Unit]
Description=kubelet
After=containerd.service
Wants=containerd.service
StartLimitIntervalSec=0

[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-$config/kubelet.env
ExecStart=/usr/local/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
    --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \\
    --config-dir=$state/kubelet.conf.d \$KUBELET_KUBEADM_ARGS \$KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1s

[Install]
WantedBy=multi-user.target
UNIT
    systemctl enable -q kubelet
}

# The kubelet restarts only if one of its inputs changed. Pods keep running.
kubelet_inputs() {
    cat /etc/systemd/system/kubelet.service "$config/kubelet.env" "$state/kubelet.conf.d/10-machine.conf" \
        /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env | cksum
    cksum < /usr/local/bin/kubelet
}

restart_kubelet() {
    kubelet_inputs > "$state/kubelet.new"
    cmp -s "$state/kubelet.new" "$state/kubelet" || systemctl restart kubelet
    mv "$state/kubelet.new" "$state/kubelet"
}

# --- join -------------------------------------------------------------------------------------------------------------

install_authorities() {
    [ "$role" != agent ] || return 0
    mkdir -p /etc/kubernetes/pki/etcd
    for file in ca.crt ca.key sa.key sa.pub front-proxy-ca.crt front-proxy-ca.key etcd/ca.crt etcd/ca.key; do
        install -m 600 "$config/pki/$file" "/etc/kubernetes/pki/$file"
    done
}

# A node name is issued to one key (csr_approver.py), and kubeadm reset deletes it.
keep_kubelet_key() {
    for file in kubelet-client-current.pem kubelet-client.key.tmp; do
        [ -e "$kubelet_pki/$file" ] || continue
        mkdir -p "$state/kubelet-pki"
        install -m 600 "$kubelet_pki/$file" "$state/kubelet-pki/$file"
    done
}

restore_kubelet_key() {
    [ -d "$state/kubelet-pki" ] || return 0
    mkdir -p "$kubelet_pki"
    for file in "$state"/kubelet-pki/*; do
        install -m 600 "$file" "$kubelet_pki/kept-${file##*/}"
        ln -sf "kept-${file##*/}" "$kubelet_pki/${file##*/}" # the kubelet renews its certificate only if this is a link
    done
}

# With rotation, a kubelet that restarts before it has its first certificate requests one with another key. Without it,
# the kubelet keeps the key in a file. Servers are left out: their kubelets start the API server that they ask.
join_settings() {
    [ "$role" = agent ] || return 0
    write_if_changed "$state/kubelet.conf.d/20-join.conf" 600 << 'SETTINGS' || true
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
rotateCertificates: false
SETTINGS
}

end_join_settings() {
    [ -e "$state/kubelet.conf.d/20-join.conf" ] || return 0
    rm "$state/kubelet.conf.d/20-join.conf"
    systemctl restart kubelet
}

join() {
    if [ -e "$state/member" ]; then return; fi
    keep_data=
    if [ -e "$state/restored" ]; then # the data of etcd, from a snapshot
        keep_data=--skip-phases=remove-etcd-member ignored=$ignored,DirAvailable--var-lib-etcd
    fi
    if [ -e "$state/joining" ]; then
        say "removing the remains of an interrupted attempt"
        keep_kubelet_key
        # shellcheck disable=SC2086 # a flag or nothing
        kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock $keep_data || true
        rm -rf /etc/cni/net.d/*herder*
        [ "$role" = init ] || restore_kubelet_key
    fi
    touch "$state/joining"
    install_authorities
    if [ "$role" = init ]; then
        kubeadm init --config "$config/init.yaml" --ignore-preflight-errors="$ignored"
        cp "$config/names" "$state/names"
    else
        join_settings
        kubeadm join --config "$config/join.yaml" --ignore-preflight-errors="$ignored"
        end_join_settings
    fi
    echo "$version" > "$state/version"
    kubelet_inputs > "$state/kubelet"
    touch "$state/member"
    rm -rf "$state/joining" "$state/restored" "$state/kubelet-pki"
    installed=$version
    # A server joins with the settings of the first one; its own may differ.
    [ "$role" = server ] || changed=no
}

# A server whose etcd data was dropped joins etcd again. It has everything else that kubeadm join creates.
rejoin_etcd() {
    [ "$role" != agent ] || return 0
    if [ ! -e "$manifests/etcd.yaml" ]; then
        say "joining etcd again"
        systemctl start kubelet
        leave_etcd
        phase=etcd-join # of kubeadm 1.34 and later
        ! kubeadm join phase control-plane-join --help | grep -q '^ *etcd ' || phase="control-plane-join etcd"
        # shellcheck disable=SC2086 # the name of a phase
        kubeadm join phase $phase --config "$config/join.yaml"
    fi
    for file in "$stopped"/*.yaml; do
        [ ! -e "$file" ] || mv "$file" "$manifests/"
    done
}

# Remove the member of an interrupted attempt: etcd cannot start it without its data.
leave_etcd() {
    own=$(head -n 1 "$config/endpoints")
    others=$(tail -n +2 "$config/endpoints" | while read -r each; do url "$each" 2379; done | paste -sd , -)
    member=$(etcd_members list | awk -F ', ' -v "peer=$(url "$own" 2380)" '$4 == peer { print $1 }')
    [ -z "$member" ] || etcd_members remove "$member"
}

etcd_members() {
    etcdctl --endpoints "$others" --cacert "$pki/etcd/ca.crt" --cert "$pki/etcd/healthcheck-client.crt" \
        --key "$pki/etcd/healthcheck-client.key" member "$@"
}

url() { # ADDRESS PORT
    case $1 in
        *:*) echo "https://[$1]:$2" ;;
        *) echo "https://$1:$2" ;;
    esac
}

# --- later changes ----------------------------------------------------------------------------------------------------

# New flags are applied together with the new version, which may no longer support an old flag.
upgrade() {
    [ "$installed" != "$version" ] || return 0
    ignored=$ignored,CoreDNSUnsupportedPlugins,CoreDNSMigration,CreateJob
    if [ "$role" = init ]; then
        sed "s/\"kubernetesVersion\": \"$version\"/\"kubernetesVersion\": \"$installed\"/" "$config/init.yaml" > "$state/upgraded.yaml"
        kubeadm init phase upload-config kubeadm --config "$state/upgraded.yaml" > /dev/null
        rm "$state/upgraded.yaml"
        kubeadm upgrade apply "$version" --yes --ignore-preflight-errors="$ignored" --certificate-renewal=false \
            --patches "$patches"
    else
        kubeadm upgrade node --ignore-preflight-errors="$ignored" --certificate-renewal=false --patches "$patches"
    fi
    echo "$version" > "$state/version"
}

reconfigure() {
    [ "$changed" = yes ] || return 0
    [ "$role" = agent ] || reconfigure_control_plane # first: the new flags may be what makes the API server work again
    [ "$role" != init ] || kubeadm init phase upload-config all --config "$config/init.yaml" > /dev/null
    kubeadm upgrade node phase kubelet-config > /dev/null
}

reconfigure_control_plane() {
    if ! cmp -s "$config/names" "$state/names"; then # of the serving certificate, which the API server reloads
        rm -f /etc/kubernetes/pki/apiserver.crt /etc/kubernetes/pki/apiserver.key
        kubeadm init phase certs apiserver --config "$config/init.yaml" > /dev/null
        cp "$config/names" "$state/names"
    fi
    for each in kube-apiserver kube-controller-manager kube-scheduler; do
        install -m 600 "$manifests/$each.yaml" "$state/$each.yaml"
        processes "$each" > "$state/$each.running"
    done
    kubeadm init phase control-plane all --config "$config/init.yaml" > /dev/null
    for each in kube-apiserver kube-controller-manager kube-scheduler; do
        cmp -s "$manifests/$each.yaml" "$state/$each.yaml" || wait_until_replaced "$each"
    done
}

processes() { pgrep -f "^$1 --" || true; }

# The kubelet needs some time, and the old process responds until then.
wait_until_replaced() {
    tries=300
    while [ "$tries" -gt 0 ]; do
        processes "$1" > "$state/$1.now"
        if [ -s "$state/$1.now" ] && ! grep -qxF -f "$state/$1.running" "$state/$1.now" && responds "$1"; then return; fi
        tries=$((tries - 1))
        sleep 1
    done
    fail "$1 does not run with its new flags after 5 minutes; for the reason, see /var/log/pods/kube-system_$1-${name}_*"
}

responds() { # COMPONENT; probes check the others
    [ "$1" = kube-apiserver ] || return 0
    kubectl --kubeconfig "$admin" --server https://127.0.0.1:6443 --request-timeout=5s get --raw /readyz > /dev/null 2>&1
}

# A restored cluster does not know a Node that joined after the snapshot. A kubelet registers it only when it starts.
register_node() {
    [ "$changed" = yes ] && [ -e "$state/restart_stamp" ] || return 0
    ! kubectl --kubeconfig "$kubeconfig" get node "$name" 2>&1 | grep -qF '(NotFound)' || systemctl restart kubelet
}

apply_labels() {
    [ -s "$config/labels" ] || return 0
    # A machine that has just joined registers its Node a moment later. Labels contain no spaces, so each line of the
    # file is one argument.
    tries=60
    until xargs kubectl --kubeconfig "$kubeconfig" label --overwrite node "$name" < "$config/labels" > /dev/null 2> "$state/problem"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "labels: $(cat "$state/problem")"
        sleep 1
    done
}

apply_manifests() {
    [ "$role" = init ] || return 0
    for file in "$config"/manifests/*.yaml; do
        [ -s "$file" ] || continue
        kubectl --kubeconfig "$admin" apply --server-side --force-conflicts --field-manager=deploy@herder -f "$file"
    done
}

# --- other services ---------------------------------------------------------------------------------------------------

install_services() {
    restart_services=$changed
    ! install_program kube-proxy || restart_services=yes
    write_if_changed "$state/node_service.py" 644 < "$here/node_service.py" && restart_services=yes
    server= services="kube-proxy herder-node-service"
    [ "$role" = agent ] || install_approver
    write_if_changed /etc/systemd/system/kube-proxy.service 644 << 'UNIT' && restart_services=yes
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
    write_if_changed /etc/systemd/system/herder-node-service.service 644 << UNIT && restart_services=yes
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
    [ "$restart_services" = yes ] || return 0
    systemctl daemon-reload
    # shellcheck disable=SC2086 # names of units
    systemctl enable -q $services
    # shellcheck disable=SC2086
    systemctl restart $services
}

install_approver() {
    server=--server services="$services herder-csr-approver"
    write_if_changed "$state/csr_approver.py" 644 < "$here/csr_approver.py" && restart_services=yes
    write_if_changed /etc/systemd/system/herder-csr-approver.service 644 << UNIT && restart_services=yes
[Unit]
Description=Approval of kubelet client certificates
After=kubelet.service

[Service]
ExecStart=/usr/bin/env python3 $state/csr_approver.py --kubeconfig $admin
Restart=always
RestartSec=1s

[Install]
WantedBy=multi-user.target
UNIT
    return 0
}

case $name in
    *[!a-z0-9.-]*) fail "node name $name: must consist of lowercase letters, digits, . and -" ;;
esac

[ "${INSTALL_KUBEADM_SKIP_START:-}" = true ] || refuse_stopped
prepare_network
write_hosts
install_program kubeadm || true
install_program kubectl || true
[ "$role" = agent ] || install_etcd_tools
if [ "${INSTALL_KUBEADM_SKIP_START:-}" = true ]; then
    say "the programs of $build are installed; nothing is started"
    exit
fi
[ -n "$installed" ] || install_program kubelet || true
container_runtime
import_images
annotate_build
kubelet_service
join
rejoin_etcd
upgrade
install_program kubelet || true # never newer than the control plane
reconfigure
restart_kubelet
kubeconfig=/etc/kubernetes/kubelet.conf
[ ! -e "$admin" ] || kubeconfig=$admin
register_node
apply_labels
apply_manifests
install_services
echo "${RESTART_STAMP:-}" > "$state/restart_stamp"
say "$name is a member of the cluster, $build"

# --- the agent

pin_manager() {
    # Verify the manager before sending the token. After this, only the CA with this checksum is trusted.
    : >"$scratch/none"
    trust=system
    if [ -n "$CATTLE_CA_CHECKSUM" ]; then
        fetch "the manager's certificates" "$CATTLE_SERVER/cacerts" "$scratch/ca.crt" "$scratch/none" none 20
        [ -s "$scratch/ca.crt" ] || fatal $CHECKSUM_MISMATCH "$CATTLE_SERVER serves no CA certificates, but --ca-checksum is set"
        actual=$(digest "$scratch/ca.crt") || exit 1
        if [ "$actual" != "$CATTLE_CA_CHECKSUM" ]; then
            fatal $CHECKSUM_MISMATCH "the CA certificates of $CATTLE_SERVER have the checksum $actual, not $CATTLE_CA_CHECKSUM;" \
                "this is another manager, or its certificates were replaced: get a new registration command"
        fi
        trust=$scratch/ca.crt
    elif [ "$CATTLE_AGENT_STRICT_VERIFY" = true ]; then
        info "no --ca-checksum: verifying the manager with the CA certificates of this system"
    fi
    fetch "the manager" "$CATTLE_SERVER/healthz" "$scratch/answer" "$scratch/none" "$trust" 20
}

stop_agent() {
    is_running || return 0
    info "stopping the running agent"
    stopped=yes
    if has_systemd; then
        systemctl stop $SERVICE
    else
        kill "$(cat /run/$SERVICE.pid)" 2>/dev/null
        while is_running; do sleep 0.1; done
    fi
}

install_agent() {
    bin=$(prefix)/bin
    create_directory "$bin" 755
    base=${CATTLE_AGENT_BINARY_BASE_URL:-$CATTLE_SERVER/assets}
    interpreter=
    [ -n "$CATTLE_AGENT_BINARY_URL" ] || interpreter=$(find_python)
    if [ -n "$CATTLE_AGENT_BINARY_URL" ]; then
        url=$CATTLE_AGENT_BINARY_URL
    elif [ -n "$interpreter" ]; then
        url=$base/herder-agent.pyz
    else
        arch=$(architecture) || exit 1
        url=$base/$SERVICE-$arch
        info "python3 (3.6 or newer) not found: installing the agent that does not need it"
    fi
    info "downloading the agent from $url"
    fetch "the agent" "$url" "$scratch/agent" "$scratch/none" "$(trust_for "$url")" 600
    if [ -n "$CATTLE_AGENT_BINARY_CHECKSUM" ] && [ "$(digest "$scratch/agent")" != "$CATTLE_AGENT_BINARY_CHECKSUM" ]; then
        fatal 1 "the agent from $url does not have the checksum $CATTLE_AGENT_BINARY_CHECKSUM"
    fi
    install_file "$scratch/agent" 755 "$bin/$SERVICE"
    fetch "the uninstaller" "$base/system-agent-uninstall.sh" "$scratch/uninstall" "$scratch/none" "$(trust_for "$base")" 60
    install_file "$scratch/uninstall" 755 "$bin/$SERVICE-uninstall.sh"
}

trust_for() { # the pinned CA vouches for the manager only
    case $1 in
        "$CATTLE_SERVER"/*) echo "$trust" ;;
        *) echo system ;;
    esac
}

agent() {
    if [ -n "$interpreter" ]; then "$interpreter" "$bin/$SERVICE" "$@"; else "$bin/$SERVICE" "$@"; fi
}

write_config() {
    {
        echo "workDirectory: $CATTLE_AGENT_VAR_DIR/work"
        echo "appliedPlanDirectory: $CATTLE_AGENT_VAR_DIR/applied"
        echo "localEnabled: $CATTLE_LOCAL_ENABLED"
        echo "localPlanDirectory: $CATTLE_AGENT_VAR_DIR/plans"
        echo "remoteEnabled: $CATTLE_REMOTE_ENABLED"
        [ "$CATTLE_REMOTE_ENABLED" != true ] || echo "connectionInfoFile: $CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json"
        echo "preserveWorkDirectory: $CATTLE_PRESERVE_WORKDIR"
        echo "imagesDirectory: $CATTLE_AGENT_VAR_DIR/images"
        echo "interlockDirectory: $CATTLE_AGENT_VAR_DIR/interlock"
    } >"$scratch/config.yaml"
    install_file "$scratch/config.yaml" 600 "$CATTLE_AGENT_CONFIG_DIR/config.yaml"
}

load_machine_id() {
    # A reinstalled agent keeps the ID of its machine.
    id_file=$CATTLE_AGENT_CONFIG_DIR/cattle-id
    if [ -z "$CATTLE_ID" ] && [ -s "$id_file" ]; then
        CATTLE_ID=$(cat "$id_file")
    fi
    if [ -z "$CATTLE_ID" ]; then
        head -c 512 /dev/urandom >"$scratch/random"
        CATTLE_ID=$(digest "$scratch/random" | cut -c 1-63)
    fi
    say "$CATTLE_ID" >"$id_file"
}

connect() {
    public=$(addresses "$CATTLE_ADDRESS") || exit $?
    private=$(addresses "$CATTLE_INTERNAL_ADDRESS") || exit $?
    {
        say "Authorization: Bearer $CATTLE_TOKEN"
        say "X-Cattle-Id: $CATTLE_ID"
        if [ "$CATTLE_ROLE_NONE" != true ]; then
            say "X-Cattle-Role-Etcd: $CATTLE_ROLE_ETCD"
            say "X-Cattle-Role-Control-Plane: $CATTLE_ROLE_CONTROLPLANE"
            say "X-Cattle-Role-Worker: $CATTLE_ROLE_WORKER"
        fi
        [ -z "$CATTLE_NODE_NAME" ] || say "X-Cattle-Node-Name: $CATTLE_NODE_NAME"
        [ -z "$public" ] || say "X-Cattle-Address: $public"
        [ -z "$private" ] || say "X-Cattle-Internal-Address: $private"
        [ -z "$CATTLE_LABELS" ] || say "X-Cattle-Labels: $CATTLE_LABELS"
        [ -z "$CATTLE_TAINTS" ] || say "X-Cattle-Taints: $CATTLE_TAINTS"
    } >"$scratch/headers"
    connection=$scratch/rancher2_connection_info.json
    fetch "the connection" "$CATTLE_SERVER/v3/connect/agent" "$connection" "$scratch/headers" "$trust" $CONNECT_SECONDS
    rm -f "$scratch/headers" "$scratch/request"
    agent validate-connection "$connection" || fatal 1 "the agent rejects the connection info of the manager"
    install_file "$connection" 600 "$CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json"
}

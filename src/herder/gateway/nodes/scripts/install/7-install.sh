# --- step by step

tell_success() {
    # What infrastructure providers look for, by Cluster API's contract.
    mkdir -p /run/cluster-api && chmod 755 /run/cluster-api && echo success >/run/cluster-api/bootstrap-success.complete
}

install() {
    parse_arguments "$@"
    fill_in
    check
    make_directories
    wait_for_agent
    [ "$CATTLE_REMOTE_ENABLED" != true ] || pin_manager
    stop_agent
    install_agent
    write_config
    if [ "$CATTLE_REMOTE_ENABLED" = true ]; then
        know_itself
        connect
    fi
    if has_systemd; then start_under_systemd; else start_by_itself; fi
    stopped=no
    tell_success
    info "the agent is installed and runs"
}

install "$@" </dev/null
exit 0

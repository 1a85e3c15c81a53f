# --- main

report_success() {
    # Cluster API's contract: infrastructure providers look for this file.
    mkdir -p /run/cluster-api && chmod 755 /run/cluster-api && echo success >/run/cluster-api/bootstrap-success.complete
}

install() {
    parse_arguments "$@"
    set_defaults
    check_arguments
    create_directories
    wait_for_agent
    [ "$CATTLE_REMOTE_ENABLED" != true ] || pin_manager
    stop_agent
    install_agent
    write_config
    if [ "$CATTLE_REMOTE_ENABLED" = true ]; then
        load_machine_id
        connect
    fi
    if has_systemd; then start_under_systemd; else start_without_systemd; fi
    stopped=no
    report_success
    info "the agent is installed and running"
}

install "$@" </dev/null
exit 0

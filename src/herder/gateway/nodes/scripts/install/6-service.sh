# --- service

proxies() { env | grep -iE '^(no|http|https)_proxy='; }

start_under_systemd() {
    units=/etc/systemd/system
    cat >"$scratch/unit" <<UNIT
[Unit]
Description=Rancher System Agent
Documentation=https://www.rancher.com
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile=-/etc/default/$SERVICE
EnvironmentFile=-/etc/sysconfig/$SERVICE
EnvironmentFile=-/etc/systemd/system/$SERVICE.env
Type=simple
Restart=always
RestartSec=5s
Environment=CATTLE_LOGLEVEL=$CATTLE_AGENT_LOGLEVEL
Environment=CATTLE_AGENT_CONFIG=$CATTLE_AGENT_CONFIG_DIR/config.yaml
Environment=CATTLE_AGENT_STRICT_VERIFY=$CATTLE_AGENT_STRICT_VERIFY
ExecStart=${interpreter:+$interpreter }$bin/$SERVICE sentinel

[Install]
WantedBy=multi-user.target
UNIT
    install_file "$scratch/unit" 644 $units/$SERVICE.service
    {
        proxies | sed 's/\\/\\\\/g; s/"/\\"/g; s/^\([^=]*\)=\(.*\)$/\1="\2"/'
        say "PATH=\"$PATH\""
    } >"$scratch/env"
    install_file "$scratch/env" 600 $units/$SERVICE.env
    if ! systemctl daemon-reload || ! systemctl enable --quiet $SERVICE || ! systemctl restart $SERVICE; then
        fatal 1 "systemd could not start $SERVICE; for the reason, run: systemctl status $SERVICE"
    fi
}

start_without_systemd() {
    # Process machines run the scripts in boot.d whenever they boot.
    create_directory "${BOOT_SCRIPT%/*}" 755
    proxies | sed "s/'/'\\\\''/g; s/^\([^=]*\)=\(.*\)\$/export \1='\2'/" >"$scratch/proxies"
    {
        cat <<PROGRAM
#!/bin/sh
# Keep the node agent running: restart it five seconds after it exits.
pid_file=/run/$SERVICE.pid
[ -s "\$pid_file" ] && kill -0 "\$(cat "\$pid_file")" 2>/dev/null && exit 0
echo \$\$ >"\$pid_file"
child=
trap 'trap "" TERM; [ -z "\$child" ] || kill "\$child" 2>/dev/null; wait; rm -f "\$pid_file"; exit 0' TERM INT
PROGRAM
        cat "$scratch/proxies"
        cat <<PROGRAM
export CATTLE_LOGLEVEL=$CATTLE_AGENT_LOGLEVEL CATTLE_AGENT_CONFIG=$CATTLE_AGENT_CONFIG_DIR/config.yaml
export CATTLE_AGENT_STRICT_VERIFY=$CATTLE_AGENT_STRICT_VERIFY
log=$CATTLE_AGENT_VAR_DIR/agent.log
while :; do
    [ ! -f "\$log" ] || [ "\$(wc -c <"\$log")" -lt 10000000 ] || mv "\$log" "\$log.1"
    ${interpreter:+$interpreter }$bin/$SERVICE sentinel >>"\$log" 2>&1 </dev/null &
    child=\$!
    wait \$child
    sleep 5 &
    child=\$!
    wait \$child
done
PROGRAM
    } >"$scratch/boot-script"
    install_file "$scratch/boot-script" 755 $BOOT_SCRIPT
    start_boot_script
}

start_boot_script() { setsid $BOOT_SCRIPT >/dev/null 2>&1 </dev/null & }

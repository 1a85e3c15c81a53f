# --- how it is kept running

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
    put "$scratch/unit" 644 $units/$SERVICE.service
    {
        proxies | sed 's/\\/\\\\/g; s/"/\\"/g; s/^\([^=]*\)=\(.*\)$/\1="\2"/'
        say "PATH=\"$PATH\""
    } >"$scratch/env"
    put "$scratch/env" 600 $units/$SERVICE.env
    if ! systemctl daemon-reload || ! systemctl enable --quiet $SERVICE || ! systemctl restart $SERVICE; then
        fatal 1 "systemd could not start $SERVICE: systemctl status $SERVICE tells why"
    fi
}

start_by_itself() {
    # Something without systemd, such as a process machine, which starts what is in boot.d each time it boots.
    make_directory "${KEEPER%/*}" 755
    proxies | sed "s/'/'\\\\''/g; s/^\([^=]*\)=\(.*\)\$/export \1='\2'/" >"$scratch/proxies"
    {
        cat <<PROGRAM
#!/bin/sh
# Keeps the node agent running: it is started again five seconds after it ended.
mine=/run/$SERVICE.pid
[ -s "\$mine" ] && kill -0 "\$(cat "\$mine")" 2>/dev/null && exit 0
echo \$\$ >"\$mine"
child=
trap 'trap "" TERM; [ -z "\$child" ] || kill "\$child" 2>/dev/null; wait; rm -f "\$mine"; exit 0' TERM INT
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
    } >"$scratch/keeper"
    put "$scratch/keeper" 755 $KEEPER
    start_keeper
}

start_keeper() { setsid $KEEPER >/dev/null 2>&1 </dev/null & }

#!/bin/sh
# The first process of a `process` machine: runs the bootstrap script once, starts what the machine has registered in
# /etc/herder/boot.d, and from then on sleeps and reaps orphans until it is asked to end everything.

state=/var/lib/herder

end_all() {
    trap '' TERM INT
    kill -TERM -1 2>/dev/null
    # Each sleep reaps those that have ended; whoever asked for the end forces it when this takes too long.
    while kill -0 -1 2>/dev/null; do sleep 0.05; done
    exit 0
}
trap end_all TERM INT

bootstrap() {
    if "$state/bootstrap"; then
        mkdir -p /run/cluster-api
        echo success > /run/cluster-api/bootstrap-success.complete
        echo succeeded > "$state/bootstrapped"
    else
        echo "bootstrap script failed with status $?"
        echo failed > "$state/bootstrapped"
    fi
}

boot() {
    if [ -x "$state/bootstrap" ] && [ ! -e "$state/bootstrapped" ]; then
        bootstrap
    fi
    for program in /etc/herder/boot.d/*; do
        if [ -f "$program" ] && [ -x "$program" ]; then
            "$program" &
        fi
    done
}

boot &
while :; do
    sleep 2147483647 &
    wait $!
done

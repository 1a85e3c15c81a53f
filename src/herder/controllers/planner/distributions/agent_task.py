"""The task that replaces the node agent of a machine. It needs a POSIX shell, and the programs of the install script.

The first script runs as an instruction of the agent that is replaced. It downloads and verifies the new agent, and
starts the second script outside the agent's service. The second one waits until the agent has finished its plan. It
replaces the program, restarts the service, and puts the old program back unless the new agent reaches the manager.
"""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.rke import operations
from herder.api.rke.node.agents import ServedAgent
from herder.api.rke.node.plan import Instruction
from herder.controllers.planner.distributions.tasks import HostTask

COME_UP_SECONDS, PLAN_SECONDS, TRIES = 300, 600, 5

REDEPLOY_SCRIPT = """set -u
switch=$1 url=$2 checksum=$3 certificates=$4 tries=$5
shift 5
service=rancher-system-agent boot=/etc/herder/boot.d/40-rancher-system-agent
fail() { echo "$1" >&2; exit 1; }
have() { command -v "$1" > /dev/null 2>&1; }
has_systemd() { [ -d /run/systemd/system ]; }
again="run the registration command of this machine again"

# How the service starts its agent: the program, and its interpreter if it names one.
if has_systemd; then
    have systemd-run || fail "systemd-run not found: the agent cannot be restarted from its own plan; $again"
    command=$(systemctl cat "$service" 2> /dev/null | sed -n 's/^ExecStart=//p' | tail -n 1)
else
    command=$(sed -n 's/^ *\\(.*\\) sentinel >>.*/\\1 sentinel/p' "$boot" 2> /dev/null | tail -n 1)
fi
case $command in
    /*" sentinel") command=${command% sentinel} ;;
    *) fail "the service $service was not installed by the registration command; $again" ;;
esac
program=${command##* } interpreter=
[ "$program" = "$command" ] || interpreter=${command% *}
[ -f "$program" ] || fail "$program does not exist; $again"

digest() {
    if have sha256sum; then sha256sum "$1" | cut -d " " -f 1
    elif have shasum; then shasum -a 256 "$1" | cut -d " " -f 1
    elif have openssl; then openssl dgst -sha256 -r "$1" | cut -d " " -f 1
    else fail "sha256sum, shasum or openssl is required to verify the agent"
    fi
}
download() {
    if have curl; then
        [ -z "$certificates" ] || set -- --cacert "$program.ca"
        curl --silent --show-error --fail --proto =https --connect-timeout 20 --max-time 120 "$@" \\
            --output "$program.new" "$url"
    elif have wget; then
        [ -z "$certificates" ] || set -- --ca-certificate="$program.ca"
        wget --no-verbose --max-redirect=0 --tries=1 --timeout=120 "$@" --output-document="$program.new" "$url"
    else
        fail "curl or wget is required"
    fi
}

umask 077
is_handed_over=
trap 'rm -f "$program.ca"; [ -n "$is_handed_over" ] || rm -f "$program.new"' EXIT
[ -z "$certificates" ] || printf '%s\\n' "$certificates" > "$program.ca" || fail "$program.ca: not writable"
tried=1
until problem=$(download 2>&1); do
    [ "$tried" -lt "$tries" ] || fail "$url: $problem"
    tried=$((tried + 1))
    sleep 5
done
actual=$(digest "$program.new") || exit 1
if [ "$actual" != "$checksum" ]; then
    fail "the agent from $url has the checksum $actual, not $checksum; nothing has changed"
fi
chmod 755 "$program.new"
if ! version=$(${interpreter:+"$interpreter"} "$program.new" version 2>&1); then
    fail "the new agent needs Python 3.6 or newer, and does not run here; nothing has changed: $version"
fi

config=${CATTLE_AGENT_CONFIG:-/etc/rancher/agent/config.yaml}
setting() { sed -n "s/^$1: *//p" "$config" 2> /dev/null | head -n 1; }
work=$(setting workDirectory) state=$(setting stateDirectory)
work=${work:-/var/lib/rancher/agent/work}
state=${state:-${work%/*}/herder-agent}
# A file, because systemd expands variables in arguments.
mkdir -p "$state" && printf '%s' "$switch" > "$state/redeploy.sh.new" &&
    mv -f "$state/redeploy.sh.new" "$state/redeploy.sh" ||
    fail "$state: not writable"
interlock=$(setting interlockDirectory)
set -- "$state/redeploy.sh" "$service" "$program" "$checksum" "$state/running-agent" "$interlock" "$boot" "$@"
if has_systemd; then
    systemctl stop "$service-redeploy.service" 2> /dev/null
    systemd-run --quiet --collect --unit="$service-redeploy" sh "$@" ||
        fail "systemd-run cannot start $service-redeploy; the old agent keeps running"
else
    setsid sh "$@" > /dev/null 2>&1 < /dev/null &
fi
is_handed_over=yes
echo "$version: verified; the service restarts when this plan is done"
"""

SWITCH_SCRIPT = """set -u
service=$1 program=$2 checksum=$3 confirmed=$4 interlock=$5 boot=$6 plan_seconds=$7 come_up_seconds=$8
has_systemd() { [ -d /run/systemd/system ]; }
restart() {
    if has_systemd; then
        systemctl restart "$service"
        return
    fi
    if pid=$(cat "/run/$service.pid" 2> /dev/null); then
        kill "$pid" 2> /dev/null
        while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
    fi
    setsid "$boot" > /dev/null 2>&1 < /dev/null &
}
is_up() {
    [ "$(cat "$confirmed" 2> /dev/null)" = "$checksum" ]
}

# Let the agent finish its plan, and start no other one.
[ ! -d "$interlock" ] || : > "$interlock/restart-pending"
waited=0
while [ -e "$interlock/applyinator-active" ]; do
    if [ "$waited" -ge "$plan_seconds" ]; then
        rm -f "$interlock/restart-pending" "$program.new"
        exit 1
    fi
    sleep 1
    waited=$((waited + 1))
done
sleep 1
if [ ! -f "$program.new" ]; then
    rm -f "$interlock/restart-pending"
    exit 0 # another run of this script has replaced the agent
fi
rm -f "$confirmed"
if cmp -s "$program" "$program.new"; then
    rm -f "$program.new" # this script was interrupted; the previous agent is kept already
elif ! cp "$program" "$program.old" || ! chmod 755 "$program.old" ||
    ! mv -f "$program.old" "$program.previous" || ! mv -f "$program.new" "$program"; then
    rm -f "$interlock/restart-pending" "$program.new"
    exit 1
fi
rm -f "$interlock/restart-pending"
restart
waited=0
until is_up; do
    if [ "$waited" -ge "$come_up_seconds" ]; then
        mv -f "$program.previous" "$program"
        restart
        exit 1
    fi
    sleep 1
    waited=$((waited + 1))
done
"""


@dataclass(frozen=True)
class RedeployAgent(HostTask):
    """Replace the node agent by the one that the manager serves."""

    agent: ServedAgent
    url: str
    certificates: str  # CA certificates of the manager, in PEM; empty if they are public

    def instruction(self) -> Instruction:
        """Everything but the scripts is an argument. The environment names the agent for guards, and for logs."""
        arguments = (SWITCH_SCRIPT, self.url, self.agent.checksum, self.certificates, str(TRIES))
        return Instruction(
            name=operations.REDEPLOY_AGENT,
            command="sh",
            args=(
                "-c",
                REDEPLOY_SCRIPT,
                operations.REDEPLOY_AGENT,
                *arguments,
                str(PLAN_SECONDS),
                str(COME_UP_SECONDS),
            ),
            env=(f"OPERATION={self.mark}", *self.agent.environment),
            save_output=True,
        )

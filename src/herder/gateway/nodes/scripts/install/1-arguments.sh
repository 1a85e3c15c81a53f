# Install the node agent on this machine and register the machine with its manager. The manager wrote the lines above.
# The script is idempotent: run it again to repair or update the agent. The machine keeps its ID.
#
# Exit codes: 1 error on this machine, 2 invalid arguments, 3 the manager does not match the pinned checksum, 4 the
# manager rejects the request, 5 all retries failed.
#
# Environment (flags take precedence): CATTLE_SERVER, CATTLE_TOKEN, CATTLE_CA_CHECKSUM, CATTLE_ROLE_{ETCD,CONTROLPLANE,WORKER,NONE},
# CATTLE_NODE_NAME, CATTLE_ADDRESS, CATTLE_INTERNAL_ADDRESS, CATTLE_LABELS, CATTLE_TAINTS, CATTLE_ID,
# CATTLE_{REMOTE,LOCAL}_ENABLED, CATTLE_PRESERVE_WORKDIR, CATTLE_AGENT_{LOGLEVEL,CONFIG_DIR,VAR_DIR,BIN_PREFIX},
# CATTLE_AGENT_BINARY_{URL,BASE_URL,CHECKSUM}, CATTLE_AGENT_STRICT_VERIFY, CATTLE_AGENT_{RETRIES,RETRY_SECONDS}.

set -u
umask 077

BAD_ARGUMENTS=2 CHECKSUM_MISMATCH=3 REJECTED=4 RETRIES_EXHAUSTED=5
SERVICE=rancher-system-agent
CONNECT_SECONDS=60
BOOT_SCRIPT=/etc/herder/boot.d/40-$SERVICE # starts the agent on machines without systemd
stopped=no
NEWLINE='
'

say() { printf '%s\n' "$*"; } # echo interprets backslashes
info() { say "[INFO]  $*"; }
fatal() { # CODE TEXT
    code=$1
    shift
    say "[FATAL] $*" >&2
    exit "$code"
}


# --- arguments

append() { # LIST ITEM
    say "${1:+$1,}$2"
}

value_of() { # FLAG COUNT VALUE
    [ "$2" -ge 2 ] || fatal $BAD_ARGUMENTS "$1: needs a value"
    case $3 in
        *"$NEWLINE"*) fatal $BAD_ARGUMENTS "$1: a value must be one line" ;;
    esac
    say "$3"
}

parse_arguments() {
    while [ $# -gt 0 ]; do
        consumed=1
        case $1 in
            -a | --all-roles) CATTLE_ROLE_ETCD=true CATTLE_ROLE_CONTROLPLANE=true CATTLE_ROLE_WORKER=true ;;
            -p | --controlplane) CATTLE_ROLE_CONTROLPLANE=true ;;
            -e | --etcd) CATTLE_ROLE_ETCD=true ;;
            -w | --worker) CATTLE_ROLE_WORKER=true ;;
            --no-roles) CATTLE_ROLE_NONE=true ;;
            *)
                consumed=2
                case $1 in
                    -s | --server | -t | --token | -c | --ca-checksum | -n | --node-name | --address | -i | \
                        --internal-address | -l | --label | --taint | --taints) ;;
                    *) fatal $BAD_ARGUMENTS "$1: unknown argument" ;;
                esac
                value=$(value_of "$1" $# "${2:-}") || exit $?
                case $1 in
                    -s | --server) CATTLE_SERVER=$value ;;
                    -t | --token) CATTLE_TOKEN=$value ;;
                    -c | --ca-checksum) CATTLE_CA_CHECKSUM=$value ;;
                    -n | --node-name) CATTLE_NODE_NAME=$value ;;
                    --address) CATTLE_ADDRESS=$value ;;
                    -i | --internal-address) CATTLE_INTERNAL_ADDRESS=$value ;;
                    -l | --label) CATTLE_LABELS=$(append "${CATTLE_LABELS:-}" "$value") ;;
                    --taint | --taints) CATTLE_TAINTS=$(append "${CATTLE_TAINTS:-}" "$value") ;;
                esac
                ;;
        esac
        shift $consumed
    done
}

lower() { say "$1" | tr '[:upper:]' '[:lower:]'; }

check_directory() { # NAME VALUE
    case $2 in
        /*) ;;
        *) fatal $BAD_ARGUMENTS "$1: \"$2\" must be an absolute path" ;;
    esac
    case $2 in
        *[!A-Za-z0-9._/-]*) fatal $BAD_ARGUMENTS "$1: \"$2\" must consist of letters, digits and ._/-" ;;
    esac
}

check_url() { # NAME VALUE
    # On a plain http connection, an attacker could read the token, serve matching certificates and replace the agent.
    case $2 in
        https://?*) ;;
        *) fatal $BAD_ARGUMENTS "$1: \"$2\" must begin with https://; plain http is not supported" ;;
    esac
    case $2 in
        *[!A-Za-z0-9._~:/?#@!\&+,\;=%\[\]-]*) fatal $BAD_ARGUMENTS "$1: \"$2\" contains characters that are invalid in a URL" ;;
    esac
}

check_checksum() { # NAME VALUE
    case $2 in
        *[!0-9a-f]*) fatal $BAD_ARGUMENTS "$1: \"$2\" must be a SHA-256 of 64 hexadecimal digits" ;;
    esac
    [ -z "$2" ] || [ ${#2} -eq 64 ] || fatal $BAD_ARGUMENTS "$1: \"$2\" must be a SHA-256 of 64 hexadecimal digits"
}

check_number() { # NAME VALUE
    case $2 in
        '' | *[!0-9]*) fatal $BAD_ARGUMENTS "$1: \"$2\" must be a number" ;;
    esac
}

check_boolean() { # NAME VALUE
    case $2 in
        true | false) ;;
        *) fatal $BAD_ARGUMENTS "$1: \"$2\" must be true or false" ;;
    esac
}

set_defaults() {
    : "${CATTLE_SERVER:=}" "${CATTLE_TOKEN:=}" "${CATTLE_CA_CHECKSUM:=}" "${CATTLE_ID:=}"
    : "${CATTLE_ROLE_ETCD:=false}" "${CATTLE_ROLE_CONTROLPLANE:=false}" "${CATTLE_ROLE_WORKER:=false}"
    : "${CATTLE_ROLE_NONE:=false}" "${CATTLE_NODE_NAME:=}" "${CATTLE_ADDRESS:=}"
    # A process machine shares the host's network and has one address of its own.
    : "${CATTLE_INTERNAL_ADDRESS:=${HERDER_ADDRESS:-}}"
    : "${CATTLE_LABELS:=}" "${CATTLE_TAINTS:=}" "${CATTLE_REMOTE_ENABLED:=true}" "${CATTLE_LOCAL_ENABLED:=false}"
    : "${CATTLE_PRESERVE_WORKDIR:=false}" "${CATTLE_AGENT_LOGLEVEL:=info}" "${CATTLE_AGENT_BIN_PREFIX:=}"
    : "${CATTLE_AGENT_CONFIG_DIR:=/etc/rancher/agent}" "${CATTLE_AGENT_VAR_DIR:=/var/lib/rancher/agent}"
    : "${CATTLE_AGENT_BINARY_URL:=}" "${CATTLE_AGENT_BINARY_BASE_URL:=}" "${CATTLE_AGENT_BINARY_CHECKSUM:=}"
    : "${CATTLE_AGENT_STRICT_VERIFY:=${STRICT_VERIFY:-false}}"
    : "${CATTLE_AGENT_RETRIES:=4499}" "${CATTLE_AGENT_RETRY_SECONDS:=5}"
    CATTLE_REMOTE_ENABLED=$(lower "$CATTLE_REMOTE_ENABLED")
    CATTLE_LOCAL_ENABLED=$(lower "$CATTLE_LOCAL_ENABLED")
    CATTLE_PRESERVE_WORKDIR=$(lower "$CATTLE_PRESERVE_WORKDIR")
    CATTLE_AGENT_LOGLEVEL=$(lower "$CATTLE_AGENT_LOGLEVEL")
    CATTLE_CA_CHECKSUM=$(lower "$CATTLE_CA_CHECKSUM")
    CATTLE_AGENT_BINARY_CHECKSUM=$(lower "$CATTLE_AGENT_BINARY_CHECKSUM")
    CATTLE_SERVER=${CATTLE_SERVER%/}
}

check_arguments() {
    check_directory CATTLE_AGENT_CONFIG_DIR "$CATTLE_AGENT_CONFIG_DIR"
    check_directory CATTLE_AGENT_VAR_DIR "$CATTLE_AGENT_VAR_DIR"
    [ -z "$CATTLE_AGENT_BIN_PREFIX" ] || check_directory CATTLE_AGENT_BIN_PREFIX "$CATTLE_AGENT_BIN_PREFIX"
    check_boolean CATTLE_REMOTE_ENABLED "$CATTLE_REMOTE_ENABLED"
    check_boolean CATTLE_LOCAL_ENABLED "$CATTLE_LOCAL_ENABLED"
    check_boolean CATTLE_PRESERVE_WORKDIR "$CATTLE_PRESERVE_WORKDIR"
    check_boolean CATTLE_AGENT_STRICT_VERIFY "$CATTLE_AGENT_STRICT_VERIFY"
    check_number CATTLE_AGENT_RETRIES "$CATTLE_AGENT_RETRIES"
    check_number CATTLE_AGENT_RETRY_SECONDS "$CATTLE_AGENT_RETRY_SECONDS"
    case $CATTLE_AGENT_LOGLEVEL in
        *[!a-z]*) fatal $BAD_ARGUMENTS "CATTLE_AGENT_LOGLEVEL: \"$CATTLE_AGENT_LOGLEVEL\" must be a log level such as info" ;;
    esac
    [ -z "$CATTLE_AGENT_BINARY_URL" ] || check_url CATTLE_AGENT_BINARY_URL "$CATTLE_AGENT_BINARY_URL"
    [ -z "$CATTLE_AGENT_BINARY_BASE_URL" ] || check_url CATTLE_AGENT_BINARY_BASE_URL "$CATTLE_AGENT_BINARY_BASE_URL"
    check_checksum CATTLE_AGENT_BINARY_CHECKSUM "$CATTLE_AGENT_BINARY_CHECKSUM"
    check_checksum --ca-checksum "$CATTLE_CA_CHECKSUM"
    [ "$CATTLE_REMOTE_ENABLED" = true ] || return 0
    [ -n "$CATTLE_SERVER" ] || fatal $BAD_ARGUMENTS "--server: required; pass the URL of the manager"
    check_url --server "$CATTLE_SERVER"
    [ -n "$CATTLE_TOKEN" ] || fatal $BAD_ARGUMENTS "--token: required; pass the registration token of the cluster"
    case $CATTLE_ROLE_NONE$CATTLE_ROLE_ETCD$CATTLE_ROLE_CONTROLPLANE$CATTLE_ROLE_WORKER in
        *true*) ;;
        *) fatal $BAD_ARGUMENTS "roles: required; pass --etcd, --controlplane, --worker or --all-roles" ;;
    esac
}

# --- requests

# Credentials are never passed as arguments, which every user of this machine can see. Both programs read them from a file.
quoted() { printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g'; }

request() { # URL FILE HEADERS-FILE TRUST SECONDS; sets $status, to 000 if there was no response
    : >"$2"
    if have curl; then
        {
            say "url = \"$(quoted "$1")\""
            while IFS= read -r header; do say "header = \"$(quoted "$header")\""; done <"$3"
        } >"$scratch/request"
        set -- "$@" --config "$scratch/request"
        case $4 in
            none) set -- "$@" --insecure ;;
            system) ;;
            *) set -- "$@" --cacert "$4" ;;
        esac
        file=$2 seconds=$5
        shift 5
        # Redirects are not followed. Only metadata services of clouds are requested without TLS.
        status=$(curl --silent --show-error --proto "=${protocol:-https}" --output "$file" --write-out '%{http_code}' --connect-timeout 20 \
            --max-time "$seconds" "$@" 2>"$scratch/problem") || status=000
    elif have wget; then
        case $1 in
            "${protocol:-https}"://*) ;;
            *) fatal $BAD_ARGUMENTS "$1: must begin with https://" ;;
        esac
        while IFS= read -r header; do say "header = $header"; done <"$3" >"$scratch/request"
        url=$1 file=$2 trust=$4 seconds=$5
        case $trust in
            none) set -- --no-check-certificate ;;
            system) set -- ;;
            *) set -- --ca-certificate="$trust" ;;
        esac
        WGETRC=$scratch/request wget --no-verbose --server-response --content-on-error --max-redirect=0 --tries=1 \
            --timeout="$seconds" --output-document="$file" "$@" "$url" >/dev/null 2>"$scratch/problem"
        status=$(sed -n 's/^ *HTTP\/[0-9.]* \([0-9][0-9][0-9]\).*/\1/p' "$scratch/problem" | tail -n 1)
        status=${status:-000}
    else
        fatal 1 "curl or wget is required"
    fi
}

failure_reason() { # FILE: the manager's response, or the error of curl or wget
    if [ "$status" = 000 ]; then
        tail -n 1 "$scratch/problem"
    else
        head -c 500 "$1" | tr -d '\000-\010\013-\037' | head -n 3
    fi
}

fetch() { # WHAT URL FILE HEADERS-FILE TRUST SECONDS: retry until the manager accepts or rejects the request
    what=$1
    shift
    attempt=0
    while :; do
        request "$@"
        case $status in
            200) return ;;
            400 | 401 | 403 | 404) fatal $REJECTED "$what: the manager answers $status: $(failure_reason "$2")" ;;
        esac
        [ $attempt -lt "$CATTLE_AGENT_RETRIES" ] || fatal $RETRIES_EXHAUSTED "$what: $status: $(failure_reason "$2")"
        attempt=$((attempt + 1))
        info "$what: $status: $(failure_reason "$2"); retrying in $CATTLE_AGENT_RETRY_SECONDS seconds"
        sleep "$CATTLE_AGENT_RETRY_SECONDS"
    done
}

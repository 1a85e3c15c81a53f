# --- addresses

addresses() { # an address, the name of an interface, or a keyword for a cloud's metadata service
    case $1 in
        awslocal) metadata http://169.254.169.254/latest/meta-data/local-ipv4 ;;
        awspublic) metadata http://169.254.169.254/latest/meta-data/public-ipv4 ;;
        doprivate) metadata http://169.254.169.254/metadata/v1/interfaces/private/0/ipv4/address ;;
        dopublic) metadata http://169.254.169.254/metadata/v1/interfaces/public/0/ipv4/address ;;
        azprivate) metadata "$(azure private)" "Metadata: true" ;;
        azpublic) metadata "$(azure public)" "Metadata: true" ;;
        gceinternal) metadata "$(google ip)" "Metadata-Flavor: Google" ;;
        gceexternal) metadata "$(google access-configs/0/external-ip)" "Metadata-Flavor: Google" ;;
        ipify) metadata https://api.ipify.org ;;
        '' | */*) echo "$1" ;;
        *)
            if have ip && ip link show dev "$1" >/dev/null 2>&1; then
                ip -o address show dev "$1" scope global | sed 's/.* inet6\{0,1\} \([^ /]*\).*/\1/' | paste -s -d , -
            else
                echo "$1"
            fi
            ;;
    esac
}

azure() {
    echo "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/${1}IpAddress?api-version=2017-08-01&format=text"
}

google() { echo "http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0/$1"; }

metadata() { # URL [HEADER]
    printf '%s' "${2:+$2$NEWLINE}" >"$scratch/headers"
    protocol=${1%%:*}
    fetch "address from $1" "$1" "$scratch/answer" "$scratch/headers" system 10 >&2
    protocol=https
    cat "$scratch/answer"
}

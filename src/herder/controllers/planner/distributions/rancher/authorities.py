"""Scripts that rotate the certificate authorities (CAs) of K3s and RKE2.

`certificate rotate-ca` accepts a new CA only if the present one leads to it. Each new CA is therefore an intermediate
CA of a new root, and the present root signs the new root too. The file of a CA contains it, the new root as signed by
the present one, the new root itself, and then everything that the file contained before. So whoever trusts any earlier
CA trusts the new certificates, and certificates of any earlier CA stay trusted.

The signed root comes before the self-signed one: servers send the file with their certificates, in this order. OpenSSL
follows the first issuer that fits, and a client that trusts only the present root would end at the self-signed one.

The key that signs tokens of service accounts stays the same, so that no token becomes invalid. The command takes what
is in the directory; if a file is missing there, it still exits with 0.
"""

from __future__ import annotations

_COMMON = """data=$1
tls=$data/server/tls new=$data/server/new-authorities
names='client-ca server-ca request-header-ca etcd/peer-ca etcd/server-ca'
fail() {
    printf '%s\\n' "$1" >&2
    exit 1
}
check_files() {
    for name in $names; do
        [ -s "$1/$name.crt" ] || fail "$1/$name.crt does not exist; is this a server with its own CAs?"
    done
}
digest() {
    for name in $names; do cat "$1/$name.crt"; done | sha256sum | cut -d ' ' -f 1
}
"""

REPORT_SCRIPT = f"""set -eu
{_COMMON}check_files "$tls"
echo "certificate authorities $(digest "$tls")"
"""

DISCARD_SCRIPT = f"""set -eu
{_COMMON}rm -rf "$new"
"""

PREPARE_SCRIPT = f"""set -eu
{_COMMON}program=$2 run=${{OPERATION%%/*}}
command -v openssl > /dev/null 2>&1 || fail "openssl is not installed on this machine; install the package openssl"
"$program" certificate rotate-ca --help > /dev/null 2>&1 || \\
    fail "$program on this machine has no command 'certificate rotate-ca'; upgrade the cluster first"
check_files "$tls"
[ -s "$tls/service.key" ] || fail "$tls/service.key does not exist"
base=$(digest "$tls")
if [ "$(cat "$new/prepared" 2> /dev/null)" = "$run $base" ]; then
    echo "the new CAs exist already"
    exit 0
fi
umask 077
rm -rf "$new"
trap '[ -f "$new/prepared" ] || rm -rf "$new"' EXIT
work=$new/work
mkdir -p "$new/tls/etcd" "$work"
cat > "$work/config" << END
[req]
distinguished_name = subject
[subject]
[ca]
default_ca = signer
[signer]
database = $work/index
new_certs_dir = $work
default_md = sha256
serial = $work/serial
policy = any
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyEncipherment, keyCertSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
END
: > "$work/index"
openssl rand -hex 16 > "$work/serial"
now=$(date +%s)
time_at() {{
    date -u -d "@$1" +%Y%m%d%H%M%SZ
}}
begin=$(time_at $((now - 3600)))
end=$(time_at $((now + 3650 * 86400)))
end_of() {{
    openssl x509 -noout -enddate -in "$1" | awk '{{
        sub(/^notAfter=/, "")
        split($3, time, ":")
        month = (index("JanFebMarAprMayJunJulAugSepOctNovDec", $1) + 2) / 3
        printf "%04d%02d%02d%02d%02d%02dZ", $4, month, $2, time[1], time[2], time[3]
    }}'
}}
sign() {{ # key of the subject, its name, certificate (or -selfsign), last day, other arguments
    openssl req -new -sha256 -config "$work/config" -key "$1" -subj "/CN=$2" -out "$work/request"
    signed=$3 until=$4
    shift 4
    openssl ca -batch -notext -config "$work/config" -extensions authority -startdate "$begin" \\
        -enddate "$until" -in "$work/request" -out "$signed" "$@" 2> "$work/log" || fail "$(cat "$work/log")"
}}
new_key() {{
    openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}}
public_key() {{
    openssl x509 -noout -pubkey -in "$1"
}}
for name in $names; do
    label=$program-$(printf '%s' "$name" | tr / -)
    rm -f "$work"/old-*
    awk -v prefix="$work/old-" '/-----BEGIN CERTIFICATE-----/ {{ file = sprintf("%s%03d", prefix, ++count) }}
        file {{ print > file }}
        /-----END CERTIFICATE-----/ {{ close(file); file = "" }}' "$tls/$name.crt"
    awk '/-----BEGIN .*PRIVATE KEY-----/ {{ key = "" ; inside = 1 }}
        inside {{ key = key $0 "\\n" }}
        /-----END .*PRIVATE KEY-----/ {{ inside = 0 }}
        END {{ printf "%s", key }}' "$tls/$name.key" > "$work/root-old.key"
    wanted=$(openssl pkey -in "$work/root-old.key" -pubout) || fail "$tls/$name.key cannot be read"
    root=
    : > "$work/kept"
    for file in "$work"/old-*; do
        openssl x509 -noout -checkend 0 -in "$file" > /dev/null || continue
        cat "$file" >> "$work/kept"
        [ "$(openssl x509 -noout -subject_hash -in "$file")" = "$(openssl x509 -noout -issuer_hash -in "$file")" ] || \\
            continue
        [ "$(public_key "$file")" != "$wanted" ] || root=$file
    done
    [ -n "$root" ] || fail "$tls/$name.crt has no valid root whose key is on this server, as with CAs of your own; \\
rotate them with: $program certificate rotate-ca"
    new_key "$work/root.key"
    new_key "$work/issuing.key"
    sign "$work/root.key" "$label-root@$now" "$work/root.crt" "$end" -selfsign -keyfile "$work/root.key"
    sign "$work/root.key" "$label-root@$now" "$work/signed.crt" "$(end_of "$root")" \\
        -cert "$root" -keyfile "$work/root-old.key"
    sign "$work/issuing.key" "$label@$now" "$work/issuing.crt" "$end" -cert "$work/root.crt" -keyfile "$work/root.key"
    cat "$work/issuing.crt" "$work/signed.crt" "$work/root.crt" "$work/kept" > "$new/tls/$name.crt"
    cat "$work/issuing.key" "$work/root.key" > "$new/tls/$name.key"
    openssl verify -CAfile "$tls/$name.crt" -untrusted "$new/tls/$name.crt" "$work/issuing.crt" > "$work/log" 2>&1 || \\
        fail "the new CA of $name is not trusted by the present one: $(cat "$work/log")"
    openssl verify -CAfile "$new/tls/$name.crt" "$work/old-001" > "$work/log" 2>&1 || \\
        fail "the present CA of $name is not trusted by the new one: $(cat "$work/log")"
done
cp "$tls/service.key" "$new/tls/service.key"
rm -rf "$work"
sync
printf '%s\\n' "$run $base" > "$new/prepared.part"
mv "$new/prepared.part" "$new/prepared"
echo "certificate authorities $(digest "$new/tls")"
"""
"""Certificates are valid from one hour ago, because clocks of machines differ. A root that the present one signs must
not be valid for longer: OpenSSL would follow it to an expired certificate."""

REPLACE_SCRIPT = f"""set -eu
{_COMMON}program=$2 unit=$3 run=${{OPERATION%%/*}} marker=$data/server/replaced-authorities
check_files "$tls"
if [ "$(cat "$marker" 2> /dev/null)" = "$run $(digest "$tls")" ]; then
    rm -rf "$new"
    echo "certificate authorities $(digest "$tls")"
    exit 0
fi
check_files "$new/tls"
wanted=$(digest "$new/tls")
if [ "$(digest "$tls")" != "$wanted" ]; then
    [ "$(cat "$new/prepared" 2> /dev/null)" = "$run $(digest "$tls")" ] || \\
        fail "the CAs of this server have changed since the new ones were created; request the rotation again"
    systemctl start "$unit"
    output=$("$program" certificate rotate-ca --path="$new" 2>&1) || fail "$output"
    printf '%s\\n' "$output" >&2
    case $output in
        *"failed to stat"*) fail "$program did not find all new CAs in $new" ;;
        *"certificates saved to datastore"*) ;;
        *) fail "$program does not report that it has saved the CAs" ;;
    esac
fi
code=0
systemctl stop "$unit" && "$program" certificate rotate || code=$?
for name in kube-controller-manager kube-scheduler; do
    [ "$code" = 0 ] || break
    rm -f "$tls/$name/$name.crt" "$tls/$name/$name.key" "$data/agent/pod-manifests/$name.yaml" || code=$?
done
systemctl reset-failed "$unit" 2> /dev/null || true
systemctl start "$unit"
[ "$code" = 0 ] || exit "$code"
tries=0
until [ "$(digest "$tls")" = "$wanted" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 12 ] || fail "this server has restarted with other CAs than the new ones: they were not saved"
    sleep 5
done
printf '%s\\n' "$run $wanted" > "$marker"
sync
rm -rf "$new"
echo "certificate authorities $wanted"
"""
"""The service writes the CAs of the datastore to the disk when it starts, so that only saved ones are there afterwards.

An agent that was killed runs the script again; the file `replaced-authorities` has the last run that it completed."""

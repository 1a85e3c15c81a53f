# Install the node agent on this Windows machine and register the machine with its manager. The manager wrote the lines
# above. The script is idempotent: run it again to repair or update the agent. The machine keeps its ID.
#
# Exit codes: 1 error on this machine, 2 invalid arguments, 3 the manager does not match the pinned checksum, 4 the
# manager rejects the request, 5 all retries failed.
#
# Environment (parameters take precedence): CATTLE_SERVER, CATTLE_TOKEN, CATTLE_CA_CHECKSUM, CATTLE_ROLE_{WORKER,NONE},
# CATTLE_NODE_NAME, CATTLE_ADDRESS, CATTLE_INTERNAL_ADDRESS, CATTLE_LABELS, CATTLE_TAINTS, CATTLE_ID,
# CATTLE_REMOTE_ENABLED, CATTLE_PRESERVE_WORKDIR, CATTLE_AGENT_{LOGLEVEL,CONFIG_DIR,VAR_DIR},
# CATTLE_AGENT_BINARY_{URL,BASE_URL,CHECKSUM}, CATTLE_AGENT_STRICT_VERIFY, CATTLE_AGENT_{RETRIES,RETRY_SECONDS},
# {HTTP,HTTPS,NO}_PROXY.

function Invoke-AgentInstaller {
    [CmdletBinding()]
    param (
        [String] $Server = $env:CATTLE_SERVER,
        [String] $Token = $env:CATTLE_TOKEN,
        [String] $CaChecksum = $env:CATTLE_CA_CHECKSUM,
        [Switch] $Worker,
        [String] $NodeName = $env:CATTLE_NODE_NAME,
        [String] $Address = $env:CATTLE_ADDRESS,
        [String] $InternalAddress = $env:CATTLE_INTERNAL_ADDRESS,
        [String[]] $Label = @(),
        [String[]] $Taint = @()
    )

    $ErrorActionPreference = "Stop"
    $ProgressPreference = "SilentlyContinue"
    $configDirectory = if ($env:CATTLE_AGENT_CONFIG_DIR) { $env:CATTLE_AGENT_CONFIG_DIR } else { "C:\etc\rancher\agent" }
    $varDirectory = if ($env:CATTLE_AGENT_VAR_DIR) { $env:CATTLE_AGENT_VAR_DIR } else { "C:\var\lib\rancher\agent" }
    $isRemote = $env:CATTLE_REMOTE_ENABLED -ne "false"
    $isWorker = $Worker -or $env:CATTLE_ROLE_WORKER -eq "true"
    $isProvisioned = $env:CATTLE_ROLE_NONE -eq "true" # by a node driver; the manager knows its roles
    $retries = if ($env:CATTLE_AGENT_RETRIES) { [int] $env:CATTLE_AGENT_RETRIES } else { 4499 }
    $pause = if ($env:CATTLE_AGENT_RETRY_SECONDS) { [int] $env:CATTLE_AGENT_RETRY_SECONDS } else { 5 }
    $curl = "$env:SystemRoot\System32\curl.exe"

    function Stop-WithError([int] $Code, [String] $Text) {
        [Console]::Error.WriteLine("[FATAL] $Text")
        exit $Code
    }

    # Files with credentials are readable by administrators and the system only.
    function Protect-Path([String] $Path) {
        & icacls.exe $Path /inheritance:r /grant:r "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F" | Out-Null
        if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "${Path}: cannot set permissions; run this script as an administrator" }
    }

    # Credentials are never passed as arguments, which every user of this machine can see. curl reads them from a file.
    function Get-FromServer([String] $What, [String] $Url, [String] $File, [String[]] $Headers, [String[]] $Trust, [String] $Protocol = "https") {
        $request = Join-Path $scratch "request"
        $lines = @("url = `"$($Url.Replace('\', '\\').Replace('"', '\"'))`"")
        foreach ($header in $Headers) { $lines += "header = `"$($header.Replace('\', '\\').Replace('"', '\"'))`"" }
        [IO.File]::WriteAllLines($request, $lines)
        for ($attempt = 0; ; $attempt++) {
            # Redirects are not followed. Only metadata services of clouds are requested without TLS.
            $status = & $curl --silent --proto "=$Protocol" --output $File --write-out "%{http_code}" --connect-timeout 20 --max-time 60 --config $request @Trust
            if ($status -eq "200") { Remove-Item $request; return }
            $message = if (Test-Path $File) { Get-Content $File -TotalCount 1 } else { "" }
            if ($status -in "400", "401", "403", "404") { Stop-WithError 4 "${What}: the manager answers ${status}: $message" }
            if ($attempt -ge $retries) { Stop-WithError 5 "${What}: ${status}: $message" }
            Write-Host "[INFO]  ${What}: $status; retrying in $pause seconds"
            Start-Sleep -Seconds $pause
        }
    }

    function Find-Python {
        foreach ($candidate in "py.exe", "python3.exe", "python.exe") {
            $found = Get-Command $candidate -ErrorAction SilentlyContinue
            if ($found) {
                # The interpreter itself: the service manager tracks the process that it starts.
                $path = & $found.Source -c "import sys, ssl; print(sys.executable if sys.version_info >= (3, 6) else '')"
                if ($LASTEXITCODE -eq 0 -and $path) { return $path }
            }
        }
        Stop-WithError 1 "Python 3.6 or newer is required; install it for all users"
    }

    # An address, the name of an interface, or a keyword for a cloud's metadata service.
    function Find-Address([String] $Value) {
        $link = "http://169.254.169.254"
        $azure = "$link/metadata/instance/network/interface/0/ipv4/ipAddress/0"
        $google = "http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0"
        switch ($Value) {
            "" { return "" }
            "awslocal" { return Get-Metadata "$link/latest/meta-data/local-ipv4" }
            "awspublic" { return Get-Metadata "$link/latest/meta-data/public-ipv4" }
            "doprivate" { return Get-Metadata "$link/metadata/v1/interfaces/private/0/ipv4/address" }
            "dopublic" { return Get-Metadata "$link/metadata/v1/interfaces/public/0/ipv4/address" }
            "azprivate" { return Get-Metadata "$azure/privateIpAddress?api-version=2017-08-01&format=text" "Metadata: true" }
            "azpublic" { return Get-Metadata "$azure/publicIpAddress?api-version=2017-08-01&format=text" "Metadata: true" }
            "gceinternal" { return Get-Metadata "$google/ip" "Metadata-Flavor: Google" }
            "gceexternal" { return Get-Metadata "$google/access-configs/0/external-ip" "Metadata-Flavor: Google" }
            "ipify" { return Get-Metadata "https://api.ipify.org" }
        }
        if (-not (Get-NetAdapter -Name $Value -ErrorAction SilentlyContinue)) { return $Value }
        $found = Get-NetIPAddress -InterfaceAlias $Value | Where-Object { $_.PrefixOrigin -ne "WellKnown" }
        return $found.IPAddress -join ","
    }

    function Get-Metadata([String] $Url, [String] $Header) {
        $answer = Join-Path $scratch "metadata"
        Get-FromServer "address from $Url" $Url $answer @($Header | Where-Object { $_ }) @() $Url.Split(":")[0] | Out-Null
        return (Get-Content $answer -TotalCount 1).Trim()
    }

    if ($isRemote -and -not $Server) { Stop-WithError 2 "-Server: required; pass the URL of the manager" }
    if ($isRemote -and -not $Token) { Stop-WithError 2 "-Token: required; pass the registration token of the cluster" }
    if ($isRemote -and -not $isWorker -and -not $isProvisioned) { Stop-WithError 2 "roles: required; pass -Worker, the only role on Windows" }
    $Server = "$Server".TrimEnd("/")
    # On a plain http connection, an attacker could read the token, serve matching certificates and replace the agent.
    $addresses = @{ "-Server" = $(if ($isRemote) { $Server }); "CATTLE_AGENT_BINARY_URL" = $env:CATTLE_AGENT_BINARY_URL
        "CATTLE_AGENT_BINARY_BASE_URL" = $env:CATTLE_AGENT_BINARY_BASE_URL }
    foreach ($name in $addresses.Keys) {
        $value = $addresses[$name]
        if ($value -and -not $value.StartsWith("https://")) {
            Stop-WithError 2 "${name}: `"$value`" must begin with https://; plain http is not supported"
        }
    }
    if ($CaChecksum -and $CaChecksum -notmatch "^[0-9A-Fa-f]{64}$") {
        Stop-WithError 2 "-CaChecksum: `"$CaChecksum`" must be a SHA-256 of 64 hexadecimal digits"
    }

    $scratch = Join-Path $varDirectory ".install"
    foreach ($directory in $configDirectory, $varDirectory, $scratch) {
        New-Item -ItemType Directory -Force -Path $directory | Out-Null
        Protect-Path $directory
    }

    # Verify the manager before sending the token. After this, only the CA with this checksum is trusted.
    $trust = @()
    if ($isRemote -and $CaChecksum) {
        $certificates = Join-Path $scratch "ca.crt"
        Get-FromServer "the manager's certificates" "$Server/cacerts" $certificates @() @("--insecure")
        $actual = (Get-FileHash -Algorithm SHA256 -Path $certificates).Hash.ToLower()
        if ($actual -ne $CaChecksum.ToLower()) {
            Stop-WithError 3 "the CA certificates of $Server have the checksum $actual, not ${CaChecksum}; this is another manager, or its certificates were replaced: get a new registration command"
        }
        $trust = @("--cacert", $certificates, "--ssl-revoke-best-effort")
    }
    if ($isRemote) { Get-FromServer "the manager" "$Server/healthz" (Join-Path $scratch "answer") @() $trust }

    $service = Get-Service -Name rancher-system-agent -ErrorAction SilentlyContinue
    if ($service) { Stop-Service -Name rancher-system-agent -Force }
    $python = Find-Python
    $agent = Join-Path $varDirectory "herder-agent.pyz"
    $base = if ($env:CATTLE_AGENT_BINARY_BASE_URL) { $env:CATTLE_AGENT_BINARY_BASE_URL } else { "$Server/assets" }
    $url = if ($env:CATTLE_AGENT_BINARY_URL) { $env:CATTLE_AGENT_BINARY_URL } else { "$base/herder-agent.pyz" }
    # The pinned CA vouches for the manager only.
    $trustOfAgent = if ($url.StartsWith("$Server/")) { $trust } else { @() }
    $new = Join-Path $scratch "herder-agent.pyz"
    Get-FromServer "the agent" $url $new @() $trustOfAgent
    $checksum = $env:CATTLE_AGENT_BINARY_CHECKSUM
    if ($checksum -and (Get-FileHash -Algorithm SHA256 -Path $new).Hash.ToLower() -ne $checksum.ToLower()) {
        Stop-WithError 1 "the agent from $url does not have the checksum $checksum"
    }
    Move-Item -Force $new $agent

    $connection = Join-Path $varDirectory "rancher2_connection_info.json"
    $config = Join-Path $configDirectory "config.yaml"
    [IO.File]::WriteAllLines($config, @(
        "workDirectory: $varDirectory\work",
        "appliedPlanDirectory: $varDirectory\applied",
        "remoteEnabled: $("$isRemote".ToLower())",
        "connectionInfoFile: $connection",
        "preserveWorkDirectory: $(if ($env:CATTLE_PRESERVE_WORKDIR -eq "true") { "true" } else { "false" })",
        "imagesDirectory: $varDirectory\images",
        "interlockDirectory: $varDirectory\interlock"
    ))

    # A reinstalled agent keeps the ID of its machine.
    $idFile = Join-Path $configDirectory "cattle-id"
    $id = $env:CATTLE_ID
    if (-not $id -and (Test-Path $idFile)) { $id = (Get-Content $idFile -TotalCount 1).Trim() }
    if (-not $id) {
        $bytes = New-Object byte[] 32
        [Security.Cryptography.RandomNumberGenerator]::Create().GetBytes($bytes)
        $id = ([BitConverter]::ToString($bytes).Replace("-", "").ToLower()).Substring(0, 63)
    }
    [IO.File]::WriteAllText($idFile, $id)

    $env:CATTLE_AGENT_CONFIG = $config
    if ($isRemote) {
        $headers = @("Authorization: Bearer $Token", "X-Cattle-Id: $id")
        if (-not $isProvisioned) { $headers += "X-Cattle-Role-Worker: true" }
        if ($NodeName) { $headers += "X-Cattle-Node-Name: $NodeName" }
        $public = Find-Address $Address
        $private = Find-Address $InternalAddress
        if ($public) { $headers += "X-Cattle-Address: $public" }
        if ($private) { $headers += "X-Cattle-Internal-Address: $private" }
        $labels = @($env:CATTLE_LABELS) + $Label | Where-Object { $_ }
        $taints = @($env:CATTLE_TAINTS) + $Taint | Where-Object { $_ }
        if ($labels) { $headers += "X-Cattle-Labels: $($labels -join ',')" }
        if ($taints) { $headers += "X-Cattle-Taints: $($taints -join ',')" }
        $received = Join-Path $scratch "rancher2_connection_info.json"
        Get-FromServer "the connection" "$Server/v3/connect/agent" $received $headers $trust
        & $python $agent validate-connection $received
        if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "the agent rejects the connection info of the manager" }
        Move-Item -Force $received $connection
    }

    $command = "`"$python`" `"$agent`" service"
    $key = "HKLM:\SYSTEM\CurrentControlSet\Services\rancher-system-agent"
    if ($service) {
        Set-ItemProperty -Path $key -Name ImagePath -Value $command
    } else {
        New-Service -Name rancher-system-agent -DisplayName "Rancher System Agent" -BinaryPathName $command -StartupType Automatic | Out-Null
    }
    $loglevel = if ($env:CATTLE_AGENT_LOGLEVEL) { $env:CATTLE_AGENT_LOGLEVEL.ToLower() } else { "info" }
    $strict = if ($env:CATTLE_AGENT_STRICT_VERIFY) { $env:CATTLE_AGENT_STRICT_VERIFY } else { $env:STRICT_VERIFY }
    $environment = @("CATTLE_AGENT_CONFIG=$config", "CATTLE_LOGLEVEL=$loglevel", "CATTLE_AGENT_STRICT_VERIFY=$strict")
    $environment += Get-ChildItem env: | Where-Object { $_.Name -match "^(NO|HTTP|HTTPS)_PROXY$" } | ForEach-Object { "$($_.Name)=$($_.Value)" }
    New-ItemProperty -Path $key -Name Environment -PropertyType MultiString -Value $environment -Force | Out-Null
    & sc.exe failure rancher-system-agent reset= 60 actions= restart/5000 | Out-Null
    Start-Service -Name rancher-system-agent
    Remove-Item -Recurse -Force $scratch
    Write-Host "[INFO]  the agent is installed and running"
}

Invoke-AgentInstaller @args
exit 0

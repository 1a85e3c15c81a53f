# Installs the node agent on this Windows machine, and tells it where its plan is. What stands above was written by the
# manager that the script comes from. Run it again to repair or to update: the machine stays who it is.
#
# Exit codes: 1 something on this machine, 2 bad arguments, 3 not the manager that was pinned, 4 the manager refuses,
# 5 given up after all retries.
#
# Environment (parameters win): CATTLE_SERVER, CATTLE_TOKEN, CATTLE_CA_CHECKSUM, CATTLE_ROLE_{WORKER,NONE},
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
    $isMade = $env:CATTLE_ROLE_NONE -eq "true" # by a driver of the manager, which knows its roles
    $retries = if ($env:CATTLE_AGENT_RETRIES) { [int] $env:CATTLE_AGENT_RETRIES } else { 4499 }
    $pause = if ($env:CATTLE_AGENT_RETRY_SECONDS) { [int] $env:CATTLE_AGENT_RETRY_SECONDS } else { 5 }
    $curl = "$env:SystemRoot\System32\curl.exe"

    function Stop-WithError([int] $Code, [String] $Text) {
        [Console]::Error.WriteLine("[FATAL] $Text")
        exit $Code
    }

    # Only administrators and the system read what has credentials in it.
    function Protect-Path([String] $Path) {
        & icacls.exe $Path /inheritance:r /grant:r "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F" | Out-Null
        if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "$Path cannot be protected: run this as an administrator" }
    }

    # Credentials are never arguments of a program, which everybody on this machine could see: curl reads them.
    function Get-FromServer([String] $What, [String] $Url, [String] $File, [String[]] $Headers, [String[]] $Trust, [String] $Protocol = "https") {
        $request = Join-Path $scratch "request"
        $lines = @("url = `"$($Url.Replace('\', '\\').Replace('"', '\"'))`"")
        foreach ($header in $Headers) { $lines += "header = `"$($header.Replace('\', '\\').Replace('"', '\"'))`"" }
        [IO.File]::WriteAllLines($request, $lines)
        for ($attempt = 0; ; $attempt++) {
            # Redirects are not followed, and nothing is sent without TLS but to the metadata services of clouds.
            $status = & $curl --silent --proto "=$Protocol" --output $File --write-out "%{http_code}" --connect-timeout 20 --max-time 60 --config $request @Trust
            if ($status -eq "200") { Remove-Item $request; return }
            $told = if (Test-Path $File) { Get-Content $File -TotalCount 1 } else { "" }
            if ($status -in "400", "401", "403", "404") { Stop-WithError 4 "${What}: the manager answers ${status}: $told" }
            if ($attempt -ge $retries) { Stop-WithError 5 "${What}: ${status}: $told" }
            Write-Host "[INFO]  ${What}: $status; again in $pause seconds"
            Start-Sleep -Seconds $pause
        }
    }

    function Find-Python {
        foreach ($candidate in "py.exe", "python3.exe", "python.exe") {
            $found = Get-Command $candidate -ErrorAction SilentlyContinue
            if ($found) {
                # The interpreter itself: what the service manager starts must not hand over to another process.
                $path = & $found.Source -c "import sys, ssl; print(sys.executable if sys.version_info >= (3, 6) else '')"
                if ($LASTEXITCODE -eq 0 -and $path) { return $path }
            }
        }
        Stop-WithError 1 "Python 3.6 or newer is needed on Windows machines, for all users"
    }

    # An address, the name of an interface, or a word for what a cloud says of this machine.
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
        Get-FromServer "the address that $Url tells" $Url $answer @($Header | Where-Object { $_ }) @() $Url.Split(":")[0] | Out-Null
        return (Get-Content $answer -TotalCount 1).Trim()
    }

    if ($isRemote -and -not $Server) { Stop-WithError 2 "-Server: needed, the address of the manager" }
    if ($isRemote -and -not $Token) { Stop-WithError 2 "-Token: needed, the registration token of the cluster" }
    if ($isRemote -and -not $isWorker -and -not $isMade) { Stop-WithError 2 "choose a role: -Worker, the only one on Windows" }
    $Server = "$Server".TrimEnd("/")
    # Over plain http anybody on the way reads the token, serves the right certificates and sends another agent.
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

    # Before anything is sent. From here on nobody is trusted but the authority with this digest.
    $trust = @()
    if ($isRemote -and $CaChecksum) {
        $certificates = Join-Path $scratch "ca.crt"
        Get-FromServer "the manager's certificates" "$Server/cacerts" $certificates @() @("--insecure")
        $found = (Get-FileHash -Algorithm SHA256 -Path $certificates).Hash.ToLower()
        if ($found -ne $CaChecksum.ToLower()) {
            Stop-WithError 3 "the certificates of $Server have the checksum $found, not ${CaChecksum}: this is another manager, or its certificates were replaced and the command is an old one"
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
    # The manager's authority says nothing of other servers.
    $trustOfAgent = if ($url.StartsWith("$Server/")) { $trust } else { @() }
    $new = Join-Path $scratch "herder-agent.pyz"
    Get-FromServer "the agent" $url $new @() $trustOfAgent
    $checksum = $env:CATTLE_AGENT_BINARY_CHECKSUM
    if ($checksum -and (Get-FileHash -Algorithm SHA256 -Path $new).Hash.ToLower() -ne $checksum.ToLower()) {
        Stop-WithError 1 "the agent from $url is not the one with checksum $checksum"
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

    # It stays who it is, however often this runs.
    $kept = Join-Path $configDirectory "cattle-id"
    $id = $env:CATTLE_ID
    if (-not $id -and (Test-Path $kept)) { $id = (Get-Content $kept -TotalCount 1).Trim() }
    if (-not $id) {
        $bytes = New-Object byte[] 32
        [Security.Cryptography.RandomNumberGenerator]::Create().GetBytes($bytes)
        $id = ([BitConverter]::ToString($bytes).Replace("-", "").ToLower()).Substring(0, 63)
    }
    [IO.File]::WriteAllText($kept, $id)

    $env:CATTLE_AGENT_CONFIG = $config
    if ($isRemote) {
        $headers = @("Authorization: Bearer $Token", "X-Cattle-Id: $id")
        if (-not $isMade) { $headers += "X-Cattle-Role-Worker: true" }
        if ($NodeName) { $headers += "X-Cattle-Node-Name: $NodeName" }
        $public = Find-Address $Address
        $private = Find-Address $InternalAddress
        if ($public) { $headers += "X-Cattle-Address: $public" }
        if ($private) { $headers += "X-Cattle-Internal-Address: $private" }
        $labels = @($env:CATTLE_LABELS) + $Label | Where-Object { $_ }
        $taints = @($env:CATTLE_TAINTS) + $Taint | Where-Object { $_ }
        if ($labels) { $headers += "X-Cattle-Labels: $($labels -join ',')" }
        if ($taints) { $headers += "X-Cattle-Taints: $($taints -join ',')" }
        $told = Join-Path $scratch "rancher2_connection_info.json"
        Get-FromServer "the connection" "$Server/v3/connect/agent" $told $headers $trust
        & $python $agent validate-connection $told
        if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "the agent cannot use the connection that the manager gave it" }
        Move-Item -Force $told $connection
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
    Write-Host "[INFO]  the agent is installed and runs"
}

Invoke-AgentInstaller @args
exit 0

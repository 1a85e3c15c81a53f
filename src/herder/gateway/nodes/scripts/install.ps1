# Installs the node agent on this Windows machine, and tells it where its plan is. What stands above was written by the
# manager that the script comes from. Run it again to repair or to update: the machine stays who it is.

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
    function Get-FromServer([String] $What, [String] $Url, [String] $File, [String[]] $Headers, [String[]] $Trust) {
        $request = Join-Path $scratch "request"
        $lines = @("url = `"$($Url.Replace('\', '\\').Replace('"', '\"'))`"")
        foreach ($header in $Headers) { $lines += "header = `"$($header.Replace('\', '\\').Replace('"', '\"'))`"" }
        [IO.File]::WriteAllLines($request, $lines)
        for ($attempt = 0; ; $attempt++) {
            $status = & $curl --silent --output $File --write-out "%{http_code}" --connect-timeout 20 --max-time 60 --config $request @Trust
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
                & $found.Source -c "import sys, ssl; sys.exit(sys.version_info < (3, 6))"
                if ($LASTEXITCODE -eq 0) { return $found.Source }
            }
        }
        Stop-WithError 1 "Python 3.6 or newer is needed on Windows machines, for all users"
    }

    if (-not $Server) { Stop-WithError 2 "-Server: needed, the address of the manager" }
    if (-not $Token) { Stop-WithError 2 "-Token: needed, the registration token of the cluster" }
    if (-not $Worker -and $env:CATTLE_ROLE_NONE -ne "true") { Stop-WithError 2 "choose a role: -Worker, the only one on Windows" }
    $Server = $Server.TrimEnd("/")

    $scratch = Join-Path $varDirectory ".install"
    foreach ($directory in $configDirectory, $varDirectory, $scratch) {
        New-Item -ItemType Directory -Force -Path $directory | Out-Null
        Protect-Path $directory
    }

    # Before anything is sent. From here on nobody is trusted but the authority with this digest.
    $trust = @()
    if ($CaChecksum) {
        $certificates = Join-Path $scratch "ca.crt"
        Get-FromServer "the manager's certificates" "$Server/cacerts" $certificates @() @("--insecure")
        $found = (Get-FileHash -Algorithm SHA256 -Path $certificates).Hash.ToLower()
        if ($found -ne $CaChecksum.ToLower()) {
            Stop-WithError 3 "the certificates of $Server have the checksum $found, not ${CaChecksum}: this is another manager, or its certificates were replaced and the command is an old one"
        }
        $trust = @("--cacert", $certificates, "--ssl-revoke-best-effort")
    }
    Get-FromServer "the manager" "$Server/healthz" (Join-Path $scratch "answer") @() $trust

    $service = Get-Service -Name rancher-system-agent -ErrorAction SilentlyContinue
    if ($service) { Stop-Service -Name rancher-system-agent -Force }
    $python = Find-Python
    $agent = Join-Path $varDirectory "herder-agent.pyz"
    $base = if ($env:CATTLE_AGENT_BINARY_BASE_URL) { $env:CATTLE_AGENT_BINARY_BASE_URL } else { "$Server/assets" }
    Get-FromServer "the agent" "$base/herder-agent.pyz" $agent @() $trust

    $connection = Join-Path $varDirectory "rancher2_connection_info.json"
    $config = Join-Path $configDirectory "config.yaml"
    [IO.File]::WriteAllLines($config, @(
        "workDirectory: $varDirectory\work",
        "appliedPlanDirectory: $varDirectory\applied",
        "remoteEnabled: true",
        "connectionInfoFile: $connection",
        "preserveWorkDirectory: false",
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

    $headers = @("Authorization: Bearer $Token", "X-Cattle-Id: $id")
    if ($env:CATTLE_ROLE_NONE -ne "true") { $headers += "X-Cattle-Role-Worker: true" }
    if ($NodeName) { $headers += "X-Cattle-Node-Name: $NodeName" }
    if ($Address) { $headers += "X-Cattle-Address: $Address" }
    if ($InternalAddress) { $headers += "X-Cattle-Internal-Address: $InternalAddress" }
    $labels = @($env:CATTLE_LABELS) + $Label | Where-Object { $_ }
    $taints = @($env:CATTLE_TAINTS) + $Taint | Where-Object { $_ }
    if ($labels) { $headers += "X-Cattle-Labels: $($labels -join ',')" }
    if ($taints) { $headers += "X-Cattle-Taints: $($taints -join ',')" }
    Get-FromServer "the connection" "$Server/v3/connect/agent" $connection $headers $trust

    $env:CATTLE_AGENT_CONFIG = $config
    & $python $agent validate-connection $connection
    if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "the agent cannot use the connection that the manager gave it" }
    & $python $agent service install --name rancher-system-agent --config $config
    if ($LASTEXITCODE -ne 0) { Stop-WithError 1 "the service rancher-system-agent could not be installed" }
    Start-Service -Name rancher-system-agent
    Remove-Item -Recurse -Force $scratch
    Write-Host "[INFO]  the agent is installed and runs"
}

Invoke-AgentInstaller @args
exit 0

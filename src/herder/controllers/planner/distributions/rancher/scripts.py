"""Scripts in plans: run a command once (`idempotent.sh`), and restrict file permissions on Windows nodes.

The scripts are plan content: their text must not change.
"""

from __future__ import annotations

import hashlib

from herder.api.rke.node.plan import File, Instruction, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import provisioning_directory

_WINDOWS_DIRECTORY = "c:\\var\\lib\\rancher\\capr"
_WINDOWS_RUN_ONCE_PATH = f"{_WINDOWS_DIRECTORY}\\idempotence\\idempotent.ps1"
_WINDOWS_PERMISSIONS = f"{_WINDOWS_DIRECTORY}/windows/set-permissions.ps1"

_RUN_ONCE = """#!/bin/sh
# Runs a command once for each attempt at a value: idempotent.sh KEY VALUE SUM COMMAND DIRECTORY [ARGUMENTS]
set -u
key=$1 value=$2 sum=$3 command=$4 directory=$5
shift 5
place="$directory/idempotence/$key/$sum/$value"
attempt=${CATTLE_AGENT_ATTEMPT_NUMBER:-0}
if [ -f "$place/last-attempt" ] && [ "$(cat "$place/last-attempt")" = "$attempt" ]; then
    echo "$key has been done for $value at attempt $attempt"
    exit 0
fi
mkdir -p "$place" || exit 1
echo "$attempt" > "$place/last-attempt" || exit 1
exec "$command" "$@"
"""

_RUN_ONCE_WINDOWS = """param([string]$Key, [string]$Value, [string]$Sum, [string]$Command, [string]$Directory,
      [Parameter(ValueFromRemainingArguments)][string[]]$Rest)
# Runs a command once for each attempt at a value.
$ErrorActionPreference = 'Stop'
$place = Join-Path $Directory "idempotence/$Key/$Sum/$Value"
$record = Join-Path $place 'last-attempt'
$attempt = $env:CATTLE_AGENT_ATTEMPT_NUMBER
if ((Test-Path $record) -and ((Get-Content $record -Raw).Trim() -eq $attempt)) {
    Write-Host "$Key has been done for $Value at attempt $attempt"
    exit 0
}
New-Item -ItemType Directory -Force -Path $place | Out-Null
Set-Content -Path $record -Value $attempt
& $Command @Rest
exit $LASTEXITCODE
"""

_PERMISSIONS = """# Leaves the files of the node's agents to administrators and the system alone.
$ErrorActionPreference = 'Stop'
$allowed = @('BUILTIN\\Administrators', 'NT AUTHORITY\\SYSTEM')
$files = @('c:\\etc\\rancher\\wins\\config', 'c:\\etc\\rancher\\node\\password',
    'c:\\var\\lib\\rancher\\agent\\rancher2_connection_info.json',
    'c:\\etc\\rancher\\rke2\\config.yaml.d\\50-rancher.yaml', 'c:\\usr\\local\\bin\\rke2.exe')
$directories = @('c:\\var\\lib\\rancher\\capr', 'c:\\var\\lib\\rancher\\agent', 'c:\\var\\lib\\rancher\\rke2')

function Close-Path([string]$Path, [string]$Inheritance) {
    if (-not (Test-Path $Path)) { return }
    $acl = Get-Acl $Path
    $others = $acl.Access | Where-Object { $allowed -notcontains $_.IdentityReference.Value }
    if ($acl.AreAccessRulesProtected -and -not $others) { return }
    $acl.SetAccessRuleProtection($true, $false)
    $acl.Access | ForEach-Object { $acl.RemoveAccessRule($_) | Out-Null }
    foreach ($name in $allowed) {
        $rights = @($name, 'FullControl', $Inheritance, 'None', 'Allow')
        $rule = New-Object System.Security.AccessControl.FileSystemAccessRule($rights)
        $acl.AddAccessRule($rule)
    }
    $acl.SetOwner((New-Object System.Security.Principal.NTAccount($allowed[0])))
    Set-Acl -Path $Path -AclObject $acl
}

$files | ForEach-Object { Close-Path $_ 'None' }
$directories | ForEach-Object { Close-Path $_ 'ContainerInherit, ObjectInherit' }
"""


def run_once_script(cluster: ClusterInputs, machine: MachineInputs) -> File:
    if machine.windows:
        return file(_WINDOWS_RUN_ONCE_PATH, _RUN_ONCE_WINDOWS, dynamic=True, minor=True)
    return file(_run_once_path(cluster), _RUN_ONCE, dynamic=True, minor=True)


def run_once(cluster: ClusterInputs, key: str, value: str, instruction: Instruction) -> Instruction:
    """Wrap an instruction so that it runs once for each value.

    A retry after a failure needs another value: agents restart their attempt count when a plan is requested again.
    """
    sums = [hashlib.sha256(text.encode()).hexdigest() for text in (value, instruction.command)]
    arguments = (
        "-x",
        _run_once_path(cluster),
        key.lower(),
        *sums,
        instruction.command,
        provisioning_directory(cluster),
        *instruction.args,
    )
    return Instruction(
        name=f"idempotent-{key}-{sums[0]}-{sums[1]}",
        image=instruction.image,
        env=instruction.env,
        command="/bin/sh",
        args=arguments,
        save_output=instruction.save_output,
    )


def _run_once_path(cluster: ClusterInputs) -> str:
    return f"{provisioning_directory(cluster)}/idempotence/idempotent.sh"


def permissions() -> tuple[File, Instruction]:
    """Script and instruction that restrict file permissions on Windows nodes, once the files exist."""
    instruction = Instruction(
        name="Set permissions for RKE2 installation files on Windows",
        command="powershell.exe",
        args=("-File", _WINDOWS_PERMISSIONS),
    )
    return file(_WINDOWS_PERMISSIONS, _PERMISSIONS, dynamic=True, minor=True), instruction

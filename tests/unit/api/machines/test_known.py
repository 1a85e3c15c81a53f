"""NodeDriver fields, and facts about drivers that are known without running them."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers import known
from herder.api.machines.drivers.flags import Flag
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.tables import table_flags
from herder.engine.meta.kinds import Object


def node_driver(name: str = "nd-x", annotations: dict[str, str] | None = None, **spec: object) -> Object:
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {"active": True, "url": "", **spec}}


@pytest.mark.parametrize(
    ("driver", "field", "variable"),
    [
        ("amazonec2", "secretKey", "AWS_SECRET_KEY"),
        ("openstack", "password", "OS_PASSWORD"),
        ("rackspace", "apiKey", "OS_API_KEY"),
        ("vmwarevsphere", "vcenterPort", "VSPHERE_VCENTER_PORT"),
        ("vmwarefusion", "cpuCount", "FUSION_CPU_COUNT"),
        ("vmwarevcloudair", "vdcId", "VCLOUDAIR_VDC_ID"),
        ("digitalocean", "accessToken", "DIGITALOCEAN_ACCESS_TOKEN"),
    ],
)
def test_credential_variables_have_the_prefix_of_the_driver(driver: str, field: str, variable: str) -> None:
    assert known.credential_variable(driver, field) == variable


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("region", "amazonec2-region"),
        ("sshKeypath", "amazonec2-ssh-keypath"),
        ("httpProtocolIpv6", "amazonec2-http-protocol-ipv6"),
        ("useEbsOptimizedInstance", "amazonec2-use-ebs-optimized-instance"),
    ],
)
def test_flag_name_of_a_field(field: str, flag: str) -> None:
    assert known.flag_name("amazonec2", field) == flag


@pytest.mark.parametrize(
    ("driver", "flag"),
    [
        ("amazonec2", "amazonec2-userdata"),
        ("azure", "azure-custom-data"),
        ("digitalocean", "digitalocean-userdata"),
        ("exoscale", "exoscale-userdata"),
        ("google", "google-userdata"),
        ("openstack", "openstack-user-data-file"),
        ("pod", "pod-userdata"),
        ("vmwarevsphere", "vmwarevsphere-cloud-config"),
        ("generic", None),
        ("rackspace", None),
        ("softlayer", None),
    ],
)
def test_the_user_data_flag_is_found_by_its_name(driver: str, flag: str | None) -> None:
    found = known.user_data_flag(table_flags(driver) or ())
    assert (found.name if found else None) == flag


def test_zone_fields_are_flags_of_their_drivers() -> None:
    for driver, field in known.ZONE_FIELD.items():
        flags = table_flags(driver)
        assert flags is None or known.flag_name(driver, field) in {flag.name for flag in flags}


def test_a_driver_is_named_by_its_display_name_or_its_object() -> None:
    assert known.driver_name(node_driver(displayName="linode")) == "linode"
    assert known.driver_name(node_driver("process")) == "process"


@pytest.mark.parametrize("name", ["linode", "amazonec2", "a" * 47])
def test_valid_driver_names(name: str) -> None:
    assert known.name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "my-driver", "Linode", "2cloud", "a" * 48, "a.b", "ünicode"])
def test_invalid_driver_names_are_rejected(name: str) -> None:
    assert "spec.displayName" in known.name_problem(name)


@pytest.mark.parametrize(
    ("driver", "program"),
    [
        (node_driver("amazonec2", builtin=True, url="local://"), "herder-machine"),
        (node_driver("azure", builtin=True, url="local://"), "rancher-machine"),
        (node_driver("amazonec2", {known.PROGRAM_ANNOTATION: "rancher-machine"}, url="local://"), "rancher-machine"),
        (node_driver("amazonec2", {known.PROGRAM_ANNOTATION: "something"}, url="local://"), "herder-machine"),
        (node_driver("nd-1", displayName="generic", url="https://x/docker-machine-driver-generic"), "rancher-machine"),
    ],
)
def test_native_drivers_use_herder_machine_unless_annotated(driver: Object, program: str) -> None:
    assert known.program_of(driver) == program


def test_credential_fields_without_default_are_required_unless_optional() -> None:
    azure = known.credential_fields(_registered("azure"))
    assert azure.required == ("clientId", "subscriptionId", "environment", "clientSecret")
    assert azure.all == ("clientId", "subscriptionId", "tenantId", "environment", "clientSecret")
    vsphere = known.credential_fields(_registered("vmwarevsphere"))
    assert vsphere.required == ("username", "vcenter", "password")
    assert vsphere.defaults == {"vcenterPort": "443"}


def test_lists_and_pairs_are_read_with_and_without_spaces() -> None:
    driver = node_driver(annotations={known.FILE_ALIASES: "a:b, c : d,nonsense", known.PUBLIC_FIELDS: " x ,y,, "})
    assert known.file_aliases(driver) == {"a": "b", "c": "d"}
    assert known.credential_fields(driver).public == ("x", "y")


def test_ssh_keys_are_always_password_fields() -> None:
    assert {"sshKeyContents", "sshKey", "privateKeyFile"} <= known.password_fields(node_driver())


def test_a_driver_may_have_no_user_data_flag() -> None:
    assert known.user_data_flag([Flag("x-region"), Flag("x-data")]) is None


# --- default drivers ------------------------------------------------------------------------------------------------


def _registered(name: str) -> Object:
    return next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)


def test_drivers_of_this_host_and_large_clouds_are_active_by_default() -> None:
    active = {driver["metadata"]["name"] for driver in default_node_drivers() if driver["spec"]["active"]}
    assert active == {"process", "local", "generic", "amazonec2", "azure", "digitalocean", "vmwarevsphere"}


def test_built_in_drivers_have_flags_and_others_a_url_and_a_checksum() -> None:
    for driver in default_node_drivers():
        name, spec = driver["metadata"]["name"], driver["spec"]
        assert known.name_problem(name) == ""
        if known.is_built_in(driver):
            assert name in known.NATIVE_DRIVERS or table_flags(name), name
        else:
            assert spec["url"].startswith("https://"), name
            assert len(spec["checksum"]) == 64, name


def test_default_drivers_use_the_download_of_the_architecture() -> None:
    by_name = {driver["metadata"]["name"]: driver["spec"] for driver in default_node_drivers("arm64")}
    assert by_name["linode"]["url"].endswith("linux-arm64.zip")
    assert by_name["linode"]["checksum"].startswith("1a8336f6")
    assert by_name["otc"]["url"].endswith("amd64.tar.gz")


def test_default_annotations_match_upstream() -> None:
    annotations = known.annotations_of(_registered("amazonec2"))
    assert annotations == {
        "publicCredentialFields": "accessKey",
        "privateCredentialFields": "secretKey",
        "nodedriver.cattle.io/file-to-field-aliases": "sshKeyContents:sshKeypath,userdata:userdata",
    }

"""How NodeDrivers are read, and what is known of drivers without asking them."""

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
def test_a_credential_reaches_a_driver_in_variables_of_its_prefix(driver: str, field: str, variable: str) -> None:
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
def test_a_field_leads_back_to_its_flag(field: str, flag: str) -> None:
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
def test_the_flag_for_user_data_is_found_by_its_name(driver: str, flag: str | None) -> None:
    found = known.user_data_flag(table_flags(driver) or ())
    assert (found.name if found else None) == flag


def test_zones_are_flags_of_their_drivers() -> None:
    for driver, field in known.ZONE_FIELD.items():
        flags = table_flags(driver)
        assert flags is None or known.flag_name(driver, field) in {flag.name for flag in flags}


def test_a_driver_is_named_by_its_display_name_else_like_its_object() -> None:
    assert known.driver_name(node_driver(displayName="linode")) == "linode"
    assert known.driver_name(node_driver("process")) == "process"


@pytest.mark.parametrize("name", ["linode", "amazonec2", "a" * 47])
def test_one_plain_word_names_a_driver(name: str) -> None:
    assert known.name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "my-driver", "Linode", "2cloud", "a" * 48, "a.b", "ünicode"])
def test_what_flags_and_kinds_cannot_be_named_after_is_refused(name: str) -> None:
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
def test_our_program_is_used_where_it_has_the_driver_unless_another_is_asked_for(driver: Object, program: str) -> None:
    assert known.program_of(driver) == program


def test_what_a_credential_must_hold_is_what_has_no_default_and_is_not_optional() -> None:
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


def test_ssh_keys_are_never_shown_whatever_the_annotations_say() -> None:
    assert {"sshKeyContents", "sshKey", "privateKeyFile"} <= known.password_fields(node_driver())


def test_no_flag_is_a_flag_for_user_data() -> None:
    assert known.user_data_flag([Flag("x-region"), Flag("x-data")]) is None


# --- those that are there from the start ----------------------------------------------------------------------------


def _registered(name: str) -> Object:
    return next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)


def test_drivers_of_this_host_and_the_large_clouds_are_active_from_the_start() -> None:
    active = {driver["metadata"]["name"] for driver in default_node_drivers() if driver["spec"]["active"]}
    assert active == {"process", "local", "generic", "amazonec2", "azure", "digitalocean", "vmwarevsphere"}


def test_what_is_built_in_has_flags_and_what_is_not_has_an_address_and_a_checksum() -> None:
    for driver in default_node_drivers():
        name, spec = driver["metadata"]["name"], driver["spec"]
        assert known.name_problem(name) == ""
        if known.is_built_in(driver):
            assert name in known.NATIVE_DRIVERS or table_flags(name), name
        else:
            assert spec["url"].startswith("https://"), name
            assert len(spec["checksum"]) == 64, name


def test_drivers_are_registered_for_the_architecture_where_they_exist_for_it() -> None:
    by_name = {driver["metadata"]["name"]: driver["spec"] for driver in default_node_drivers("arm64")}
    assert by_name["linode"]["url"].endswith("linux-arm64.zip")
    assert by_name["linode"]["checksum"].startswith("1a8336f6")
    assert by_name["otc"]["url"].endswith("amd64.tar.gz")


def test_the_annotations_are_upstreams() -> None:
    annotations = known.annotations_of(_registered("amazonec2"))
    assert annotations == {
        "publicCredentialFields": "accessKey",
        "privateCredentialFields": "secretKey",
        "nodedriver.cattle.io/file-to-field-aliases": "sshKeyContents:sshKeypath,userdata:userdata",
    }

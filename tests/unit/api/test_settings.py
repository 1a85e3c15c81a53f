"""Settings: precedence, validation, and values of invalid objects."""

from __future__ import annotations

import pytest

from herder.api.settings import (
    DEFINITIONS,
    MACHINE_TAINT_PROPAGATION,
    SYNC_MACHINE_ANNOTATIONS,
    SYNC_MACHINE_LABELS,
    Settings,
    parse_duration,
    setting_objects,
    validate_value,
)

NAME = "history-retention"


def test_precedence_of_sources() -> None:
    layers = {
        "flags": {NAME: "1h"},
        "environment": {"CATTLE_HISTORY_RETENTION": "2h"},
        "objects": lambda _name: {"value": "3h"},
        "file": {NAME: "4h"},
    }
    order = [("flags", "1h", "flag"), ("environment", "2h", "env"), ("objects", "3h", "object"), ("file", "4h", "file")]
    for source, value, origin in order:
        assert Settings(**layers).look(NAME) == (value, origin)  # type: ignore[arg-type]
        del layers[source]
    assert Settings().look(NAME) == ("24h", "default")


def test_a_changed_object_takes_effect_at_once() -> None:
    objects = {}
    settings = Settings(objects=objects.get)
    assert settings.get(NAME) == "24h"
    objects[NAME] = {"value": "7d"}
    assert settings.get(NAME) == "7d"
    objects[NAME] = {"value": ""}
    assert settings.get(NAME) == "24h"


@pytest.mark.parametrize("value", ["soon", "-1h", "nans", "infs", "1_0s", "1", "h", "1h ", 5, ["1h"]])
def test_an_invalid_object_yields_to_the_next_source(value: object) -> None:
    settings = Settings(objects=lambda _name: {"value": value}, file={NAME: "4h"})
    assert settings.get(NAME) == "4h"
    assert [error.field for error in validate_value(NAME, value)] == ["value"]


def test_an_unknown_setting_cannot_be_read_and_is_not_validated() -> None:
    with pytest.raises(KeyError, match='no setting named "nonsense"'):
        Settings().get("nonsense")
    assert validate_value("other", "anything") == []


@pytest.mark.parametrize(
    ("text", "value"), [("30s", 30), ("15m", 900), ("1h30m", 5400), ("7d", 604800), ("0.5h", 1800), ("0s", 0)]
)
def test_durations(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("value", ["{", "[]", '{"image": "command"}', '{"image": []}', '{"image": [1]}'])
def test_runner_commands_map_images_to_commands(value: str) -> None:
    assert validate_value("runner-commands", value)
    assert not validate_value("runner-commands", '{"image": ["run", "this"]}')


def test_problems_name_their_source() -> None:
    settings = Settings(
        flags={"nonsense": "1"}, file={NAME: "soon"}, environment={"CATTLE_RUNNER_COMMANDS": "[]", "OTHER": "x"}
    )
    problems = settings.problems()
    assert problems[0] == 'flag: no setting named "nonsense"'
    assert problems[1].startswith("file: history-retention: value: Invalid value")
    assert problems[2].startswith("environment: runner-commands: value: Invalid value")
    assert len(problems) == 3
    assert Settings().problems() == []


def test_setting_objects_have_a_value_only_from_the_environment() -> None:
    objects = setting_objects(Settings(environment={"CATTLE_HISTORY_RETENTION": "2h"}))
    assert [obj["metadata"]["name"] for obj in objects] == list(DEFINITIONS)
    assert {obj["metadata"]["name"]: obj["value"] for obj in objects if "value" in obj} == {NAME: "2h"}
    assert {obj["metadata"]["name"]: obj["source"] for obj in objects}[NAME] == "env"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (SYNC_MACHINE_LABELS, "", "("),
        (SYNC_MACHINE_LABELS, r"^example\.com/, other", "good,*bad"),
        (SYNC_MACHINE_ANNOTATIONS, ".*", "["),
        (MACHINE_TAINT_PROPAGATION, "true", "yes"),
        (MACHINE_TAINT_PROPAGATION, "false", "False"),
    ],
)
def test_values_of_settings_for_machine_metadata(name: str, good: str, bad: str) -> None:
    assert validate_value(name, good) == []
    assert [error.field for error in validate_value(name, bad)] == ["value"]

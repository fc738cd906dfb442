"""Schemas of the JSON of `raptor explore show`."""

from typing import Any, Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, JsonObject, StrictSchema


class PointReport(StrictSchema):
    """A point of the space that was tried."""

    point: str = Field(description="first digits of the SHA-256 of its parameters")
    trial: int = Field(description="the first trial of this point")
    parameters: dict[str, Any] = Field(description="values by name of the parameter")
    state: str = Field(description="ok, infeasible, timeout, out_of_memory, crashed or error")
    feasible: bool = Field(description="there are figures, and every limit holds")
    front: bool = Field(description="no feasible point is as good in all objectives and better in one")
    reason: str = Field(description="why there are no figures; empty if there are")
    figures: JsonObject[float] = Field(description="of all models together, by name; empty without")
    models: JsonObject[JsonObject[float]] = Field(description="figures of each model, by its name")
    commands: JsonArray[str] = Field(description="that compile each model for this point")


class StudyReport(StrictSchema):
    """Results of a study, sorted by point. `version` changes with the fields."""

    version: Literal[1] = 1
    study: str
    settings: dict[str, Any] = Field(description="of the study file, as far as they decide the trials")
    results: JsonArray[PointReport]

"""A copy of the trials as an Optuna study in the same database, for `optuna-dashboard` and other tools of Optuna.

RAPTOR writes it, and reads only the number of its trials.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import optuna
import sqlalchemy as sql
from optuna.distributions import distribution_to_json

from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.point_sampling import list_directions, make_distributions, to_frozen_trial
from raptor.tools.explore.study.study_file import Study
from raptor.tools.explore.study_database import enable_wal

_PARTS = ("trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
"""Optuna's tables that hold the parts of a trial, with `trial_id` as foreign key."""

TableRow = dict[str, Any]


class OptunaMirror:
    """Writer of Optuna's copy of a study.

    Optuna creates the study and its tables. Trials are inserted directly in batches, because Optuna's own call takes
    about forty queries per trial, one of which counts all earlier trials.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._kinds = study, make_distributions(study.space)
        self._texts = {name: distribution_to_json(kind) for name, kind in self._kinds.items()}
        self._storage = optuna.storages.RDBStorage(study.storage, engine_kwargs={"pool_pre_ping": True})
        self._engine = self._storage.engine
        enable_wal(self._engine)
        copy = optuna.create_study(
            storage=self._storage, study_name=study.name, directions=list_directions(study), load_if_exists=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            copy.set_metric_names(list(study.objectives))
        self._id = self._storage.get_study_id_from_name(study.name)
        known = sql.MetaData()
        known.reflect(self._engine, only=("trials", *_PARTS))
        self._tables = known.tables
        self._count = self._storage.get_n_trials(self._id)

    def add_missing_trials(self, outcomes: Sequence[TrialOutcome]) -> None:
        """Adds the trials that the copy lacks, in one transaction. `outcomes`: all outcomes of the study so far."""
        missing = [to_frozen_trial(self._study, self._kinds, outcome) for outcome in outcomes[self._count :]]
        if not missing:
            return
        rows = [self._row(self._count + k, trial) for k, trial in enumerate(missing)]
        trials = self._tables["trials"]
        with self._engine.begin() as link:
            added = link.execute(trials.insert().returning(trials.c.trial_id, sort_by_parameter_order=True), rows)
            ids = list(added.scalars())
            for name in _PARTS:
                parts = [
                    {"trial_id": i} | row for i, t in zip(ids, missing, strict=True) for row in self._parts(name, t)
                ]
                if parts:
                    link.execute(self._tables[name].insert(), parts)
        self._count += len(missing)

    def _row(self, number: int, trial: optuna.trial.FrozenTrial) -> TableRow:
        now = datetime.now(UTC).replace(tzinfo=None)
        times = {"datetime_start": now, "datetime_complete": now}
        return {"number": number, "study_id": self._id, "state": trial.state.name} | times

    def _parts(self, table: str, trial: optuna.trial.FrozenTrial) -> Iterator[TableRow]:
        """Yields the rows of a trial for one of the tables `_PARTS`, without `trial_id`."""
        match table:
            case "trial_params":
                for name, value in trial.params.items():
                    number = self._kinds[name].to_internal_repr(value)
                    yield {"param_name": name, "param_value": number, "distribution_json": self._texts[name]}
            case "trial_values":
                for k, value in enumerate(trial.values or ()):
                    yield {"objective": k, "value": value, "value_type": "FINITE"}
            case _:
                named = trial.user_attrs if table == "trial_user_attributes" else trial.system_attrs
                for key, value in named.items():
                    yield {"key": key, "value_json": json.dumps(value)}

    def close(self) -> None:
        """Closes the connections to the database."""
        self._storage.remove_session()
        self._engine.dispose()

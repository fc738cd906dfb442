"""A copy of the trials as Optuna stores them, in the same database, for `optuna-dashboard` and Optuna's own tools.

RAPTOR writes it and never reads it, but for its length.
"""

import warnings
from collections.abc import Sequence

import optuna

from raptor.explore.proposing import directions, distributions, frozen
from raptor.explore.store import hasten
from raptor.explore.study import Study
from raptor.explore.trials import Outcome


class Mirror:
    """Optuna's study in the database."""

    def __init__(self, study: Study) -> None:
        self._study, self._kinds = study, distributions(study.space)
        self._storage = optuna.storages.RDBStorage(study.storage, engine_kwargs={"pool_pre_ping": True})
        hasten(self._storage.engine)
        self._copy = optuna.create_study(
            storage=self._storage, study_name=study.name, directions=directions(study), load_if_exists=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._copy.set_metric_names(list(study.objectives))
        self._count = len(self._copy.get_trials(deepcopy=False))

    def follow(self, outcomes: Sequence[Outcome]) -> None:
        """Adds the trials that it lacks."""
        for outcome in outcomes[self._count :]:
            self._copy.add_trial(frozen(self._study, self._kinds, outcome, {}))
            self._count += 1

    def close(self) -> None:
        """Closes the connections to the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

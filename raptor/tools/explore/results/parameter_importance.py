"""Importance of each parameter of a study for each objective: functional ANOVA (Hutter et al., ICML 2014)."""

import math
import warnings
from collections.abc import Mapping, Sequence

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial

from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.point_sampling import list_directions, make_distributions, to_frozen_trial
from raptor.tools.explore.study.study_file import Study

MIN_TRIALS = 10
"""Least number of trials with figures for a result."""
_MOST = 400
"""Largest number of trials that are used, evenly spread over the study: training the forests is slow."""
_TREES = 16


def compute_importances(study: Study, outcomes: Sequence[TrialOutcome]) -> Mapping[str, Mapping[str, float]]:
    """Returns, by objective and parameter, the share of the variance that the parameter explains; {} for few trials."""
    found = [o for o in outcomes if o.has_figures]
    if len(found) < MIN_TRIALS:
        return {}
    found = found[:: -(-len(found) // _MOST)]
    kinds = make_distributions(study.space)
    copy = optuna.create_study(directions=list_directions(study))
    copy.add_trials([to_frozen_trial(study, kinds, o) for o in found])
    varied = [p.name for p in study.space if len({o.trial.point[p.name] for o in found}) > 1]
    return {name: _shares(copy, k, varied) for k, name in enumerate(study.objectives)}


def _shares(study: optuna.Study, objective: int, names: list[str]) -> Mapping[str, float]:
    def value(trial: FrozenTrial) -> float:
        # NOTE: figures of a chip span orders of magnitude, and a parameter acts on their logarithm.
        found = trial.values[objective]
        return math.log(found) if positive else found

    all_values = [t.values[objective] for t in study.get_trials(deepcopy=False)]
    positive = min(all_values) > 0
    if len(set(all_values)) == 1 or not names:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller can change none of these
        evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
        found = get_param_importances(study, evaluator=evaluator, params=names, target=value)
    return {name: float(share) for name, share in found.items()}

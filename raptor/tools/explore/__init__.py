"""Studies: which chip and which mapping are best for some models, under given limits (docs/how-to/explore.md).

Read the modules in this order:

    study, metrics         the study file: models, space, objectives, constraints
    points                 points of the space as options of `raptor.compile`
    jobs                   options -> figures, or the reason why there are none
    planning               the jobs of a point, and the keys of their results
    workers                evaluations in other processes, on this computer or on a cluster
    store                  results and trials in a database
    proposing, driver      the sampler of points; the main loop, which can be stopped at any time
    front                  the Pareto front and its hypervolume
    tables, page           report, CSV and Parquet; the HTML page
"""

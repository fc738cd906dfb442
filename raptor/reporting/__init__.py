"""Pages of `raptor report` and `raptor compare`: results of `validator.profile` and notes of the compiler.

facts        everything known of an output, gathered summary      its main figures, also for comparisons tables
the layers, flows and findings as rows chip, time   figures, as plotly takes them page         one HTML file that needs
nothing else comparison   several outputs side by side
"""

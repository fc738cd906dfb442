"""Pages of `raptor report` and `raptor compare`: results of `validator.profile` and notes of the compiler.

`facts` collects all data about an output, `summary` derives key figures, `tables` and `accuracies` make tables,
`chip_figures`, `time` and `rounds` plots, `page` one self-contained HTML file, `comparison` tables of several outputs.
"""

"""Results of a study: the front, tables, figures and pages."""

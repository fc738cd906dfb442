"""The files of an output directory: their schemas, the writer and the report."""

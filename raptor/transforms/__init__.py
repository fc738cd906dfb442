"""Rewrites from Graph to Graph, one in each module. They are passes of the pipeline before the decision."""

"""Several chips: where a model is cut into stages, and the traffic between cores and chips."""

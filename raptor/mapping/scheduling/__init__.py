"""List scheduling of steps that occupy cores, and the choice of an order; mappings are judged by it, too."""

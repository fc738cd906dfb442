"""Accuracy of compiled programs on labelled data, on chips that are exact, sliced or noisy."""

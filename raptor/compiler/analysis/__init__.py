"""Figures and explanations about models, chips and programs."""

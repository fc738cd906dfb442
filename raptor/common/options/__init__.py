"""Values of options: checks of arguments, texts of repeatable options, conflicts between options."""

"""What every part uses: errors, the console, arguments and their spelling, files of pydantic, compiled loops."""

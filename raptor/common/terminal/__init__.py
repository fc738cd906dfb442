"""Terminal output: untrusted strings shown literally, tables that fit, abbreviated names."""

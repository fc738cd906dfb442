"""Rules of `raptor check`, one module for each topic. `validator.checks` imports them, which registers them."""

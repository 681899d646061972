"""Commands: the only place, beside web, that builds objects from config."""

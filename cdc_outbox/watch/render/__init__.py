"""How a health is shown: to a person, to a monitoring plug-in's caller, to Prometheus, on a live table."""

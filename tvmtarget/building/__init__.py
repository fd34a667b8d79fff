"""Building: a plan is compiled into an executable."""

"""`python -m cdc_outbox`, the same as `cdc-outbox`."""

from cdc_outbox.cli import main

main()

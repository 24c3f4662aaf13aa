"""From a row of the outbox table to a Kafka message, as docs call it the mapping.

Pure: no sockets, no event loop, no drivers. A plan is compiled once per relation; then each row runs
through it.
"""

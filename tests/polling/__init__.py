"""What people have before they move: three outbox tables, a shop that writes them, and a relay that polls them.

`python -m tests.polling --table a --dsn … --bootstrap …` is that relay as a process of its own. The books and the
judge say what became of each event, whoever sent it.
"""

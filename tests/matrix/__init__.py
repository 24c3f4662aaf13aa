"""Every supported Python, both ends of the dependencies, the older Kafka: `make test` runs in one place of each."""

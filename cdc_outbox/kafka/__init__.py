"""Kafka's side of the relay. Only this package imports aiokafka."""

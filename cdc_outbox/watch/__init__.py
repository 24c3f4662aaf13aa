"""What the relay shows of itself to probes and people."""

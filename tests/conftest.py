"""What every test may use; the servers' fixtures are in integration/conftest.py."""

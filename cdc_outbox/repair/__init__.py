"""What is done once and beside the stream: rows sent from the table, and the books compared."""

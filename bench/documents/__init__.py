"""What bench/tables.py writes into the documents: tables and charts of the committed results."""

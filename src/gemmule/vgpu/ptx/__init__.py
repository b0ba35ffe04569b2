"""The PTX front end: text to instructions with symbols, labels and source lines."""

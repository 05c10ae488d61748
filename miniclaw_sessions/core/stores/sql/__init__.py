"""What both SQL stores share: the tables, the checksums of rows, and the errors of databases."""

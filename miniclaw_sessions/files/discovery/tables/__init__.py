"""What is asked of each program's database: one module for each, which is loaded only for such a database."""

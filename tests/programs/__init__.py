"""Sessions of other programs, as these write them: made after their sources, where no program could be run here.

Each module has one program's lines, and `put`, which writes them into a home as the program would.
"""

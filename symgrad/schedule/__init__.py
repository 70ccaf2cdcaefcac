"""What is computed where: expressions made canonical, cut into loop nests, products and routines.

Start reading at `symgrad.schedule.program`.
"""

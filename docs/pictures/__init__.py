"""Pictures of the documentation that are drawn from what the code computes.

Each module has FILE, facts() and draw(facts). The file keeps its facts, so that a test can compare.
"""
